"""Numbers as text, the way Go and Prometheus's JSON write them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import orjson

from collectors.model import Floats


def go_plain(value: float) -> str:
    """Shortest digits without an exponent, whatever the size (strconv 'f', -1); what count_values puts into labels."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    mantissa, exponent = text.split("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    whole, _, part = mantissa.partition(".")
    shift = int(exponent)
    if shift >= 0:
        digits = whole + part
        return sign + digits + "0" * (len(whole) + shift - len(digits))
    return sign + "0." + "0" * (-shift - 1) + whole + ("" if part == "0" else part)


def api_number(value: float) -> str:
    """A sample value in Prometheus's API: plain digits, with an exponent only below 1e-6 and from 1e21 on."""
    size = abs(value)
    if size != 0 and (size < 1e-6 or size >= 1e21) and math.isfinite(value):
        mantissa, _, exponent = repr(value).partition("e")
        sign, digits = exponent[0] if exponent[0] in "+-" else "+", exponent.lstrip("+-")
        return f"{mantissa.removesuffix('.0')}e{sign}{digits.zfill(2)}"
    return go_plain(value)


def go_shortest(value: float) -> str:
    """Shortest digits, exponent where that is shorter (strconv 'g', -1)."""
    if not math.isfinite(value):
        return go_plain(value)
    text = repr(value).removesuffix(".0")
    return text if "e" in text else (go_plain(value) if abs(value) >= 1e-4 or value == 0 else text)


def api_numbers(values: Floats) -> list[str]:
    """`api_number` of a whole vector, fast."""
    if not len(values):
        return []
    # orjson writes the same shortest digits; its exponents, '.0' and null for what is not finite differ.
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode()
    parts = (text + ",").replace(".0,", ",").split(",")
    parts.pop()
    if "e" in text:
        parts = [api_number(float(part)) if "e" in part else part for part in parts]
    finite = np.isfinite(values)
    if not finite.all():
        for i in np.flatnonzero(~finite).tolist():
            parts[i] = api_number(float(values[i]))
    return parts


def api_times(times_ms: Iterable[int]) -> list[str]:
    """Epoch milliseconds as the API writes seconds: 1.5, 20, 1700000000.123."""
    return [api_time(t) for t in times_ms]


def api_time(t_ms: int) -> str:
    """One instant in the API's form."""
    sign, size = ("-", -t_ms) if t_ms < 0 else ("", t_ms)
    seconds, rest = divmod(size, 1000)
    return f"{sign}{seconds}" if not rest else f"{sign}{seconds}." + f"{rest:03d}".rstrip("0")
