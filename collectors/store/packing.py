"""Sealed columns in few bytes: runs for what stands still, small deltas for what counts, raw bits for the rest.

A column is decoded bit for bit, whatever it holds (staleness markers, gaps, ordinary NaN, -0.0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.model import STALE_BITS, Floats

NO_SAMPLE_BITS = 0x7FF0000000000F0F
"""Our own NaN for 'this series was not in this scrape': a signalling NaN that no exporter can send as text."""
NO_SAMPLE: float = float(np.array([NO_SAMPLE_BITS], dtype=np.uint64).view(np.float64)[0])

EXACT_WHOLE = float(2**53)
SCALES = (1.0, 1e1, 1e2, 1e3, 1e6)
RUN_BYTES = 10  # a value and the row where it begins

MARK_ROWS = 128
"""Counted columns know their value at every so many rows, so that a few rows in the middle are not summed up from the first."""

RUNS, DELTA8, DELTA16, DELTA32, RAW = range(5)
_DELTAS: tuple[tuple[int, npt.DTypeLike, int], ...] = (
    (DELTA8, np.int8, 1),
    (DELTA16, np.int16, 2),
    (DELTA32, np.int32, 4),
)

Columns = npt.NDArray[np.intp]


def bits_of(values: Floats) -> npt.NDArray[np.uint64]:
    """The bit patterns of float64 values, same shape."""
    return np.ascontiguousarray(values).view(np.uint64)


@dataclass(frozen=True)
class _Deltas:
    first: npt.NDArray[np.int64]
    scale: Floats
    steps: npt.NDArray[np.signedinteger]  # (columns, rows - 1)
    marks: npt.NDArray[np.int64]  # (columns, whole number of MARK_ROWS in the rows): growth from the first row on

    @classmethod
    def of(cls, whole: npt.NDArray[np.int64], scale: Floats, dtype: npt.DTypeLike) -> _Deltas:
        first = whole[:, 0].copy()
        return cls(first, scale, np.diff(whole, axis=1).astype(dtype), whole[:, ::MARK_ROWS] - first[:, None])

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + self.scale.nbytes + self.steps.nbytes + self.marks.nbytes

    def decode(self, slots: npt.NDArray[np.int32], start: int, stop: int) -> Floats:
        """Rows start <= row < stop."""
        out = np.empty((len(slots), stop - start))
        mark = min((start + MARK_ROWS // 2) // MARK_ROWS, self.marks.shape[1] - 1)  # the nearest
        at = mark * MARK_ROWS
        begin = self.marks[slots, mark]
        if at < start:
            begin += self.steps[slots, at:start].sum(axis=1, dtype=np.int64)
        elif at > start:
            begin -= self.steps[slots, start:at].sum(axis=1, dtype=np.int64)
        out[:, 0] = begin
        # whole numbers below 2^53 all along, so the order of the sum does not show
        np.cumsum(self.steps[slots, start : stop - 1], axis=1, dtype=np.float64, out=out[:, 1:])
        if start:
            out[:, 1:] += begin[:, None]
        out += self.first[slots, None]
        scale = self.scale[slots]
        if (scale != 1.0).any():
            out /= scale[:, None]
        return out


@dataclass(frozen=True)
class PackedColumns:
    """A matrix (columns, rows) at rest. `clean[c]`: every row of column c holds an ordinary sample (no gap, no marker)."""

    rows: int
    kind: npt.NDArray[np.int8]
    slot: npt.NDArray[np.int32]
    clean: npt.NDArray[np.bool_]
    run_from: npt.NDArray[np.int64]
    run_rows: npt.NDArray[np.uint16]
    run_values: Floats
    deltas: dict[int, _Deltas]
    raw: Floats

    @property
    def nbytes(self) -> int:
        """Bytes held, without the few of this object itself."""
        fixed = self.kind.nbytes + self.slot.nbytes + self.clean.nbytes
        runs = self.run_from.nbytes + self.run_rows.nbytes + self.run_values.nbytes
        return fixed + runs + self.raw.nbytes + sum(deltas.nbytes for deltas in self.deltas.values())

    def decode(self, columns: Columns, start: int = 0, stop: int | None = None) -> Floats:
        """The given columns as a fresh matrix (len(columns), rows), or their rows start <= row < stop (at least one)."""
        stop = self.rows if stop is None else stop
        kinds = self.kind[columns]
        present = set(kinds.tolist())
        slots = self.slot[columns]
        if len(present) == 1:
            return self._decode_kind(present.pop(), slots, start, stop)
        out = np.empty((len(columns), stop - start))
        for kind in present:
            here = np.flatnonzero(kinds == kind)
            out[here] = self._decode_kind(kind, slots[here], start, stop)
        return out

    def _decode_kind(self, kind: int, slots: npt.NDArray[np.int32], start: int, stop: int) -> Floats:
        if kind == RAW:
            return self.raw[slots, start:stop]
        if kind == RUNS:
            return self._decode_runs(slots, start, stop)
        return self.deltas[kind].decode(slots, start, stop)

    def _decode_runs(self, slots: npt.NDArray[np.int32], start: int, stop: int) -> Floats:
        begin, end = self.run_from[slots], self.run_from[slots + 1]
        counts = end - begin
        rows = stop - start
        if (counts == 1).all():
            return np.repeat(self.run_values[begin], rows).reshape(len(slots), rows)
        # positions of all runs of the chosen columns, in order
        offsets = np.repeat(begin - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        where = np.arange(int(counts.sum())) + offsets
        starts = np.clip(self.run_rows[where].astype(np.int64) - start, 0, rows)
        flat = starts + np.repeat(np.arange(len(slots)) * rows, counts)
        lengths = np.empty(len(flat), dtype=np.int64)
        lengths[-1] = len(slots) * rows - flat[-1]
        np.subtract(flat[1:], flat[:-1], out=lengths[:-1])
        return np.repeat(self.run_values[where], lengths).reshape(len(slots), rows)


def pack(values: Floats) -> PackedColumns:
    """Pack a (columns, rows) matrix, rows <= 65535, choosing the smallest exact form for each column."""
    columns, rows = values.shape
    bits = bits_of(values)
    special = (bits == np.uint64(STALE_BITS)) | (bits == np.uint64(NO_SAMPLE_BITS))
    changed = bits[:, 1:] != bits[:, :-1]
    runs = changed.sum(axis=1) + 1
    kind = np.full(columns, RAW, dtype=np.int8)
    cost = np.full(columns, 8 * rows, dtype=np.int64)
    whole, scale = _as_whole(values)
    spread = _spread(whole)
    countable = scale > 0
    for code, dtype, width in reversed(_DELTAS):
        fits = countable & (spread <= np.iinfo(dtype).max)
        kind[fits], cost[fits] = code, width * rows
    still = RUN_BYTES * runs <= cost
    kind[still] = RUNS

    slot = np.zeros(columns, dtype=np.int32)
    for code in range(5):
        here = kind == code
        slot[here] = np.arange(int(here.sum()))
    at = np.flatnonzero(kind == RUNS)
    starts = np.concatenate((np.ones((len(at), 1), dtype=bool), changed[at]), axis=1)
    deltas = {
        code: _Deltas.of(whole[here], scale[here], dtype)
        for code, dtype, _ in _DELTAS
        if len(here := np.flatnonzero(kind == code))
    }
    return PackedColumns(
        rows=rows,
        kind=kind,
        slot=slot,
        clean=~special.any(axis=1),
        run_from=np.concatenate(([0], np.cumsum(starts.sum(axis=1)))).astype(np.int64),
        run_rows=np.nonzero(starts)[1].astype(np.uint16),
        run_values=values[at][starts],
        deltas=deltas,
        raw=values[kind == RAW].copy(),
    )


def _as_whole(values: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Columns as whole numbers and the scale that gives the very same floats back; scale 0 where there is none."""
    whole = np.zeros(values.shape, dtype=np.int64)
    scale = np.zeros(len(values))
    with np.errstate(invalid="ignore", over="ignore"):
        usable = np.isfinite(values).all(axis=1) & ~((values == 0) & np.signbit(values)).any(axis=1)
        for factor in SCALES:
            todo = np.flatnonzero(usable & (scale == 0))
            if not len(todo):
                break
            scaled = np.rint(values[todo] * factor)
            exact = (np.abs(scaled).max(axis=1, initial=0) < EXACT_WHOLE) & (scaled / factor == values[todo]).all(
                axis=1
            )
            hits = todo[exact]
            whole[hits] = scaled[exact].astype(np.int64)
            scale[hits] = factor
    return whole, scale


def _spread(whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The largest absolute step between neighbours of each column."""
    if whole.shape[1] < 2:
        return np.zeros(len(whole), dtype=np.int64)
    return np.asarray(np.abs(np.diff(whole, axis=1)).max(axis=1), dtype=np.int64)
