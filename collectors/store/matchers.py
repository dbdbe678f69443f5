"""Label matchers with Prometheus's regular expressions: RE2 syntax, anchored at both ends, `.` matches a newline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import re2  # type: ignore[import-untyped]

MatchOp = Literal["=", "!=", "=~", "!~"]


class BadPattern(ValueError):
    """A regular expression that RE2 does not accept."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Any:
    """The compiled RE2 pattern; use `.fullmatch`. Raises BadPattern."""
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    try:
        return re2.compile(pattern, options)
    except re2.error as why:
        text = why.args[0].decode("utf-8", "replace") if why.args and isinstance(why.args[0], bytes) else str(why)
        raise BadPattern(f"bad regular expression {pattern!r}: {text}") from None


@dataclass(frozen=True)
class Matcher:
    """One condition on one label. A missing label reads as the empty string."""

    name: str
    op: MatchOp
    value: str

    def matches(self, value: str) -> bool:
        """Whether a label value satisfies the condition."""
        if self.op == "=":
            return value == self.value
        if self.op == "!=":
            return value != self.value
        try:
            found = compile_pattern(self.value).fullmatch(value) is not None
        except UnicodeEncodeError:  # a label value that was no UTF-8
            found = compile_pattern(self.value).fullmatch(value.encode("utf-8", "replace").decode()) is not None
        return found if self.op == "=~" else not found

    def matches_empty(self) -> bool:
        """Whether a series without the label satisfies the condition."""
        return self.matches("")


def matches_all(matchers: tuple[Matcher, ...], labels: Mapping[str, str]) -> bool:
    """Whether a label set satisfies every condition."""
    return all(m.matches(labels.get(m.name, "")) for m in matchers)
