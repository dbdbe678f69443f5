"""Laws judged over all histograms of a rank at once say what they say histogram by histogram."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.observed import Counter, Histogram, Rank, Replica
from collectors.settings import Settings
from runbooks.laws import histograms
from runbooks.laws.model import Subject
from runbooks.reading import Reading
from runbooks.thresholds import Pace, Thresholds

TIMES = np.arange(1, 7, dtype=np.int64) * 15_000
LIMITS = Thresholds.of(Settings())
PLACES: dict[int, int] = {}


def counter(values: np.ndarray) -> Counter:
    return Counter(TIMES, values, values - values[0], places=PLACES)


@st.composite
def ranks(draw: st.DrawFn) -> Rank:
    """Honest histograms, and ones whose buckets fall, whose count differs or whose sum lies outside."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bucket_times, found = TIMES[-4:], {}
    for number in range(draw(st.integers(1, 4))):
        edges = np.append(np.cumsum(rng.random(draw(st.integers(1, 6))) + 0.01), np.inf)
        if draw(st.booleans()) and draw(st.booleans()):
            edges[-1] = edges[-2] + 1
        observed = rng.integers(0, draw(st.sampled_from([1, 3, 50])), (len(TIMES), len(edges))).cumsum(axis=0)
        cumulative = observed.cumsum(axis=1).astype(np.float64)
        fault = draw(st.sampled_from(["", "", "", "falls", "count", "high", "low", "edge", "gap"]))
        total = (observed * np.where(np.isinf(edges), edges[-2] * 2, edges)).sum(axis=1) * draw(
            st.sampled_from([1, 0.99])
        )
        count = cumulative[:, -1].copy()
        if fault == "falls":
            cumulative[draw(st.integers(0, 5)) :, draw(st.integers(0, len(edges) - 1))] += 5
        elif fault == "count":
            count[draw(st.integers(0, 5)) :] += 1
        elif fault in ("high", "low"):
            total *= 3 if fault == "high" else 0.1
        elif fault == "edge":
            total = (observed * edges.clip(max=edges[-2])).sum(axis=1) * (
                1 + draw(st.sampled_from([-2e-6, 0.95e-6, 2e-6]))
            )
        elif fault == "gap":
            total[-1] = count[-2] = np.nan
        found[f"h{number}"] = Histogram(
            counter(total), counter(count), edges, bucket_times, cumulative[-4:], gapless=draw(st.sampled_from([True, True, False]))
        )  # fmt: skip
    return Rank("a", "0", "m", TIMES, {"requests_running": np.ones(6)}, {}, found, places=PLACES)


def subject_of(rank: Rank) -> Subject:
    flags, seconds = np.ones(6, dtype=bool), np.full(6, 1.0)
    replica = Replica("a", {}, TIMES, 15_000, seconds, seconds, seconds, flags, (), (rank,))
    reading = Reading(replica, rank, int(TIMES[-1]), Pace.of(LIMITS, 15_000), LIMITS, 2.5)
    return Subject(replica, rank, reading, int(TIMES[-1]), 15_000, LIMITS)


@settings(deadline=None, max_examples=300)
@given(ranks())
def test_at_once_or_one_by_one(rank: Rank) -> None:
    with pytest.MonkeyPatch.context() as patched:
        at_once = {name: check(subject_of(rank)) for name, check in histograms.CHECKS.items()}
        patched.setattr(histograms, "_joined", lambda reading: None)
        assert at_once == {name: check(subject_of(rank)) for name, check in histograms.CHECKS.items()}


def test_honest_histograms_are_judged_at_once() -> None:
    observed = np.arange(1, 25.0).reshape(6, 4)
    edges = np.array([1.0, 2, 3, np.inf])
    count = observed.cumsum(axis=1)
    honest = Histogram(counter((observed * 1.5).sum(axis=1)), counter(count[:, -1]), edges, TIMES, count, gapless=True)
    rank = Rank(
        "a", "0", "m", TIMES, {"requests_running": np.ones(6)}, {}, {"h": honest, "other": honest}, places=PLACES
    )
    subject = subject_of(rank)
    assert subject.reading is not None
    joined = histograms._joined(subject.reading)
    assert joined is not None
    assert histograms._none_falls(joined)
    assert not histograms._all_fit(joined)  # 1.5 a piece is too little for what lies beyond 3
