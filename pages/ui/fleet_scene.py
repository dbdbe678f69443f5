"""Everything that the Fleet page shows at one instant, and what makes its numbers doubtful. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collectors.fleet_picture import FleetPicture, ReplicaRow
from collectors.settings import Settings
from pages.ui.charts import Mark
from pages.ui.words import duration
from runbooks.verdicts import Diagnosis, RankState, Where

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

    @property
    def taints(self) -> dict[str, tuple[str, ...]]:
        """Canonical signal -> what a broken law says against it."""
        return self._taints(None)

    def _taints(self, row: ReplicaRow | None) -> dict[str, tuple[str, ...]]:
        told: dict[str, list[str]] = {}
        for law in self.found.laws if self.found is not None else ():
            if law.status == "broken" and (row is None or _concerns(law.where, row)):
                for signal in law.taints:
                    told.setdefault(signal, []).append(f"{law.where}: {law.evidence} (check {law.id})")
        for finding in self.picture.findings:
            for signal in finding.taints:
                told.setdefault(signal, []).append(finding.text)
        return {signal: tuple(dict.fromkeys(reasons)) for signal, reasons in told.items()}

    def doubts(self, *signals: str, row: ReplicaRow | None = None) -> tuple[str, ...]:
        """Why these signals are not trusted: in the whole fleet, or where one replica alone is shown."""
        taints = self._taints(row)
        return tuple(dict.fromkeys(reason for signal in signals for reason in taints.get(signal, ())))

    def state(self, row: ReplicaRow) -> RankState | None:
        """The worst of the replica's ranks, as the diagnosis sees it."""
        names = _names(row)
        order = ("down", "stalled", "stale", "unknown", "prefill_only", "serving", "idle")
        mine = [s for s in (self.found.replicas if self.found is not None else ()) if s.place.instance in names]
        return min(mine, key=lambda s: order.index(s.state), default=None)


def _names(row: ReplicaRow) -> set[str]:
    return {row.key, row.labels.get("instance", row.key)}


def _concerns(where: Where, row: ReplicaRow) -> bool:
    return where.scope == "fleet" or any(place.instance in _names(row) for place in where.places)


def state_words(state: RankState, at_ms: int) -> str:
    word = STATE_WORDS.get(state.state, state.state)
    if state.since_ms is None or state.state in ("serving", "prefill_only", "idle", "unknown"):
        return word
    return f"{word} {duration((at_ms - state.since_ms) / 1000)}"
