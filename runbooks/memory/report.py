"""The ledger's answer for a whole log: the last failed attempt, all attempts under `attempts` (design: `ledger --json`, schema 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runbooks.memory.account import build_account
from runbooks.memory.advice import advise
from runbooks.memory.classes import classify
from runbooks.memory.reader import Attempt, read_log


def ledger(lines: Iterable[str]) -> dict[str, Any]:
    """Reads a start-up log or an out-of-memory message. One pass, bounded memory, never raises on any text.

    Figures ending in `_gib` are GiB (2^30), `_tokens` tokens, ratios 0..1. Nothing that the text does not hold is made up: it stands in `missing`.
    """
    attempts = read_log(lines)
    answers = [_answer(attempt) for attempt in attempts]
    failed = [answer for attempt, answer in zip(attempts, answers, strict=True) if attempt.failed]
    chosen = failed[-1] if failed else answers[-1]
    if len(answers) > 1:
        chosen = {
            **chosen,
            "says": [
                *chosen["says"],
                f"{len(answers)} start attempts in this text; this is the last that failed"
                if failed
                else f"{len(answers)} starts in this text",
            ],
        }
    return {"schema": 1, **chosen, "attempts": answers if len(answers) > 1 else []}


def _answer(attempt: Attempt) -> dict[str, Any]:
    account = build_account(attempt)
    verdict = classify(attempt, account.numbers.get("available_kv_gib"))
    advice = advise(verdict, attempt, account)
    return {
        "class": verdict.name,
        "engine_version": attempt.version,
        "first_line": attempt.first_line,
        "line": verdict.failure.line if verdict.failure else None,
        "phase": verdict.phase,
        "numbers": {
            name: int(value) if float(value).is_integer() and not name.endswith("_gib") else value
            for name, value in sorted(account.numbers.items())
        },
        "ledger": [
            {"rank": entry.rank, "name": entry.name, "gib": entry.gib, "origin": entry.origin, "line": entry.line}
            for entry in account.entries
        ],
        "identity": {"holds": account.identity.holds, "difference_gib": account.identity.difference_gib},
        "fixes": advice.fixes,
        "says": advice.says,
        "missing": list(dict.fromkeys(advice.missing)),
    }
