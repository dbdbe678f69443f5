"""A query laid out for reading, as `format_query` answers it."""

from __future__ import annotations

import re

import promql_parser

from collectors.store.promql.lexing import NEGATIVE_AT_SECONDS, mended
from collectors.store.promql.parsing import parse

_AT = re.compile(r"@ (\d+\.\d{3})\b")


def formatted(text: str) -> str:
    """The query in promql-parser's layout, lines of at most 100 characters. Raises PromQLError."""
    parse(text)  # the checks and messages of a query that is run
    return _AT.sub(_mended_back, str(promql_parser.parse(mended(text)).prettify()))


def _mended_back(found: re.Match[str]) -> str:
    """A negative instant went through the parser as one far in the future."""
    seconds = float(found.group(1))
    return f"@ -{seconds - NEGATIVE_AT_SECONDS:.3f}" if seconds > NEGATIVE_AT_SECONDS / 2 else found.group()
