"""A bar while a large recording is read: shown only when that takes longer than a moment, gone when the page stands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from collectors.progress import telling_progress

AFTER_SECONDS = 0.7
EVERY_SECONDS = 0.1
"""No more often than anybody sees."""


@contextmanager
def shown_while_reading(after_seconds: float = AFTER_SECONDS) -> Iterator[None]:
    """Whatever reads an incident file meanwhile, in this script run, moves a bar at the place where the page waits for it."""
    bar: DeltaGenerator | None = None
    began: float | None = None
    last = 0.0

    def tell(share: float, words: str) -> None:
        nonlocal bar, began, last
        now = time.monotonic()
        began = now if began is None else began
        if now - began < after_seconds or now - last < EVERY_SECONDS:
            return
        last = now
        bar = bar or st.empty()
        bar.progress(min(1.0, share), text=f"Opening the recording: {words}")

    with telling_progress(tell):
        try:
            yield
        finally:
            if bar is not None:
                bar.empty()
