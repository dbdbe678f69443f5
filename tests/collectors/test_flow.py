"""Little's law, arrivals, drain, forecast and seats on arrays whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.flow import (
    arrivals_per_second,
    drain,
    duration_words,
    kv_forecast,
    seats_ceiling,
    wait_seconds,
    waiting_change_per_second,
)

NAN = math.nan


def test_wait_is_waiting_over_the_rate_of_first_tokens_where_enough_moved():
    assert wait_seconds(120, 3.0, 60) == 40
    assert wait_seconds(0, 3.0, 60) is None
    assert wait_seconds(120, 4 / 60, 60) is None
    assert wait_seconds(120, 5 / 60, 60) == pytest.approx(1440)
    assert wait_seconds(NAN, 3.0, 60) is None
    assert wait_seconds(120, NAN, 60) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=20))
def test_estimated_arrivals_are_the_true_ones_when_nothing_is_aborted(flow):
    """One step = one window: arrivals in it = first tokens in it + growth of the queue."""
    waiting, first, arrived = [0.0], [], []
    for came, wanted in flow:
        served = min(wanted, int(waiting[-1]) + came)
        waiting.append(waiting[-1] + came - served)
        first.append(served)
        arrived.append(came)
    change = waiting_change_per_second(np.array([waiting]), 1, 10.0)
    got = arrivals_per_second(np.array([NAN, *(f / 10.0 for f in first)]), change)
    assert got[1:] == pytest.approx([a / 10.0 for a in arrived])


def test_a_replica_that_comes_or_goes_adds_no_arrivals():
    waiting = np.array([[5.0, 5.0, NAN, NAN], [0.0, 0.0, 0.0, 0.0]])
    change = waiting_change_per_second(waiting, 1, 10.0)
    assert arrivals_per_second(np.full(4, 2.0), change)[1:].tolist() == [2.0, 2.0, 2.0]
    assert math.isnan(arrivals_per_second(np.full(4, 2.0), change)[0])


def test_drain_says_when_or_why_never():
    assert drain(220, -1.0).text == "clears in 3 m 40 s"
    assert drain(220, 0.8).text == "never: arrivals exceed completions by 0.8/s"
    assert drain(220, 0.0).kind == "never"
    assert drain(3, 0.0, 0.0).text == "never at this rate: no request gets its first token"
    assert drain(0, 5.0).kind == "empty"
    assert drain(3, NAN).kind == "unknown"
    assert drain(NAN, 1.0).kind == "unknown"


def test_a_cache_that_fills_is_forecast_and_a_noisy_one_is_not():
    t = np.arange(0, 300, 15.0)
    rising = kv_forecast(t, 0.5 + 0.001 * t)
    assert rising.kind == "fills"
    assert rising.seconds == pytest.approx((1 - (0.5 + 0.001 * t[-1])) / 0.001)
    assert rising.text == "full in 3 m 35 s at this slope"
    assert kv_forecast(t, 0.1 + 0.001 * t).kind == "steady"  # further off than the line is long
    wave = 0.5 + 0.1 * np.sin(t / 100) + 0.0002 * t
    assert kv_forecast(t, wave).kind == "steady"  # neighbours resemble each other: fewer witnesses than points
    noise = np.random.default_rng(3).normal(0, 0.05, len(t))
    assert kv_forecast(t, 0.5 + noise).kind == "steady"
    assert kv_forecast(t, 0.9 - 0.0005 * t).kind == "steady"
    assert kv_forecast(t, np.full(len(t), 0.3)).kind == "steady"
    assert kv_forecast(t, np.full(len(t), 1.0)).kind == "full"
    assert kv_forecast(t[:3], np.array([0.1, 0.2, 0.3])).kind == "unknown"
    assert kv_forecast(t, np.array([0.5] * 19 + [NAN])).kind == "unknown"  # what it was is not what it is


def test_seats_show_only_as_a_ceiling_under_pressure_with_free_blocks():
    pressed = np.full(10, 7.0)
    assert seats_ceiling(np.full(10, 16.0), pressed, np.full(10, 0.2)) == 16
    assert seats_ceiling(np.full(10, 16.0), np.zeros(10), np.full(10, 0.2)) is None
    assert seats_ceiling(np.full(10, 11.0), pressed, np.full(10, 0.97)) is None  # blocks, not seats
    moving = np.array([5.0, 9, 12, 7, 8, 10, 6, 11, 9, 8])
    assert seats_ceiling(moving, pressed, np.full(10, 0.2)) is None
    assert seats_ceiling(np.append(np.full(9, 16.0), NAN), pressed, np.full(10, 0.2)) == 16
    assert seats_ceiling(np.full(10, 16.0), pressed, np.full(10, NAN)) == 16


def test_durations_are_said_in_two_units():
    assert [duration_words(s) for s in (0, 59.6, 220, 7500, 266400)] == ["0 s", "1 m", "3 m 40 s", "2 h 5 m", "3 d 2 h"]
