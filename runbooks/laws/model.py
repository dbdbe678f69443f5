"""A law, what it is judged on, and its outcome."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from collectors.observed import Rank, Replica
from runbooks.reading import Reading
from runbooks.thresholds import Thresholds
from runbooks.verdicts import LawStatus

FILE = Path(__file__).with_name("laws.toml")


@dataclass(frozen=True)
class Law:
    """One row of laws.toml."""

    id: str
    statement: str
    why: str
    query: str
    scope: Literal["rank", "replica"]
    grave: bool
    taints: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """What a law is judged on. `rank` and `reading` are None for laws of a whole replica."""

    replica: Replica
    rank: Rank | None
    reading: Reading | None
    at_ms: int
    interval_ms: int
    limits: Thresholds
    told_by_job: frozenset[str] = frozenset()
    """Signals that any target of the replica's job shows now."""
    version: str = ""
    """The engine version that the operator configured."""

    @cached_property
    def scrapes(self) -> int:
        """In how many scrapes in a row a relation must be broken to count."""
        return int(self.limits("metrics_untrustworthy", "scrapes"))


@dataclass(frozen=True)
class Outcome:
    """What a law's check found; `taints` adds to the law's own list."""

    status: LawStatus
    evidence: str = ""
    taints: tuple[str, ...] = ()


Check = Callable[[Subject], Outcome]
KEPT = Outcome("kept")


def unknown(why: str) -> Outcome:
    """A law that cannot be evaluated is unknown, never kept."""
    return Outcome("unknown", why)


@lru_cache(maxsize=1)
def all_laws() -> Mapping[str, Law]:
    """Every law by id, in the order of the file."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: Law(
            name, row["statement"], row["why"], row["query"], row["scope"], row["grave"], tuple(row.get("taints", ()))
        )
        for name, row in table.items()
    }
