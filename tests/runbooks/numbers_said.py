"""Figures in a sentence: `1,914 tokens/s` -> "1,914"."""

from __future__ import annotations

import re

_FIGURE = re.compile(r"(?<![\w.,/-])\d[\d,]*(?:\.\d+)?(?!\w|[.,]\d)")


def figures(text: str) -> list[str]:
    """Numbers as they are written; parts of names (`p95`, `4xx`, `/v1`) are none."""
    return _FIGURE.findall(text)
