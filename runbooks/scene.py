"""The whole picture that causes look at: every rank's reading, its state and its broken laws, and its peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collectors.observed import Observations, Replica
from collectors.settings import Settings
from runbooks.laws import GRAVE
from runbooks.reading import Reading
from runbooks.thresholds import Pace, Thresholds
from runbooks.verdicts import Confidence, LawFinding, Place, RankState, Scope, Where
from runbooks.wanted import NOT_SET, Wanted


@dataclass(frozen=True)
class Scene:
    """Everything known at the instant. `states` by place; `laws` are all findings."""

    observations: Observations
    settings: Settings
    limits: Thresholds
    pace: Pace
    readings: Mapping[Place, Reading]
    states: Mapping[Place, RankState]
    laws: Sequence[LawFinding] = ()
    wanted: Wanted = NOT_SET

    @property
    def at_ms(self) -> int:
        return self.observations.at_ms

    def state(self, place: Place) -> str:
        found = self.states.get(place)
        return found.state if found is not None else "unknown"

    def tainted(self, place: Place) -> frozenset[str]:
        """Signals of a rank that a broken grave law makes unfit to be read (caveats only mark them)."""
        return frozenset(
            signal
            for law in self.laws
            if law.status == "broken" and law.id in GRAVE and any(_covers(p, place) for p in law.where.places)
            for signal in law.taints
        )

    def peers(self, reading: Reading) -> list[Reading]:
        """Readings of the other replicas that serve the same model."""
        return [
            other
            for other in self.readings.values()
            if other.rank.instance != reading.rank.instance and other.rank.model == reading.rank.model
        ]

    def where(self, places: Iterable[Place], *, ranks: bool = False) -> Where:
        """The place of a finding; `fleet` when it covers every replica of a fleet of several, or there is none."""
        chosen = tuple(sorted(set(places)))
        instances = {place.instance for place in chosen}
        scope: Scope = "rank" if ranks else "replica"
        known = {r.instance for r in self.observations.replicas}
        if not ranks and (not chosen or (len(known) != 1 and instances == known)):
            scope = "fleet"
        return Where(scope, chosen)

    def places(self, replica: Replica) -> tuple[Place, ...]:
        """All ranks of a replica; the replica itself where no rank is known."""
        return tuple(Place(replica.instance, rank.engine) for rank in replica.ranks) or (Place(replica.instance),)


def _covers(law: Place, place: Place) -> bool:
    return law.instance == place.instance and law.engine in ("", place.engine)


@dataclass(frozen=True)
class Suspicion:
    """One cause at one or several places, as its own rule sees it; `diagnosis` weighs suspicions against each other.

    reads: signals that the rule rests on (a broken law on one of them withdraws the suspicion). explains: causes that
    would only be symptoms of this one at the same place.
    """

    cause: str
    confidence: Confidence
    places: tuple[Place, ...]
    since_ms: int | None
    evidence: tuple[str, ...]
    against: tuple[str, ...] = ()
    aggravated_by: tuple[str, ...] = ()
    runner_up: str | None = None
    separating_check: str = ""
    cannot_know: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    explains: frozenset[str] = frozenset()
    ranks: bool = False
