"""Numbers as an operator reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.figures import Figure, QuantileFigure
from collectors.latency_picture import Ranking
from collectors.quantile_values import QuantileInterval
from pages.ui.latency_view import averaging_text
from pages.ui.words import amount, digits, duration, figure_text, interval_text, name_text, opening, percent, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9.4, "9.4"), (112, "112"), (999.4, "999"), (999.6, "1k"), (4873, "4.87k"), (0.0042, "0.0042"), (1_234_567, "1.23M"), (-3.14159, "-3.14")],
)  # fmt: skip
def test_three_digits_at_most(value: float, text: str) -> None:
    assert digits(value) == text


@settings(deadline=None, max_examples=200)
@given(st.floats(min_value=1e-3, max_value=9e8))
def test_what_is_shown_is_within_one_percent_of_the_value_and_short(value: float) -> None:
    text = digits(value)
    scale = {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    shown = float(text.rstrip("kM")) * scale
    assert shown == pytest.approx(value, rel=0.006, abs=6e-5)
    assert sum(c.isdigit() for c in text.lstrip("0.")) <= 4


@pytest.mark.parametrize(
    ("value", "text"), [(0.23, "230 ms"), (0.9999, "1 s"), (38, "38 s"), (220, "220 s"), (900, "15 min"), (0, "0 s")]
)
def test_milliseconds_below_one_second(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(42, "42 s"), (220, "3 min 40 s"), (3600, "1 h"), (7500, "2 h 5 min"), (90000, "1 d 1 h")]
)
def test_durations_are_for_people(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0, "0 %"), (0.0001, "< 0.1 %"), (0.0602, "6 %"), (0.0595, "5.9 %"), (0.71, "71 %"), (0.9996, "99.9 %"), (1, "100 %")]
)  # fmt: skip
def test_a_ratio_that_is_not_zero_never_reads_as_zero_nor_as_whole(ratio: float, text: str) -> None:
    assert percent(ratio) == text


def interval(lo: float, hi: float, flags: tuple[str, ...] = ()) -> QuantileInterval:
    return QuantileInterval(0.95, (lo + min(hi, lo + 1)) / 2, lo, hi, 100.0, flags)  # type: ignore[arg-type]


def test_quantiles_read_as_the_bucket_that_holds_them() -> None:
    assert interval_text(interval(2.5, 5)) == "2.5-5 s"
    assert interval_text(interval(0.25, 0.5)) == "250-500 ms"
    assert interval_text(interval(0.75, 1)) == "750 ms-1 s"
    assert interval_text(interval(10, float("inf"), ("last_bucket",))) == "> 10 s"
    assert interval_text(interval(0, 0.001, ("first_bucket",))) == "up to 1 ms"


def test_no_value_is_a_word_and_zero_is_a_number() -> None:
    assert figure_text(Figure("value", 0.0, "requests", "measured")) == "0 requests"
    assert figure_text(Figure("no_data", None, "requests", "measured")) == "no data"
    assert figure_text(Figure("not_scraped", None, "requests", "measured")) == "not scraped"
    assert figure_text(Figure("not_in_version", None, "requests", "measured")) == "not in this engine version"
    assert amount(0.38, "ratio") == ("38", "%")
    assert amount(38, "seconds") == ("38", "s")


def test_names_read_as_words_and_keep_their_capitals() -> None:
    assert opening(name_text("kv_window_too_long")) == "KV window too long"
    assert opening(name_text("oom_at_start")) == "OOM at start"
    assert name_text("latency_slo") == "latency SLO"
    assert name_text("num_gpu_blocks") == "num GPU blocks"


def test_what_averaging_would_say_is_in_the_units_of_the_table() -> None:
    p99 = QuantileFigure("value", interval(0.08, 0.1), "seconds")
    average = Figure("value", 0.117, "seconds", "derived")
    nothing = Figure("no_data", None, "seconds", "derived")
    ranking = Ranking("time_to_first_token", "seconds", (), p99, p99, average, 9.0, average, "", 900_000)
    assert averaging_text(ranking) == "A mean of p99s would say 117 ms; the fleet's p99 is 80-100 ms."
    assert averaging_text(replace(ranking, mean_of_p99s=nothing)) == ""
