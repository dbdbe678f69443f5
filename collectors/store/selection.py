"""The samples a query reads, laid flat: all values in one vector, all timelines in another, and where each series begins.

Series of one timeline (a scrape target without gaps) share their row numbers, so that "which rows lie in this window"
is asked once per timeline and step, and each value is then one gather away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collectors.model import STALE_BITS, Floats, Int64s
from collectors.store.blocks import Blocks, Plan, joined
from collectors.store.packing import NO_SAMPLE_BITS, bits_of
from collectors.store.series import LabelSet

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """`series s` owns values[value_from[s] : value_from[s] + n] with n and times those of timeline line_of[s]."""

    labels: tuple[LabelSet, ...]
    values: Floats
    value_from: Rows
    line_of: Rows
    times_ms: Int64s
    line_from: Rows
    line_rows: Rows
    _keys: dict[str, tuple[Int64s, int, int]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def lines(self) -> int:
        return len(self.line_rows)

    @property
    def sample_count(self) -> int:
        return len(self.values)

    def rows_until(self, ends_ms: Int64s, *, inclusive: bool) -> Rows:
        """How many rows of each timeline lie before (or at, when inclusive) each end: (lines, len(ends))."""
        side: str = "right" if inclusive else "left"
        if self.lines <= 2:
            out = np.empty((self.lines, len(ends_ms)), dtype=np.int64)
            for i, (start, rows) in enumerate(zip(self.line_from, self.line_rows, strict=True)):
                out[i] = np.searchsorted(self.times_ms[start : start + rows], ends_ms, side=side)  # type: ignore[call-overload]
            return out
        keys, low, stride = self._sorted_keys()
        # Clipping keeps a query within its own timeline's stretch of the keys.
        wanted = np.clip(ends_ms - low, -1, stride - 2) + 1
        shifted = wanted[None, :] + stride * np.arange(self.lines, dtype=np.int64)[:, None]
        found = np.searchsorted(keys, shifted.ravel(), side=side).reshape(shifted.shape)  # type: ignore[call-overload]
        return np.asarray(found - self.line_from[:, None], dtype=np.int64)

    def _sorted_keys(self) -> tuple[Int64s, int, int]:
        known = self._keys.get("keys")
        if known is None:
            low, high = int(self.times_ms.min()), int(self.times_ms.max())
            stride = high - low + 3
            line = np.repeat(np.arange(self.lines, dtype=np.int64), self.line_rows)
            known = self._keys["keys"] = (self.times_ms - low + 1 + stride * line, low, stride)
        return known

    def series_rows(self) -> Rows:
        """Number of samples of each series."""
        return self.line_rows[self.line_of]


def empty_selection() -> Selection:
    """No series at all."""
    none = np.zeros(0, dtype=np.int64)
    return Selection((), np.zeros(0), none, none, none, none, none)


def from_series(series: Sequence[tuple[LabelSet, Int64s, Floats]]) -> Selection:
    """A selection of series with their own timelines."""
    if not series:
        return empty_selection()
    rows = np.array([len(s[1]) for s in series], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(rows)[:-1])).astype(np.int64)
    return Selection(
        labels=tuple(s[0] for s in series),
        values=np.concatenate([s[2] for s in series]),
        value_from=starts,
        line_of=np.arange(len(series), dtype=np.int64),
        times_ms=np.concatenate([s[1] for s in series]),
        line_from=starts,
        line_rows=rows,
    )


class _Builder:
    def __init__(self) -> None:
        self.lines: list[Int64s] = []
        self.blocks: list[Floats] = []
        self.positions: list[npt.NDArray[np.intp]] = []

    def add(self, times_ms: Int64s, values: Floats, positions: npt.NDArray[np.intp]) -> None:
        if len(times_ms) and len(positions):
            self.lines.append(times_ms)
            self.blocks.append(values)
            self.positions.append(positions)


def select(blocks: Blocks, plan: Plan, start_ms: int, end_ms: int, *, keep_stale: bool) -> Selection:
    """Read the planned series, start_ms <= t <= end_ms. Staleness markers are dropped unless `keep_stale`."""
    built = _Builder()
    scattered: dict[int, list[tuple[Int64s, Floats]]] = {}
    for part in plan.parts:
        piece = part.lane.read(part.columns, start_ms, end_ms, blocks.cache)
        if piece is None:
            continue
        if not piece.dirty.any() and not plan.scattered:
            built.add(piece.times_ms, piece.values, part.positions)
            continue
        bits = bits_of(piece.values)
        there = bits != np.uint64(NO_SAMPLE_BITS)
        if not keep_stale:
            there &= bits != np.uint64(STALE_BITS)
        alike: dict[bytes, list[int]] = {}
        for row, position in enumerate(part.positions):
            if int(position) in plan.scattered:
                scattered.setdefault(int(position), []).append(
                    (piece.times_ms[there[row]], piece.values[row][there[row]])
                )
            else:
                alike.setdefault(there[row].tobytes(), []).append(row)
        for rows in alike.values():
            held = there[rows[0]]
            chosen = piece.values[rows] if held.all() else piece.values[rows][:, held]
            built.add(piece.times_ms[held], chosen, part.positions[rows])
    for position, pieces in scattered.items():
        times_ms, values = joined(pieces)
        built.add(times_ms, values[None, :], np.array([position], dtype=np.intp))
    return _laid_flat(plan.labels, built)


def _laid_flat(labels: tuple[LabelSet, ...], built: _Builder) -> Selection:
    if not built.lines:
        return empty_selection()
    line_rows = np.array([len(t) for t in built.lines], dtype=np.int64)
    widths = np.array([len(p) for p in built.positions], dtype=np.int64)
    positions = np.concatenate(built.positions)
    sizes = line_rows * widths
    block_from = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    line_of = np.repeat(np.arange(len(widths), dtype=np.int64), widths)
    within = np.arange(len(positions)) - np.repeat(np.concatenate(([0], np.cumsum(widths)[:-1])), widths)
    value_from = block_from[line_of] + within * line_rows[line_of]
    values = np.empty(int(sizes.sum()))
    for start, size, block in zip(block_from, sizes, built.blocks, strict=True):
        values[start : start + size].reshape(block.shape)[...] = block
    order = np.argsort(positions, kind="stable")
    return Selection(
        labels=tuple(labels[p] for p in positions[order]),
        values=values,
        value_from=value_from[order],
        line_of=line_of[order],
        times_ms=np.concatenate(built.lines),
        line_from=np.concatenate(([0], np.cumsum(line_rows)[:-1])).astype(np.int64),
        line_rows=line_rows,
    )
