"""Which limit refused a request, by how much, and the smallest change that would pass (design: `admission --json`, schema 1)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from runbooks.memory.framing import unframe
from runbooks.memory.refusal import Context, Refusal
from runbooks.memory.refusals import RULES

MOST_REQUESTS = 1_000
KEYWORDS = (
    "maximum", "max_", "rror", "HTTP", "exist", "empty", "html", "HTML", "must", "cannot", "detail", "tool choice", "token", "busy", "prompt", "Refused", "API",
    "scaling", "Type", "Field", "context", "large", "Too", "Requested", "engine", "stop", "temperature", "model",
)  # fmt: skip
_ACCESS = re.compile(
    r"\"(?:GET|POST|PUT|DELETE|PATCH|OPTIONS|HEAD) (?P<route>\S+) HTTP/[0-9.]+\"(?: (?P<status>[0-9]{3}))?"
)
_STATUS = re.compile(r"(?:^|\s)HTTP(?:/[0-9.]+)? (?P<status>[0-9]{3})\b|Error code: (?P<code>[0-9]{3})")
_BODY_CODE = re.compile(r"[\"']code[\"']: ?(?P<status>[0-9]{3})\b")
_WINDOW = re.compile(
    r"'?max_model_len'?[:=] ?(?P<window>[0-9]+)|--max-model-len[ =](?P<flag>[0-9]+)|Using max model len (?P<used>[0-9]+)"
)
_MAX_TOKENS = re.compile(
    r"request:.*?max_tokens[\"']?[ :=]+(?P<value>[0-9]+)|[\"']max_(?:completion_)?tokens[\"']: ?(?P<json>[0-9]+)"
)


def admission(lines: Iterable[str]) -> dict[str, Any]:
    """Reads error bodies, access-log lines and client reports. One entry in `requests` per refused request, never merged. Never raises on any text."""
    decoder = _Decoder()
    for number, raw in enumerate(lines, 1):
        if any(keyword in raw for keyword in KEYWORDS):
            decoder.take(number, unframe(number, raw).text)
    return decoder.answer()


class _Decoder:
    def __init__(self) -> None:
        self.found: list[tuple[int, Refusal, Context]] = []
        self.bare: list[tuple[int, Refusal, Context]] = []
        self.more = 0
        self.route = ""
        self.status: int | None = None
        self.window: int | None = None
        self.max_tokens: int | None = None
        self.last_signature: tuple[Any, ...] | None = None

    def take(self, number: int, text: str) -> None:
        window = _WINDOW.search(text)
        if window:
            self.window = int(next(group for group in window.groups() if group))
        asked = _MAX_TOKENS.search(text)
        if asked:
            self._client_max_tokens(int(asked["value"] or asked["json"]))
        access = _ACCESS.search(text)
        if access:
            self.route, self.status = access["route"].split("?")[0], int(access["status"]) if access["status"] else None
            self.last_signature = None
        status = _STATUS.search(text)
        if status and not access:
            self.status = int(status["status"] or status["code"])
        code = _BODY_CODE.search(text)
        if code:
            self.status = self.status if self.status and self.status >= 400 else int(code["status"])
        context = Context(self.route, self.status, self.window, self.max_tokens, streamed=text.startswith("data:"))
        for rule in RULES:
            matched = rule.regex.search(text)
            if matched:
                self._keep(number, rule.write(matched, context), context)
                return

    def _client_max_tokens(self, value: int) -> None:
        """A reported max_tokens belongs to the request before it when that one has none; its answer is written again with it."""
        self.max_tokens = value
        if self.found and self.found[-1][1].name == "prompt_too_long" and "max_tokens" not in self.found[-1][1].numbers:
            number, refusal, _ = self.found[-1]
            prompt, limit = int(refusal.numbers["prompt_tokens"]), int(refusal.numbers["limit"])
            refusal.numbers["max_tokens"] = value
            refusal.fixes = [fix for fix in refusal.fixes if "max_model_len_at_least" not in fix["change"]]
            refusal.fix(max_model_len_at_least=prompt + value)
            if value >= limit:
                refusal.says.append(
                    f"max_tokens {value} exceeds the window too: a window of {prompt + value} would be needed for both"
                )

    def _keep(self, number: int, refusal: Refusal, context: Context) -> None:
        if context.status and context.status >= 400:
            refusal.numbers.setdefault("status", context.status)
        if context.streamed or (context.status == 200):
            refusal.says.append(
                "it was a stream: the status was already 200 and the error is an event inside it, so http_requests_total counts a 2xx"
            )
        signature = (refusal.name, *sorted((key, value) for key, value in refusal.numbers.items() if key != "status"))
        if signature == self.last_signature or (
            refusal.name in ("auth", "not_vllm")
            and self.found
            and self.found[-1][1].name == refusal.name
            and not refusal.numbers.keys() - {"status"}
        ):
            return  # the log line and the body of one request, or a status line and its body
        self.last_signature = signature
        if len(self.found) >= MOST_REQUESTS:
            self.more += 1
            return
        self.found.append((number, refusal, context))

    def answer(self) -> dict[str, Any]:
        if not self.found:
            return {
                "schema": 1,
                "class": "undetermined",
                "numbers": {"status": self.status} if self.status else {},
                "fixes": [],
                "says": ["no known refusal was found in this text"],
                "missing": [
                    "the error text with its numbers (the whole body), and the route and status that it came with"
                ],
                "requests": [],
            }
        requests = [
            {
                "class": refusal.name,
                "line": number,
                "route": context.route,
                "side": refusal.side,
                **refusal.numbers,
                "numbers": refusal.numbers,
                "fixes": refusal.fixes,
                "says": refusal.says,
                "missing": refusal.missing,
            }
            for number, refusal, context in self.found
        ]
        first = self.found[0][1]
        alone = len(self.found) == 1
        says = (
            list(first.says)
            if alone
            else [
                f"{len(self.found) + self.more} refused requests in this text, each with its own answer under requests"
            ]
        )
        if alone:
            says.append(_SIDES[first.side])
        shared = dict(self.found[0][1].numbers) if alone else _common([refusal for _, refusal, _ in self.found])
        return {
            "schema": 1,
            "class": first.name,
            "numbers": shared,
            "fixes": first.fixes if alone else [],
            "says": says,
            "missing": first.missing if alone else [],
            "requests": requests,
        }


_SIDES = {
    "client": "the change belongs in the client",
    "server": "the change belongs in the server's start",
    "proxy": "the change belongs in whatever stands in front of the server",
    "other server": "the change belongs to the client or to that other server",
    "nobody": "nothing has to be changed",
}


def _common(refusals: list[Refusal]) -> dict[str, Any]:
    """Figures that every refusal with that figure agrees on (a shared window, for example); sums over requests are never made."""
    names = {"limit", "max_model_len"}
    common: dict[str, Any] = {}
    for name in names:
        values = {refusal.numbers[name] for refusal in refusals if name in refusal.numbers}
        if len(values) == 1:
            common[name] = values.pop()
    return common
