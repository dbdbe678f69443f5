"""The wait in words, for every cause that has a queue."""

from __future__ import annotations

from runbooks.reading import Reading
from runbooks.wording import digits


def wait_words(reading: Reading) -> str:
    """How many wait and for how long: both from the same scrapes, so that the line adds up."""
    if not reading.wait_seconds < 1e6:
        return f"{digits(reading.waiting_mean)} wait, no end by Little's law"
    return (
        f"{digits(reading.waiting_mean)} wait, {digits(reading.wait_seconds)} s by Little's law (newest three scrapes)"
    )
