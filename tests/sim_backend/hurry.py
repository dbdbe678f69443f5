"""Bundled scenarios whose incident begins earlier, so that a test need not simulate the quiet minutes before it."""

from sim_backend.scenario import Scenario, load_scenario, parse_scenario


def hurried(name: str, earlier: float) -> Scenario:
    """The scenario with every instant that is not 0 moved `earlier` seconds towards the start."""
    data = load_scenario(name).model_dump()
    for part in (*data["load"], *data["fault"], *data["truth"]):
        for key in ("start_seconds", "stop_seconds"):
            if part[key]:
                part[key] = max(0.0, part[key] - earlier)
        steps = part.get("arrivals", {}).get("steps")
        if steps and steps[0][0] > earlier:
            steps[0] = (steps[0][0] - earlier, steps[0][1])
    return parse_scenario(name, data)
