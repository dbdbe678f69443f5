"""Quantile intervals as values: the bucket that must contain a quantile, the interpolated estimate, the observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from collectors.model import Floats

Bools = npt.NDArray[np.bool_]
Flag = Literal["first_bucket", "last_bucket", "few_observations", "mixed_layouts", "non_monotone"]
FLAGS: tuple[Flag, ...] = ("first_bucket", "last_bucket", "few_observations", "mixed_layouts", "non_monotone")

FLAG_WORDS: dict[Flag, str] = {
    "first_bucket": "in the first bucket: only an upper bound is known",
    "last_bucket": "beyond the last bound: only a lower bound is known",
    "few_observations": "few observations: one request more or less moves it",
    "mixed_layouts": "replicas have different buckets: merged on the bounds they share",
    "non_monotone": "bucket counts fell where they may only rise; raised to the running maximum",
}


def bound_text(bound: float) -> str:
    """A bucket edge as it is configured: '0.025', '2560', '1000000'."""
    return str(int(bound)) if bound.is_integer() else f"{bound:g}"


@dataclass(frozen=True)
class QuantileInterval:
    """One quantile of one merged histogram, in the histogram's unit. The true sample quantile lies in (lo, hi]."""

    q: float
    estimate: float
    """Prometheus's interpolation; in the last bucket its lower bound; NaN for q = 0 over an empty first bucket, as there."""
    lo: float
    """0 in the first bucket of a histogram whose first bound is positive, else -inf there."""
    hi: float
    """inf in the last bucket."""
    observations: float
    """In the window the rates were taken over, extrapolated as the rates are."""
    flags: tuple[Flag, ...] = ()
    repaired_share: float = 0.0
    """How far non-monotone buckets had to be raised, as a share of all observations."""

    def text(self, unit: str = "") -> str:
        """'2.5-5 s', '> 10 s', '<= 0.001 s'."""
        tail = f" {unit}" if unit else ""
        if self.hi == float("inf"):
            return f"> {bound_text(self.lo)}{tail}"
        if "first_bucket" in self.flags:
            return f"<= {bound_text(self.hi)}{tail}"
        return f"{bound_text(self.lo)}-{bound_text(self.hi)}{tail}"


@dataclass(frozen=True)
class QuantileSeries:
    """Quantiles over time: rows are quantiles, columns steps. NaN where the window held no observation."""

    quantiles: tuple[float, ...]
    estimate: Floats
    lo: Floats
    hi: Floats
    observations: Floats
    """Per step, shape (steps,)."""
    mean: Floats
    """rate(sum) / rate(count) per step; NaN where the sums were not asked for."""
    flags: dict[Flag, Bools]
    """Per flag: shape (quantiles, steps)."""
    repaired_share: Floats
    """Per step."""
    bounds: Floats
    """Upper bounds that were merged on, +Inf last."""

    def at(self, q: float, step: int = -1) -> QuantileInterval | None:
        """The interval of quantile q at one step; None where nothing was observed. Raises ValueError for a q not asked."""
        row = self.quantiles.index(q)
        if np.isnan(self.lo[row, step]):
            return None
        return QuantileInterval(
            q=q,
            estimate=float(self.estimate[row, step]),
            lo=float(self.lo[row, step]),
            hi=float(self.hi[row, step]),
            observations=float(self.observations[step]),
            flags=tuple(flag for flag in FLAGS if self.flags[flag][row, step]),
            repaired_share=float(self.repaired_share[step]),
        )
