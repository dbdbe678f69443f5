"""Addresses: which pages there are, and links that a colleague can open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import streamlit as st

FILES = {
    "": "fleet.py",
    "fleet": "fleet.py",
    "replica": "replica.py",
    "latency": "latency.py",
    "diagnose": "diagnose.py",
    "runbook": "runbook.py",
    "memory": "memory.py",
    "incidents": "incidents.py",
    "simulator": "simulator.py",
}
"""Address of a page -> its file beside the router."""


def link(page: str, **params: str | None) -> str:
    """A relative address such as `runbook?id=waiting_growth&at=...`; None values are left out."""
    query = urlencode({name: value for name, value in params.items() if value})
    return (page or "./") + (f"?{query}" if query else "")


def follow(address: str) -> None:
    """Go to an address that `link` made, inside this session. An unknown page is ignored."""
    page, _, query = address.partition("?")
    file = FILES.get(page.strip("./"))
    if file is not None:
        st.switch_page(file, query_params=dict(parse_qsl(query)))


def given(name: str, limit: int = 500) -> str:
    """A query parameter, cut to a sane length; '' when it is absent. Hostile until it was looked up somewhere."""
    value = st.query_params.get(name, "")
    return value[:limit]


def merged(kept: Mapping[str, str], **params: str | None) -> dict[str, str]:
    both: dict[str, Any] = {**kept, **params}
    return {name: value for name, value in both.items() if value}
