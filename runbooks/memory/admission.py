"""Which limit refused a request, by how much, and the smallest change that would pass (design: `admission --json`, schema 1)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from runbooks.memory.bodies import Piece, pieces
from runbooks.memory.refusal import Context, Refusal, Rule
from runbooks.memory.refusals import RULES
from runbooks.memory.refusals_unread import unread

MOST_REQUESTS = 1_000
NEAR_LINES = 3
"""An access line this close below the server's own error line is about the same request."""

_ACCESS = re.compile(
    r"\"(?:GET|POST|PUT|DELETE|PATCH|OPTIONS|HEAD) (?P<route>\S+) HTTP/[0-9.]+\"(?: (?P<status>[0-9]{3}))?"
)
_STATUS = re.compile(
    r"(?:^|\s)HTTP(?:/[0-9.]+)? (?P<status>[0-9]{3})\b|Error code: (?P<code>[0-9]{3})|\b(?P<client>[45][0-9]{2}) (?:Client|Server) Error: |"
    r"(?:Client|Server) error '(?P<httpx>[45][0-9]{2}) "
)
_BODY_CODE = re.compile(r"[\"']code[\"']: ?[\"']?(?P<status>[45][0-9]{2})\b")
_WINDOW = re.compile(
    r"['\"]?max_model_len['\"]?[:=] ?(?P<window>[0-9]+)|--max-model-len[ =](?P<flag>[0-9]+)|Using max model len (?P<used>[0-9]+)|max_seq_len=(?P<seq>[0-9]+)"
)
_REPORTED = re.compile(r"request:.*?max_tokens[\"']?[ :=]+(?P<value>[0-9]+)")
_SENT = re.compile(
    r"[\"']max_(?:completion_)?tokens[\"']: ?(?P<value>[0-9]+)|create\(.*?\bmax_(?:completion_)?tokens=(?P<argument>[0-9]+)"
)
_CALLED = re.compile(
    r"\bcurl\b.*?(?P<url>/v1/[a-z_/]+)|^> [A-Z]+ (?P<verbose>/\S+) HTTP/|\b(?P<client>chat\.completions|completions|embeddings)\.create\("
)


def admission(lines: Iterable[str]) -> dict[str, Any]:
    """Reads error bodies, access-log lines and client reports. One entry in `requests` per refused request, never merged. Never raises on any text."""
    decoder = _Decoder()
    for piece in pieces(lines):
        decoder.take(piece)
    return decoder.answer()


@dataclass
class _Found:
    """One refusal and what it was written from, so that a line that follows can add to it."""

    number: int
    refusal: Refusal
    context: Context
    rule: Rule
    match: re.Match[str]
    from_access: bool


class _Decoder:
    def __init__(self) -> None:
        self.found: list[_Found] = []
        self.more = 0
        self.route = ""
        self.status: int | None = None
        self.window: int | None = None
        self.max_tokens: int | None = None
        self.from_access = False
        self.last_signature: tuple[Any, ...] | None = None
        self.refused: dict[tuple[str, int], int] = {}

    def take(self, piece: Piece) -> None:
        text = piece.text
        window = _WINDOW.search(text)
        if window:
            self.window = int(next(group for group in window.groups() if group))
        reported = _REPORTED.search(text)
        sent = _SENT.search(text)
        if reported:
            self._reported_max_tokens(int(reported["value"]))
        elif sent:
            self.max_tokens = int(sent["value"] or sent["argument"])
        called = _CALLED.search(text)
        if called:
            self.route = called["url"] or called["verbose"] or "/v1/" + called["client"].replace(".", "/")
        if self._status_line(piece):
            return
        code = _BODY_CODE.search(text)
        if code:
            self.status = int(code["status"])
        context = Context(
            piece.route or self.route, self.status, self.window, self.max_tokens, streamed=text.startswith("data:")
        )
        for rule in RULES:
            matched = rule.regex.search(text)
            if matched:
                if piece.several:
                    self.last_signature = None
                self._keep(_Found(piece.number, rule.write(matched, context), context, rule, matched, self.from_access))
                return

    def _status_line(self, piece: Piece) -> bool:
        """Takes the route and status of an access line or an HTTP head; True when the line is dealt with."""
        access = _ACCESS.search(piece.text)
        status = _STATUS.search(piece.text)
        if not access and not status:
            return False
        if access:
            self.route = access["route"].split("?")[0]
            number = int(access["status"]) if access["status"] else None
        else:
            assert status is not None
            number = int(status["status"] or status["code"] or status["client"] or status["httpx"])
        self.status = number
        if number and number >= 400 and len(self.refused) < MOST_REQUESTS:
            self.refused[(self.route, number)] = self.refused.get((self.route, number), 0) + 1
        last = self.found[-1] if self.found else None
        near = last is not None and not last.from_access and piece.number - last.number <= NEAR_LINES
        if access and last and near and number in (400, 404):
            self._rewrite(last, replace(last.context, route=self.route, status=number))
            last.from_access = True
            return True
        self.from_access = access is not None
        self.last_signature = None
        return access is not None and number is not None and number < 400  # served: nothing to explain on this line

    def _rewrite(self, found: _Found, context: Context) -> None:
        found.context = context
        found.refusal = found.rule.write(found.match, context)
        if context.status and context.status >= 400:
            found.refusal.numbers.setdefault("status", context.status)
        self.last_signature = _signature(found.refusal)

    def _reported_max_tokens(self, value: int) -> None:
        """A reported max_tokens belongs to the request above it when that one has none, else to the next."""
        last = self.found[-1] if self.found else None
        if last is None or "max_tokens" in last.refusal.numbers or last.context.max_tokens is not None:
            self.max_tokens = value
        elif last.refusal.name in ("prompt_too_long", "misleading_message"):
            self._rewrite(last, replace(last.context, max_tokens=value))

    def _keep(self, found: _Found) -> None:
        refusal, context = found.refusal, found.context
        if context.status and context.status >= 400:
            refusal.numbers.setdefault("status", context.status)
        if refusal.name != "not_vllm" and (context.streamed or context.status == 200):
            refusal.says.append(
                "it was a stream: the status was already 200 and the error is an event inside it, so http_requests_total counts a 2xx"
            )
        signature = _signature(refusal)
        last = self.found[-1].refusal if self.found else None
        same_answer = (
            self.last_signature is not None
            and last is not None
            and refusal.name in ("auth", "not_vllm")
            and last.name == refusal.name
            and not refusal.numbers.keys() - {"status"}
        )
        if signature == self.last_signature or same_answer:
            return  # the log line and the body of one request, or a status line and its body
        self.last_signature = signature
        self.max_tokens = None  # what a client sent belongs to one request
        if len(self.found) >= MOST_REQUESTS:
            self.more += 1
            return
        self.found.append(found)

    def answer(self) -> dict[str, Any]:
        if not self.found:
            return unread(self.refused, self.status)
        requests = [
            {
                "class": one.refusal.name,
                "line": one.number,
                "route": one.context.route,
                "side": one.refusal.side,
                **one.refusal.numbers,
                "numbers": one.refusal.numbers,
                "fixes": one.refusal.fixes,
                "says": one.refusal.says,
                "missing": one.refusal.missing,
            }
            for one in self.found
        ]
        refusals = [one.refusal for one in self.found]
        first = refusals[0]
        alone = len(refusals) == 1
        says = (
            list(first.says)
            if alone
            else [f"{len(refusals) + self.more} refused requests in this text, each with its own answer under requests"]
        )
        if alone:
            says.append(_SIDES[first.side])
        return {
            "schema": 1,
            "class": first.name,
            "numbers": dict(first.numbers) if alone else _common(refusals),
            "fixes": first.fixes if alone else [],
            "says": says,
            "missing": list(dict.fromkeys(name for refusal in refusals for name in refusal.missing)),
            "requests": requests,
        }


_SIDES = {
    "client": "the change belongs in the client",
    "server": "the change belongs in the server's start",
    "proxy": "the change belongs in whatever stands in front of the server",
    "other server": "the change belongs to the client or to that other server",
    "nobody": "nothing has to be changed",
}


def _signature(refusal: Refusal) -> tuple[Any, ...]:
    return (refusal.name, *sorted((key, value) for key, value in refusal.numbers.items() if key != "status"))


def _common(refusals: list[Refusal]) -> dict[str, Any]:
    """Figures that every refusal with that figure agrees on (a shared window, for example); sums over requests are never made."""
    common: dict[str, Any] = {}
    for name in ("limit", "max_model_len"):
        values = {refusal.numbers[name] for refusal in refusals if name in refusal.numbers}
        if len(values) == 1:
            common[name] = values.pop()
    return common
