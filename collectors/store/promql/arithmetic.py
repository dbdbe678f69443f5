"""Binary operators on numbers, and between a vector and a scalar."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectors.model import Floats
from collectors.store.promql.grids import Grid, ScalarRow, grid, nameless

COMPARISONS: dict[str, np.ufunc] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}


def compute(op: str, left: Floats, right: Floats) -> Floats:
    """An arithmetic operator, with the infinities and NaN of IEEE 754."""
    with np.errstate(all="ignore"):
        return np.asarray(ARITHMETIC[op](left, right), dtype=np.float64)


def holds(op: str, left: Floats, right: Floats) -> np.ndarray:
    """A comparison; NaN compares false, except that it is unequal to everything."""
    with np.errstate(invalid="ignore"):
        return np.asarray(COMPARISONS[op](left, right), dtype=bool)


def drops_name(op: str, return_bool: bool, *, atan2_keeps_name: bool) -> bool:
    """Whether the result of an operator is no longer the metric its left side was."""
    return return_bool or (op in ARITHMETIC and not (op == "atan2" and atan2_keeps_name))


def scalars(op: str, left: ScalarRow, right: ScalarRow) -> ScalarRow:
    """scalar op scalar; a comparison gives 0 or 1 (the grammar asks for bool)."""
    if op in COMPARISONS:
        return ScalarRow(holds(op, left.values, right.values).astype(np.float64))
    return ScalarRow(compute(op, left.values, right.values))


def vector_scalar(
    op: str, vector: Grid, scalar: ScalarRow, *, scalar_left: bool, return_bool: bool, atan2_keeps_name: bool
) -> Grid:
    """vector op scalar, or scalar op vector. A comparison keeps the vector's samples that satisfy it."""
    row = scalar.values[None, :]
    left, right = (row, vector.values) if scalar_left else (vector.values, row)
    if op in COMPARISONS:
        kept = holds(op, left, right)
        if return_bool:
            return nameless(vector.with_values(kept.astype(np.float64)))
        present = kept if vector.present is None else kept & vector.present
        return grid(vector.labels, vector.values, present, ordered=vector.ordered)
    result = vector.with_values(compute(op, left, right))
    return nameless(result) if drops_name(op, return_bool, atan2_keeps_name=atan2_keeps_name) else result
