"""What has to be mended in a query's text before promql-parser 0.12 sees it.

Back-quoted strings would have their escapes processed, a negative `@` instant panics, and experimental syntax is refused
without saying which: one pass over the tokens re-quotes, shifts and names them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collectors.store.promql.errors import bad, unsupported

NEGATIVE_AT_SECONDS = 200_000_000_000.0
"""`@ -x` is written as `@ (this + x)`: the year 8307, which no data has. Real instants beyond half of it are refused."""

MAX_DEPTH = 150
MAX_OPERATORS = 1000
LONGEST_SECONDS = 2.0**63 / 1e9
"""Prometheus's durations are nanoseconds in an int64: 292 years."""
_WORD_OPERATORS = frozenset(("and", "or", "unless", "atan2"))

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
  | (?P<back>`[^`]*`)
  | (?P<double>"(?:\\.|[^"\\\n])*")
  | (?P<single>'(?:\\.|[^'\\\n])*')
  | (?P<number>(?:0[xX][0-9a-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)(?:(?:ms|[smhdwy])(?:\d+(?:ms|[smhdwy]))*)?)
  | (?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DURATION_UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_BYTE_ESCAPE = re.compile(r"\\(?:x|[0-7]{3})")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    **{"a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v"},
    **{"\\": b"\\", "'": b"'", '"': b'"'},
}
_EXPERIMENTAL_WORDS = {"anchored": "the modifier 'anchored'", "smoothed": "the modifier 'smoothed'"}
_EXPERIMENTAL_CALLS = {
    "fill": "the modifier 'fill'",
    "fill_left": "the modifier 'fill_left'",
    "fill_right": "the modifier 'fill_right'",
}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def tokens_of(text: str) -> list[_Token]:
    """Tokens of a query, in order; spaces and comments included. Raises PromQLError on an unterminated string."""
    out = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "other"
        if kind == "other" and match.group() in "`\"'":
            raise bad(f"parse error: unterminated string {match.group()} at character {match.start() + 1}")
        out.append(_Token(kind, match.group()))
    return out


def mended(text: str) -> str:
    """The same query in a form that promql-parser reads rightly. Raises PromQLError naming experimental syntax."""
    tokens = tokens_of(text)
    _refuse_too_deep(tokens)
    out: list[str] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token.kind == "back":
            out.append(_double_quoted(token.text[1:-1]))
        elif token.kind in ("double", "single") and _BYTE_ESCAPE.search(token.text):
            out.append(_double_quoted(_unescaped(token.text[1:-1])))
        elif token.text == "@" and token.kind == "other":
            at, i = _at(tokens, i)
            out.append(at)
        else:
            out.append(token.text)
            if token.kind == "word":
                _refuse_experimental(tokens, i)
        i += 1
    return "".join(out)


def _refuse_too_deep(tokens: list[_Token]) -> None:
    """The parser's own recursion ends the process on expressions nested a few thousand deep; huge ranges make it panic."""
    depth = operators = ranges = 0
    for token in tokens:
        length = token.text.lstrip(":")  # in [5m:1m] the colon looks like the beginning of a name
        if ranges and length[:1].isdigit() and number_seconds(length) > LONGEST_SECONDS:
            raise bad(f"parse error: duration out of range: {length}")
        if token.kind == "other":
            ranges += (token.text == "[") - (token.text == "]")
            depth += (token.text in "([{") - (token.text in ")]}")
            operators += token.text in "+-*/%^=!<>"
        elif token.kind == "word":
            operators += token.text.lower() in _WORD_OPERATORS
        if depth > MAX_DEPTH or operators > MAX_OPERATORS:
            raise bad(
                f"parse error: the expression is too big: at most {MAX_DEPTH} nested brackets and {MAX_OPERATORS} operators are read"
            )


def _unescaped(body: str) -> str:
    """The text of a Go string whose \\x and octal escapes name bytes, not characters; U+FFFD for what is not UTF-8."""
    out = bytearray()
    at = 0
    for match in _ESCAPE.finditer(body):
        out += body[at : match.start()].encode("utf-8", "surrogatepass")
        code = match.group(1)
        if code[0] == "x":
            out.append(int(code[1:], 16))
        elif code[0] in "uU":
            out += chr(int(code[1:], 16)).encode("utf-8", "replace")
        elif code[0].isdigit():
            if int(code, 8) > 255:
                raise bad(f"parse error: octal escape \\{code} is above 255")
            out.append(int(code, 8))
        elif code in _SIMPLE_ESCAPES:
            out += _SIMPLE_ESCAPES[code]
        else:
            raise bad(f"parse error: unknown escape sequence \\{code}")
        at = match.end()
    out += body[at:].encode("utf-8", "surrogatepass")
    return out.decode("utf-8", "replace")


def _double_quoted(raw: str) -> str:
    return '"' + raw.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r") + '"'


def _at(tokens: list[_Token], at: int) -> tuple[str, int]:
    """The text for an `@` and its number, and the index of the last token that belongs to it."""
    i = at + 1
    sign = 1
    while i < len(tokens) and (tokens[i].kind == "space" or tokens[i].text in "+-"):
        sign = -sign if tokens[i].text == "-" else sign
        i += 1
    if i >= len(tokens) or tokens[i].kind != "number":
        return "@", at
    seconds = number_seconds(tokens[i].text)
    if seconds >= NEGATIVE_AT_SECONDS / 2:
        raise bad(f"parse error: timestamp out of bounds for @ modifier: {tokens[i].text} (seconds are expected)")
    return (f"@ {tokens[i].text}" if sign > 0 else f"@ {NEGATIVE_AT_SECONDS + seconds:.3f}"), i


def number_seconds(text: str) -> float:
    """A PromQL number, or a duration as seconds."""
    parts = re.findall(r"(\d+)(ms|[smhdwy])", text)
    if parts and "".join(n + u for n, u in parts) == text:
        return sum(int(n) * _DURATION_UNIT_MS[u] for n, u in parts) / 1000
    plain = text.replace("_", "")
    try:
        return float(int(plain, 16)) if plain.lower().startswith("0x") else float(plain)
    except ValueError:
        raise bad(f"parse error: bad number or duration syntax: {text!r}") from None


def _refuse_experimental(tokens: list[_Token], i: int) -> None:
    word = tokens[i].text.lower()
    before = next((t.text for t in reversed(tokens[:i]) if t.kind != "space"), "")
    after = next((t.text for t in tokens[i + 1 :] if t.kind != "space"), "")
    ends_operand = before.endswith(("]", ")", "}")) or bool(re.fullmatch(r"[a-zA-Z_:][\w:]*|\d\w*", before))
    if word in _EXPERIMENTAL_WORDS and ends_operand and after not in ("(", "=", "=~", "{"):
        raise unsupported(f"{_EXPERIMENTAL_WORDS[word]} is experimental and not supported")
    if word in _EXPERIMENTAL_CALLS and after == "(":
        raise unsupported(f"{_EXPERIMENTAL_CALLS[word]} is experimental and not supported")
