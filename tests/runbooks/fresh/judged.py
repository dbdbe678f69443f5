"""What the diagnosis says at an instant against what is true there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.runbooks.fresh.made import START_MS, Recording, Wrong
from tests.runbooks.queue_cases import CALM, diagnosed


@dataclass(frozen=True)
class Judged:
    """One instant. `faults` empty = right; `wanted` and `got` are for the confusion matrix."""

    kind: str
    seed: int
    interval_seconds: float
    at: float
    wanted: str
    got: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.kind} seed {self.seed} ({self.interval_seconds:g} s) at {self.at:.0f} s: {'; '.join(self.faults)}"
        )


def judged(recording: Recording, step: float = 30.0) -> Iterator[Judged]:
    """Every instant of a recording."""
    situation = recording.situation
    for at, due in recording.instants(step):
        answer = diagnosed(recording.source, (START_MS + round(at * 1000)) / 1000)
        found, got = faults(recording, at, due, answer)
        wanted = "+".join(one.cause for one in due) if due else "healthy"
        yield Judged(situation.kind, situation.seed, situation.interval_seconds, at, wanted, got, tuple(found))


def faults(
    recording: Recording, at: float, due: Sequence[Wrong] | None, answer: Mapping[str, Any]
) -> tuple[list[str], str]:
    """(what is wrong with an answer, its headline): a cause that must be named and is not, or not there, and every untrue claim."""
    situation = recording.situation
    named = [v for v in answer["verdicts"] if v["cause"] not in CALM]
    begun = [one for one in situation.wrong if one.start <= at]
    allowed = set(situation.always_allowed) | (set(situation.allowed) if begun else set())
    found = []
    for one in due or ():
        right = {one.cause, *one.accept}
        hits = [v for v in named if v["cause"] in right]
        there = [v for v in hits if on_the_spot(recording, one, v)]
        if not hits:
            found.append(f"missed {one.cause}")
        elif not there:
            found.append(f"{hits[0]['cause']} at the wrong place: {_place(hits[0])}")
        elif not any(v["confidence"] == "likely" for v in there) and not (one.soft or one.accept):
            found.append(f"{one.cause} only {there[0]['confidence']}")
    true = {one.cause for one in begun} | {name for one in begun for name in one.accept}
    for verdict in named:
        if verdict["confidence"] != "likely" or verdict["cause"] in allowed:
            continue
        if verdict["cause"] not in true:
            found.append(f"false {verdict['cause']} at {_place(verdict)}")
        elif due and not any(
            verdict["cause"] in {one.cause, *one.accept} and on_the_spot(recording, one, verdict, exactly=False)
            for one in begun
        ):
            found.append(f"{verdict['cause']} claimed at {_place(verdict)}")
    top = next((v for v in named if v["confidence"] != "undetermined"), None)
    if top is not None and top["confidence"] == "possible" and top["cause"] not in allowed | true:
        found.append(f"headline {top['cause']} (possible)")
    if due is None and top is not None and top["confidence"] == "likely" and top["cause"] in true - allowed:
        found.append(f"{top['cause']} told after its end")
    got = top["cause"] if top is not None else "healthy"
    if due and got in {name for one in due for name in (one.cause, *one.accept)} | allowed:
        got = "+".join(one.cause for one in due) if not found else got
    if due is None and got in allowed:
        got = "healthy"
    return found, got


def on_the_spot(recording: Recording, one: Wrong, verdict: Mapping[str, Any], *, exactly: bool = True) -> bool:
    """Whether a verdict names the place: exactly the replicas (and the rank), or some part of them."""
    places = {(p["instance"], p["engine"]) for p in verdict["where"]["replicas"]}
    instances = {instance for instance, _ in places}
    if one.replicas is None:
        return bool(instances) or not recording.instances
    wanted = {recording.instances[index] for index in one.replicas}
    if one.rank is not None and {engine for _, engine in places} != {str(one.rank)}:
        return False
    return instances == wanted if exactly else instances <= wanted


def _place(verdict: Mapping[str, Any]) -> str:
    return ", ".join(f"{p['instance']}/{p['engine']}" for p in verdict["where"]["replicas"][:3]) or "nowhere"
