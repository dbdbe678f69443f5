"""Numbers as an operator reads them: a unit always, three significant digits, milliseconds below a second."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from collectors.counting import unit_of
from collectors.figures import STATUS_WORDS, Figure, QuantileFigure
from collectors.quantile_values import QuantileInterval

UNIT_WORDS = {
    "requests": "requests",
    "requests/s": "/s",
    "tokens/s": "tok/s",
    "per minute": "/min",
    "replicas": "replicas",
}


def digits(value: float) -> str:
    """At most three significant digits, thousands as k and M."""
    size = abs(value)
    if not math.isfinite(value):
        return "-"
    if size >= 999_500:
        return f"{_three(value / 1e6)}M"
    if size >= 999.5:
        return f"{_three(value / 1e3)}k"
    return _three(value)


def _three(value: float) -> str:
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 4)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def seconds(value: float) -> str:
    if 0 < abs(value) < 0.9995:
        return f"{digits(value * 1000)} ms"
    if abs(value) >= 600:
        return duration(value)
    return f"{digits(value)} s"


def duration(value: float) -> str:
    """A length of time for people: 42 s, 3 min 40 s, 2 h 5 min, 3 d."""
    total = round(abs(value))
    for size, big, small, small_word in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if total >= size:
            rest = total % size // small
            return f"{total // size} {big}" + (f" {rest} {small_word}" if rest else "")
    return f"{total} s"


def percent(ratio: float) -> str:
    return f"{_hundredths(ratio)} %"


def _hundredths(ratio: float) -> str:
    """Percent with one decimal below ten and near a hundred, none between; what is not zero never reads as zero."""
    value = ratio * 100
    if 0 < abs(value) < 0.05:
        return "< 0.1"
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) < 9.95 else f"{value:.0f}"


def amount(value: float, unit: str) -> tuple[str, str]:
    """The number and the unit behind it, apart: ('38', 's'), ('71', '%'), ('3.1k', 'tok/s')."""
    if unit == "seconds":
        number, _, word = seconds(value).partition(" ")
        return number, word
    if unit == "ratio":
        return _hundredths(value), "%"
    number = digits(value)
    return number, unit_of(number, UNIT_WORDS.get(unit, unit))


def figure_text(figure: Figure) -> str:
    """The figure with its unit, or the word for why there is none."""
    if figure.value is None:
        return STATUS_WORDS[figure.status]
    return " ".join(amount(figure.value, figure.unit)).rstrip()


def interval_text(interval: QuantileInterval) -> str:
    """'2.5-5 s', '250-500 ms', '> 10 s', 'up to 1 ms'."""
    low, high = interval.lo, interval.hi
    if not math.isfinite(high):
        return f"> {seconds(low)}"
    if "first_bucket" in interval.flags or not math.isfinite(low):
        return f"up to {seconds(high)}"
    (low_number, low_unit), (high_number, high_unit) = amount(low, "seconds"), amount(high, "seconds")
    if low_unit == high_unit or low == 0:
        return f"{low_number}-{high_number} {high_unit}"
    return f"{low_number} {low_unit}-{high_number} {high_unit}"


def quantile_text(figure: QuantileFigure) -> str:
    return interval_text(figure.interval) if figure.interval is not None else STATUS_WORDS[figure.status]


def age(value: float | None) -> str:
    return "unknown" if value is None else duration(max(0.0, value)) if value >= 120 else f"{max(0.0, value):.0f} s"


def clock(at_ms: int) -> str:
    """14:03:20 (UTC)."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")


def day_and_clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


CAUSE_WORDS = {
    "healthy": "nothing wrong",
    "overload": "overload",
    "seat_limited": "seats full",
    "kv_limited": "KV cache full",
    "prefill_limited": "token budget goes to prompts",
    "unadmittable_head": "head of the queue cannot be admitted",
    "sequence_hog": "a few very long sequences hold the cache",
    "engine_slow": "engine slower than before",
    "replica_imbalance": "uneven load between replicas",
    "rank_imbalance": "uneven load between ranks",
    "engine_stalled": "engine stalled",
    "stale_gauges": "gauges frozen since the last step",
    "replica_down": "replica down",
    "replica_restarted": "replica restarted",
    "admission_rejects": "requests refused at admission",
    "auth_rejects": "requests refused for their key",
    "client_aborts": "clients give up",
    "cold_prefix_cache": "prefix cache cold",
    "metrics_missing": "metrics missing",
    "metrics_untrustworthy": "metrics not to be trusted",
}


def opening(text: str) -> str:
    """The text with a capital first letter and everything else as it stands (KV stays KV)."""
    return text[:1].upper() + text[1:]


CAPITALS = {word.lower(): word for word in ("KV", "OOM", "CPU", "GPU", "SLO", "API", "HTTP")}


def name_text(name: str) -> str:
    """An identifier as words: kv_window_too_long is 'KV window too long'."""
    return " ".join(CAPITALS.get(word, word) for word in name.split("_"))


def cause_text(cause: str) -> str:
    """A cause in plain words; an unknown one as it is, without underscores."""
    return CAUSE_WORDS.get(cause, name_text(cause))
