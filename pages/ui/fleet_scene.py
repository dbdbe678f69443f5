"""Everything that the Fleet page shows at one instant, and what makes its numbers doubtful. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from collectors.fleet_picture import FleetPicture, ReplicaRow
from collectors.settings import Settings
from pages.ui import doubts
from pages.ui.charts import Mark
from pages.ui.words import duration
from runbooks.verdicts import Diagnosis, LawFinding, RankState

STATE_LEVELS = {
    "serving": "ok", "prefill_only": "ok", "idle": "ok", "stalled": "bad", "stale": "warn", "down": "bad", "unknown": "unknown",
}  # fmt: skip
STATE_WORDS = {"prefill_only": "prefill only"}


@dataclass(frozen=True)
class Scene:
    """Everything that the Fleet page shows at one instant."""

    picture: FleetPicture
    found: Diagnosis | None
    settings: Settings
    slots: Mapping[str, int | None]
    axis: tuple[int, int]
    kept: Mapping[str, str]
    marks: tuple[Mark, ...] = ()

    @cached_property
    def broken(self) -> tuple[LawFinding, ...]:
        return doubts.broken(self.found)

    @cached_property
    def taints(self) -> dict[str, tuple[str, ...]]:
        """Canonical signal -> what a broken law says against it."""
        return self._taints(None)

    def _taints(self, row: ReplicaRow | None) -> dict[str, tuple[str, ...]]:
        concerns = doubts.anywhere if row is None else doubts.at_one_of(self.names(row))
        told = {signal: list(reasons) for signal, reasons in doubts.by_signal(self.broken, concerns).items()}
        for finding in self.picture.findings:
            for signal in finding.taints:
                told.setdefault(signal, []).append(finding.text)
        return {signal: tuple(dict.fromkeys(reasons)) for signal, reasons in told.items()}

    def doubts(self, *signals: str, row: ReplicaRow | None = None) -> tuple[str, ...]:
        """Why these signals are not trusted: in the whole fleet, or where one replica alone is shown."""
        taints = self.taints if row is None else self._taints(row)
        return tuple(dict.fromkeys(reason for signal in signals for reason in taints.get(signal, ())))

    def names(self, row: ReplicaRow) -> set[str]:
        """What a diagnosis may call a replica: its key, or its instance where the identity is made of other labels."""
        return {row.key, row.labels.get("instance", row.key)}

    def state(self, row: ReplicaRow) -> RankState | None:
        """The worst of the replica's ranks, as the diagnosis sees it."""
        names = self.names(row)
        order = ("down", "stalled", "stale", "unknown", "prefill_only", "serving", "idle")
        mine = [s for s in (self.found.replicas if self.found is not None else ()) if s.place.instance in names]
        return min(mine, key=lambda s: order.index(s.state), default=None)


def state_words(state: RankState, at_ms: int) -> str:
    word = STATE_WORDS.get(state.state, state.state)
    if state.since_ms is None or state.state in ("serving", "prefill_only", "idle", "unknown"):
        return word
    return f"{word} {duration((at_ms - state.since_ms) / 1000)}"
