"""What the diagnosis says through a run, against what is true: fired, late, silent, and every claim that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectors.settings import Settings
from runbooks.diagnosis import diagnose
from runbooks.verdicts import Verdict
from tests.proof.incidents import START_MS, Incident, Recorded


@dataclass(frozen=True)
class Moment:
    """The diagnosis of one instant: its verdicts but `healthy`, and the broken laws as (law, instance)."""

    at: float
    verdicts: tuple[Verdict, ...]
    broken: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Claim:
    """A cause called likely that is not true then and there."""

    at: float
    cause: str
    where: str
    why: str
    aftermath: bool = False
    """Said when nothing is wrong any more: of a queue, say, that is still being worked off."""

    def __str__(self) -> str:
        return f"{self.cause} on {self.where} at {self.at:.0f} s ({self.why})"


@dataclass(frozen=True)
class Sighting:
    """How one incident was seen. Seconds from its start; None = never."""

    incident: Incident
    budget: float
    likely_after: float | None
    mentioned_after: float | None
    """The first time that it was named with whatever confidence."""
    lingers: float
    """Seconds that it was still called likely after its end."""

    @property
    def word(self) -> str:
        """fired, late or silent."""
        if self.likely_after is None:
            return "silent"
        return "fired" if self.likely_after <= self.budget else "late"


def moment(run: Recorded, at: float) -> Moment:
    """The diagnosis at `at` seconds from the start of the run."""
    found = diagnose(run.source, START_MS + round(at * 1000), Settings())
    return Moment(
        at=at,
        verdicts=tuple(verdict for verdict in found.verdicts if verdict.cause != "healthy"),
        broken=frozenset(
            (law.id, place.instance) for law in found.laws if law.status == "broken" for place in law.where.places
        ),
    )


def on_the_spot(verdict: Verdict, incident: Incident) -> bool:
    """Whether a verdict names the place of an incident: part of the fleet for a fleet, exactly the replicas or the ranks otherwise."""
    places = frozenset((place.instance, place.engine) for place in verdict.where.places)
    instances = frozenset(instance for instance, _ in places)
    if incident.scope == "fleet":
        return bool(instances) and instances <= incident.instances
    if incident.scope == "rank":
        return verdict.where.scope == "rank" and places == incident.places
    return verdict.where.scope != "fleet" and instances == incident.instances


def sighted(incident: Incident, budget: float, moments: Sequence[Moment]) -> Sighting:
    """How an incident was seen at those moments."""

    def named(one: Moment, *, likely: bool) -> bool:
        return any(
            verdict.cause == incident.cause
            and (verdict.confidence == "likely" or not likely)
            and on_the_spot(verdict, incident)
            for verdict in one.verdicts
        )

    during = [one for one in moments if incident.start < one.at <= incident.stop]
    lingers = 0.0
    for one in moments:
        if one.at > incident.stop:
            if not named(one, likely=True):
                break
            lingers = one.at - incident.stop
    return Sighting(
        incident=incident,
        budget=budget,
        likely_after=next((one.at - incident.start for one in during if named(one, likely=True)), None),
        mentioned_after=next((one.at - incident.start for one in during if named(one, likely=False)), None),
        lingers=lingers,
    )


def wrong_claims(run: Recorded, moments: Iterable[Moment]) -> list[Claim]:
    """Everything called likely that is neither true there by then nor declared to stand beside it. What is over may still be told: see `lingers`; what follows from it is `aftermath`."""
    began = min((incident.start for incident in run.incidents), default=float("inf"))
    beside = run.scenario.expect.may_stand_beside
    found = []
    for one in moments:
        for verdict in one.verdicts:
            if verdict.confidence != "likely":
                continue
            same = [incident for incident in run.incidents if incident.cause == verdict.cause]
            if any(incident.start <= one.at and on_the_spot(verdict, incident) for incident in same):
                continue
            if verdict.cause in beside and one.at >= began:
                continue
            over = one.at >= began and not any(i.start <= one.at <= i.stop for i in run.incidents)
            why = (
                "before it begins"
                if one.at < began
                else "after it ended"
                if over
                else "wrong place"
                if same
                else "not what is wrong"
            )
            found.append(Claim(one.at, verdict.cause, str(verdict.where), why, over))
    return found
