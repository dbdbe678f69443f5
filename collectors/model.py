"""Windows, samples and frames: the values that travel from a source to a judgement.

Time is epoch milliseconds (int64) everywhere inside; values are float64. Nothing here knows where numbers come from.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Labels = Mapping[str, str]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STALE_BITS = 0x7FF0000000000002
"""The NaN that Prometheus writes when a series ends (model/value/value.go, StaleNaN)."""
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]

ResultType = Literal["vector", "matrix", "scalar", "string"]


def is_stale(values: Floats) -> npt.NDArray[np.bool_]:
    """True where a value is Prometheus's staleness marker (and not an ordinary NaN). Any shape."""
    stale: npt.NDArray[np.bool_] = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64) == np.uint64(
        STALE_BITS
    )
    return stale


@dataclass(frozen=True)
class Window:
    """Start, end and step of a range query, all in epoch milliseconds; both ends are evaluated when they fall on a step."""

    start_ms: int
    end_ms: int
    step_ms: int

    def __post_init__(self) -> None:
        if self.step_ms <= 0:
            raise ValueError(f"step must be positive, got {self.step_ms} ms")
        if self.end_ms < self.start_ms:
            raise ValueError(f"window ends ({self.end_ms}) before it starts ({self.start_ms})")

    @property
    def steps(self) -> int:
        return (self.end_ms - self.start_ms) // self.step_ms + 1

    def times_ms(self) -> Int64s:
        return self.start_ms + self.step_ms * np.arange(self.steps, dtype=np.int64)


@dataclass(frozen=True)
class Samples:
    """One series as it was scraped: strictly increasing timestamps (ms) and values; a value may be STALE."""

    labels: Labels
    times_ms: Int64s
    values: Floats


@dataclass(frozen=True)
class Vector:
    """Answer of an instant query: one value per label set at `at_ms`. A scalar is a Vector with one empty label set."""

    at_ms: int
    labels: tuple[Labels, ...]
    values: Floats
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Frame:
    """Answer of a range query on a regular grid: `values[i, j]` is series i at `times_ms[j]`; NaN = no sample there.

    A sample that is itself NaN reads the same as no sample here; `Source.samples` keeps the difference.
    """

    window: Window
    labels: tuple[Labels, ...]
    values: Floats
    warnings: tuple[str, ...] = ()
    times_ms: Int64s = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.labels), self.window.steps):
            raise ValueError(
                f"values {self.values.shape} do not fit {len(self.labels)} series x {self.window.steps} steps"
            )
        object.__setattr__(self, "times_ms", self.window.times_ms())

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ApiAnswer:
    """The `data` object of the Prometheus query API as it stands ({"resultType", "result"}), whatever its type, and what the backend warned of."""

    data: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceInfo:
    """What answers: `kind` is how it is reached, `backend`/`version` what it says of itself ('' when it does not)."""

    name: str
    kind: Literal["remote", "store", "capsule"]
    backend: str
    version: str
    url: str = ""
    """Address without userinfo and query, fit to be shown."""


@dataclass(frozen=True)
class MetricMeta:
    """TYPE and HELP of one metric family."""

    type: str
    help: str
    unit: str = ""
