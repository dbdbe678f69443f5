"""PromQL by signal name: `rate($time_to_first_token_count[$w])` becomes the PromQL of a dialect, at a place.

`$signal` is a vector selector; matchers may follow in braces, as in `$http_requests{status="4xx"}`. `$parameter` is a
word of a closed list (`PARAMETERS`). PromQL itself has no `$`, and inside string literals nothing is replaced. The place
and its label values are put into the selector as quoted matchers, so no value can end a string or open a selector.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from collectors.promql_text import quote_label_value

PARAMETERS: Mapping[str, str] = {
    "w": "the rate window, a duration that spans at least four scrapes",
    "lookback": "how far back a comparison looks, a duration",
    "replica": "labels that make a replica, comma-separated, for `by (...)`",
    "rank": "labels that make a rank of a replica",
    "first_token_slo": "matcher le=... of the bucket at the time-to-first-token objective",
    "token_gap_slo": "matcher le=... of the bucket at the inter-token objective",
    "first_token_budget": "share of requests that may miss the time-to-first-token objective",
    "token_gap_budget": "share of token gaps that may miss the inter-token objective",
    "first_token_objective": "the time-to-first-token objective, seconds",
    "seats": "configured max_num_seqs per rank; NaN when it is not configured",
    "desired": "configured number of replicas; NaN when it is not configured",
}
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)|\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<dollar>\$)""",
    re.DOTALL,
)
_MATCHERS = re.compile(r"\{((?:[^{}\"'`]|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)*)\}", re.DOTALL)


class TemplateError(ValueError):
    """A template names a signal or parameter that does not exist."""


@dataclass(frozen=True)
class SeriesName:
    """What a signal's series is called in a dialect; `ranked` = it carries the rank label."""

    metric: str
    ranked: bool


class Names(Protocol):
    """Signal name (with _bucket, _sum or _count for a part of a histogram) -> series name. Raises KeyError."""

    def __getitem__(self, signal: str, /) -> SeriesName: ...


@dataclass(frozen=True)
class Binding:
    """Everything a template needs to become PromQL.

    place_matchers go into every selector, rank_matchers only into selectors of series that carry the rank label. Both
    are finished matcher texts such as `instance="a"`.
    """

    names: Names
    parameters: Mapping[str, str]
    place_matchers: tuple[str, ...] = ()
    rank_matchers: tuple[str, ...] = ()


def template_names(template: str) -> Iterator[str]:
    """Every `$name` outside string literals, in order. Raises TemplateError on a lone `$`."""
    for token in _TOKEN.finditer(template):
        if token["dollar"]:
            raise TemplateError("a `$` without a name")
        if token["name"]:
            yield token["name"]


def check_template(template: str, names: Names) -> None:
    """Raises TemplateError when a name is neither a parameter nor a signal, or when no signal is asked for."""
    signals = 0
    for name in template_names(template):
        if name in PARAMETERS:
            continue
        try:
            names[name]
        except KeyError:
            raise TemplateError(f"unknown signal ${name}") from None
        signals += 1
    if not signals:
        raise TemplateError("it asks for no signal")


def resolve(template: str, binding: Binding) -> str:
    """The PromQL of a template for a dialect and place. Raises TemplateError."""
    parts: list[str] = []
    at = 0
    while token := _TOKEN.search(template, at):
        parts.append(_one_line(template[at : token.start()]))
        at = token.end()
        name = token["name"]
        if token["string"]:
            parts.append(token["string"])
        elif name is None:
            raise TemplateError("a `$` without a name")
        elif name in PARAMETERS:
            if name not in binding.parameters:
                raise TemplateError(f"no value for ${name}")
            parts.append(binding.parameters[name])
        else:
            own = _MATCHERS.match(template, at)
            if own:
                at = own.end()
            parts.append(_selector(name, own[1] if own else "", binding))
    parts.append(_one_line(template[at:]))
    return "".join(parts).strip()


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)


def _selector(signal: str, own: str, binding: Binding) -> str:
    try:
        series = binding.names[signal]
    except KeyError:
        raise TemplateError(f"unknown signal ${signal}") from None
    matchers = [resolve_parameters(own.strip().rstrip(","), binding.parameters)] if own.strip() else []
    matchers += binding.place_matchers
    if series.ranked:
        matchers += binding.rank_matchers
    return series.metric + ("{" + ",".join(matchers) + "}" if matchers else "")


def resolve_parameters(text: str, parameters: Mapping[str, str]) -> str:
    """`$parameter` words of a matcher list, outside strings."""

    def value(token: re.Match[str]) -> str:
        if token["string"]:
            return token["string"]
        if token["name"] not in parameters:
            raise TemplateError(f"no value for ${token['name']}")
        return parameters[token["name"]]

    return _TOKEN.sub(value, text)


def one_of(label: str, values: tuple[str, ...]) -> str:
    """A matcher for a label that has exactly one of the values."""
    if len(values) == 1:
        return f"{label}={quote_label_value(values[0])}"
    return f"{label}=~{quote_label_value('|'.join(re_escaped(value) for value in values))}"


def re_escaped(value: str) -> str:
    """RE2-safe escape: only the characters that RE2 lets be escaped."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", value)
