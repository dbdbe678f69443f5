"""The KV forecast on made loads that no number was chosen on: how often it is wrong, how often and how early it is right.

Requests come as a Poisson stream, hold their prompt at once and grow by a token at a time; the cache is what they hold over a pool.
That gives the saw-tooth of releases by itself, with whatever memory the lengths imply.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from collectors.flow import kv_forecast, student_quantile
from collectors.model import Floats

SECONDS = 2400
LOOK_BACK_SECONDS = 300.0
FORGIVEN = 1.5
"""A forecast is right when the cache is full before this many times the predicted time has passed."""


def cache_usage(
    random: np.random.Generator, load: Callable[[float], float], mean: float, interval: float
) -> tuple[Floats, Floats]:
    """(seconds, usage) of one rank; `load` multiplies the arrivals that keep the mean usage."""
    answer, speed, prompt = random.uniform(60, 1500), random.uniform(15, 60), random.uniform(50, 4000)
    stay, on_board = answer / speed, int(random.choice([4, 8, 16, 32, 64]))
    pool = on_board * (prompt + answer / 2) / mean
    most = 4.0
    start = -3 * stay
    count = random.poisson(on_board / stay * most * (SECONDS - start))
    came = np.sort(random.uniform(start, SECONDS, count))
    came = came[random.uniform(0, most, count) < np.array([load(t) for t in came])]
    spread = np.sqrt(np.log(1 + random.uniform(0.3, 1.0) ** 2))
    answers = random.lognormal(np.log(answer) - spread**2 / 2, spread, len(came))
    prompts = random.lognormal(np.log(prompt) - spread**2 / 2, spread, len(came))
    left = came + answers / speed
    times = np.arange(0, SECONDS, interval) + random.uniform(0, interval)
    held = [np.sum((prompts + (t - came) * speed)[(came <= t) & (left > t)]) for t in times]
    return times, np.minimum(np.array(held) / pool, 1.0)


@lru_cache(maxsize=4)
def judged(kind: str, interval: float, seed: int, runs: int) -> tuple[int, int, int, int, list[float]]:
    """(instants asked, forecasts, false ones, times that it got full, leads of those that were foretold)."""
    random = np.random.default_rng(seed)
    asked = forecasts = false = events = 0
    leads: list[float] = []
    for _ in range(runs):
        mean = random.uniform(0.15, 0.85)
        begins, takes, top = random.uniform(300, 900), random.uniform(120, 1200), random.uniform(1.15, 1.8)
        growth = top / mean - 1 if kind == "ramp" else 0.0

        def load(t: float, begins: float = begins, takes: float = takes, growth: float = growth) -> float:
            return 1.0 + growth * min(max((t - begins) / takes, 0.0), 1.0)

        times, usage = cache_usage(random, load, mean, interval)
        full = usage >= 0.99
        said: dict[int, float] = {}
        for now in range(int(LOOK_BACK_SECONDS / interval), len(times)):
            if full[now]:
                continue
            asked += 1
            since = int(np.searchsorted(times, times[now] - LOOK_BACK_SECONDS))
            forecast = kv_forecast(times[since : now + 1], usage[since : now + 1])
            if forecast.kind == "fills" and forecast.seconds is not None:
                until = times[now] + FORGIVEN * forecast.seconds + interval
                said[now] = until
                forecasts += 1
                false += until <= times[-1] and not full[now : int(np.searchsorted(times, until)) + 1].any()
        for now in np.flatnonzero(full):
            back = times >= times[now] - LOOK_BACK_SECONDS
            if times[now] < times[0] + LOOK_BACK_SECONDS + 60 or full[back & (times < times[now])].any():
                continue
            events += 1
            earlier = [number for number in said if times[now] - LOOK_BACK_SECONDS <= times[number] < times[now]]
            leads += [float(times[now] - times[min(earlier)])] if earlier else []
    return asked, forecasts, false, events, leads


@pytest.mark.parametrize("interval", [5.0, 15.0, 30.0])
def test_a_load_that_does_not_grow_is_hardly_ever_forecast_to_fill_the_cache(interval: float) -> None:
    """A slope that passes at odds of one in a hundred must also point at full within its own length."""
    asked, _, false, _, _ = judged("steady", interval, 4711, 30)
    assert asked > 1500
    assert false / asked < 0.002


@pytest.mark.parametrize("interval", [5.0, 15.0])
def test_most_forecasts_under_a_growing_load_come_true_and_come_early(interval: float) -> None:
    _, forecasts, false, events, leads = judged("ramp", interval, 4712, 40)
    assert events > 20
    assert false / forecasts < 0.3
    assert len(leads) / events > 0.2
    assert np.median(leads) >= 45


def test_the_forecast_is_early_where_the_growth_is_even() -> None:
    """Ten minutes from 40 % to full with the noise of sixty requests: told minutes ahead, at the right time."""
    random = np.random.default_rng(9)
    times = np.arange(0, 600, 5.0)
    usage = 0.4 + times / 1000 + random.normal(0, 0.01, len(times))
    told = [kv_forecast(times[n - 60 : n], usage[n - 60 : n]) for n in range(60, 115)]
    errors = [600 - times[n - 1] - told[n - 60].seconds for n in range(60, 115) if told[n - 60].kind == "fills"]  # type: ignore[operator]
    assert told[0].kind == "fills" or told[4].kind == "fills"
    assert len(errors) > 45
    assert max(map(abs, errors)) < 60


@pytest.mark.parametrize(
    ("freedom", "value"), [(2, 6.965), (3, 4.541), (5, 3.365), (10, 2.764), (30, 2.457), (1000, 2.330)]
)
def test_the_quantile_of_students_t_is_that_of_the_tables(freedom: float, value: float) -> None:
    assert student_quantile(0.01, freedom) == pytest.approx(value, rel=0.08 if freedom == 2 else 0.02)
