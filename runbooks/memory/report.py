"""The ledger's answer for a whole log: the last failed attempt, all attempts under `attempts` (design: `ledger --json`, schema 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from runbooks.memory.account import Account, build_account
from runbooks.memory.advice import Advice
from runbooks.memory.advice_device import activation, fragmentation, graphs, other_process, outside, sampler, weights
from runbooks.memory.advice_other import host, not_memory, undetermined
from runbooks.memory.advice_start import free_short, freed, negative, no_blocks, window
from runbooks.memory.classes import Verdict, classify
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


def advise(verdict: Verdict, attempt: Attempt, account: Account) -> Advice:
    advice = Advice()
    _WRITERS[verdict.name](advice, verdict, attempt, account.numbers)
    advice.says += account.notes
    if account.identity.holds is False:
        advice.says.append(
            f"the account does not add up: {account.identity.difference_gib} GiB differ, more than rounding; lines of two starts may be mixed"
        )
    return advice


_WRITERS: dict[str, Callable[[Advice, Verdict, Attempt, dict[str, float]], None]] = {
    "kv_window_too_long": window,
    "negative_kv": negative,
    "no_kv_blocks": no_blocks,
    "startup_free_memory_short": free_short,
    "memory_freed_during_profiling": freed,
    "sampler_warmup_oom": sampler,
    "graph_capture_oom": graphs,
    "runtime_oom_activation": activation,
    "runtime_oom_fragmentation": fragmentation,
    "runtime_oom_outside_pytorch": outside,
    "other_process": other_process,
    "weights_do_not_fit": weights,
    "host_oom": host,
    "not_memory": not_memory,
    "undetermined": undetermined,
}
CLASSES = tuple(_WRITERS)
