"""How many of something, in words."""

from __future__ import annotations


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1, "replica"` -> '1 replica', `2, "replica"` -> '2 replicas'; thousands with commas; `plural` where an s is not enough."""
    shown = f"{number:,.0f}" if float(number).is_integer() else f"{number:g}"
    return f"{shown} {noun if shown == '1' else plural or noun + 's'}"


def unit_of(shown: str, unit: str) -> str:
    """The unit behind a number as it is shown: '1' of 'requests' is a 'request'; a unit that is no plural stays."""
    return unit[:-1] if shown == "1" and unit in ("requests", "replicas", "tokens", "blocks") else unit
