"""The query as a tree of plain values: hashable, so that a sub-expression is its own cache key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from collectors.store.matchers import Matcher

At = int | Literal["start", "end"] | None
"""Instant that a selector is pinned to: epoch ms, the query's own start or end, or nothing."""


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Text:
    value: str


@dataclass(frozen=True)
class VectorSelector:
    matchers: tuple[Matcher, ...]
    offset_ms: int = 0
    at: At = None


@dataclass(frozen=True)
class MatrixSelector:
    vector: VectorSelector
    range_ms: int


@dataclass(frozen=True)
class Subquery:
    expr: Node
    range_ms: int
    step_ms: int | None
    offset_ms: int = 0
    at: At = None


@dataclass(frozen=True)
class Call:
    func: str
    args: tuple[Node, ...]


@dataclass(frozen=True)
class Aggregate:
    op: str
    expr: Node
    param: Node | None
    without: bool
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Negate:
    expr: Node


@dataclass(frozen=True)
class Matching:
    """How the series of two vectors find each other. `include` is what group_left/group_right copies."""

    card: Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"]
    on: bool
    labels: tuple[str, ...]
    include: tuple[str, ...]


@dataclass(frozen=True)
class Binary:
    op: str
    lhs: Node
    rhs: Node
    matching: Matching
    return_bool: bool


Node = Number | Text | VectorSelector | MatrixSelector | Subquery | Call | Aggregate | Negate | Binary
