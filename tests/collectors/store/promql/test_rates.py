"""rate, increase and delta by extrapolation, against a plain reading of Prometheus 3.x, sample by sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import Samples, Window
from collectors.store.blocks import Blocks
from collectors.store.promql import Engine

RANGE_MS = 60_000


def plain(points: list[tuple[int, float]], end_ms: int, *, counter: bool, per_second: bool) -> float | None:
    """The extrapolated gain over (end - range, end]."""
    inside = [(t, v) for t, v in points if end_ms - RANGE_MS < t <= end_ms]
    if len(inside) < 2:
        return None
    gain = inside[-1][1] - inside[0][1]
    if counter:
        gain += sum(a for (_, a), (_, b) in zip(inside, inside[1:], strict=False) if b < a)
    sampled = (inside[-1][0] - inside[0][0]) / 1000
    apart = sampled / (len(inside) - 1)
    to_start = (inside[0][0] - (end_ms - RANGE_MS)) / 1000
    to_end = (end_ms - inside[-1][0]) / 1000
    if to_start >= apart * 1.1:
        to_start = apart / 2
    if counter and gain > 0 and inside[0][1] >= 0:
        to_start = min(to_start, sampled * (inside[0][1] / gain))
    if to_end >= apart * 1.1:
        to_end = apart / 2
    factor = (sampled + to_start + to_end) / sampled
    return gain * factor / (RANGE_MS / 1000 if per_second else 1)


@st.composite
def counters(draw: st.DrawFn) -> list[tuple[int, float]]:
    steps = draw(
        st.lists(
            st.tuples(st.integers(1, 25_000), st.sampled_from([0.0, 0.0, 1.0, 7.0, 250.5, -1.0])),
            min_size=1,
            max_size=40,
        )
    )
    t, value, out = 0, draw(st.sampled_from([0.0, 3.0, 1e6])), []
    for wait, gain in steps:
        t += wait
        value = 0.5 if gain < 0 else value + gain
        out.append((t, value))
    return out


@settings(deadline=None, max_examples=150)
@given(st.lists(counters(), min_size=1, max_size=6), st.booleans())
def test_extrapolation_is_prometheus_own(series: list[list[tuple[int, float]]], shared: bool) -> None:
    """With a timeline of their own each, and with one timeline for all, which takes another path."""
    if shared:
        times = [t for t, _ in series[0]]
        series = [[(t, v) for t, (_, v) in zip(times, (one * len(times))[: len(times)], strict=True)] for one in series]
    blocks = Blocks()
    blocks.load(
        Samples({"__name__": "x_total", "i": str(i)}, np.array([t for t, _ in one]), np.array([v for _, v in one]))
        for i, one in enumerate(series)
    )
    window = Window(0, 300_000, 7_000)
    engine = Engine(blocks)
    for name, counter, per_second in (("rate", True, True), ("increase", True, False), ("delta", False, False)):
        found = {
            one["metric"]["i"]: dict(one["values"])
            for one in engine.range(f"{name}(x_total[1m])", window).data()["result"]
        }
        for i, one in enumerate(series):
            for t in window.times_ms().tolist():
                want = plain(one, t, counter=counter, per_second=per_second)
                got = found.get(str(i), {}).get(t / 1000)
                assert (got is None) == (want is None)
                if want is not None and got is not None:
                    assert float(got) == pytest.approx(want, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("values", "want"), [([5.0, math.inf, 3.0, 4.0], math.inf), ([1.0, math.nan, 2.0, 3.0], 2.0)])
def test_odd_values_in_a_counter_spoil_only_the_windows_that_hold_them(values: list[float], want: float) -> None:
    blocks = Blocks()
    tail = [float(v) for v in range(4, 20)]
    samples = np.array([*values, *tail])
    blocks.load([Samples({"__name__": "x_total"}, np.arange(1, len(samples) + 1) * 10_000, samples)])
    engine = Engine(blocks)
    found = dict(engine.range("increase(x_total[40s])", Window(40_000, 200_000, 10_000)).data()["result"][0]["values"])
    first = float(found[40])
    assert first == want if math.isinf(want) else first == pytest.approx(want * 4 / 3)
    assert float(found[200]) == pytest.approx(4.0)
