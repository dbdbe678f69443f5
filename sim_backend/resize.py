"""A scenario on another number of replicas than it states."""

from __future__ import annotations

import math

from sim_backend.scenario import Load, Scenario, ScenarioError, named_replicas


def for_replicas(scenario: Scenario, replicas: int) -> Scenario:
    """The same incident on another number of replicas than the scenario states: each replica meets what it met before.

    Arrivals of a stream change in proportion to the replicas it goes to, and so does a remedy that adds replicas. A stream that is pinned to certain
    replicas, or that says `grows_with_fleet = false`, keeps its figures; so does a recorded trace, unless it is stretched to a rate. Raises
    ScenarioError when the scenario is about a replica that would not exist.
    """
    stated = scenario.fleet.replicas
    if replicas == stated:
        return scenario
    needed = 1 + max((index for _, index in named_replicas(scenario)), default=0)
    if needed > replicas:
        raise ScenarioError(
            f"scenario {scenario.name} is about replica {needed - 1}: give it at least {needed} replicas"
        )
    expect = scenario.expect
    if expect.remedy is not None and expect.remedy.replicas is not None:
        more = max(replicas + 1, math.ceil(expect.remedy.replicas * replicas / stated))
        expect = expect.model_copy(update={"remedy": expect.remedy.model_copy(update={"replicas": more})})
    return scenario.model_copy(
        update={
            "fleet": scenario.fleet.model_copy(update={"replicas": replicas}),
            "load": [_resized(load, stated, replicas) for load in scenario.load],
            "expect": expect,
        }
    )


def _resized(load: Load, stated: int, replicas: int) -> Load:
    if load.replicas is not None or not load.grows_with_fleet:
        return load
    apart = len(load.not_replicas)
    factor = max(replicas - apart, 1) / max(stated - apart, 1)
    arrivals = load.arrivals
    update = {
        "rate": arrivals.rate * factor,
        "rate_to": arrivals.rate_to * factor,
        "steps": [(seconds, rate * factor) for seconds, rate in arrivals.steps],
        "clients": max(1, round(arrivals.clients * factor)),
        "count": max(1, round(arrivals.count * factor)),
        "rescale_rate": arrivals.rescale_rate * factor,
    }
    return load.model_copy(update={"arrivals": arrivals.model_copy(update=update)})
