"""overload, seat_limited and prefill_limited: requests wait although blocks are free.

A waiting request is passed over for four reasons only (scheduler facts C2-C8): a preemption in the same step, no budget
left, no seat left, no blocks. The first and last are KV's; what remains is told apart by who sits at the ceiling, by
how many requests are in prefill, and by what the batch does to the token gap.
"""

from __future__ import annotations

from runbooks.causes.kv import blocks_short
from runbooks.causes.wait import wait_words
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.wording import digits

READS = frozenset({"requests_running", "requests_waiting", "time_to_first_token"})
EXPLAINS = frozenset({"client_aborts", "engine_slow"})
CANNOT_KNOW = ("max_num_seqs and max_num_batched_tokens: 0.11.0 exports neither",)


def queue_without_kv(scene: Scene) -> list[Suspicion]:
    """One suspicion per rank with a standing queue that is not KV's."""
    return [
        _suspect(reading)
        for place, reading in scene.readings.items()
        if scene.state(place) in ("serving", "prefill_only") and reading.queued and not blocks_short(reading)
    ]


def _suspect(reading: Reading) -> Suspicion:
    draining = reading.drains_in_seconds
    clears = f"; it drains and clears in about {draining:.0f} s" if draining is not None else ""
    waits = (
        f"{wait_words(reading)}; arrivals about {digits(reading.arrivals)}/s, "
        f"first tokens {digits(reading.rate('time_to_first_token'))}/s{clears}"
    )
    cause, evidence, against, runner_up = _cause(reading)
    return Suspicion(
        cause=cause,
        confidence="likely",
        places=(reading.place,),
        since_ms=reading.queue_since_ms,
        evidence=(waits, *evidence),
        against=against,
        runner_up=runner_up,
        separating_check={
            "overload": "raise max_num_seqs on one replica under the same load: throughput that does not rise is overload",
            "seat_limited": "raise max_num_seqs on one replica under the same load: throughput that rises was short of seats",
            "prefill_limited": "compare prompt tokens per step with max_num_batched_tokens in the start-up log",
        }[cause],
        cannot_know=CANNOT_KNOW if reading.seats is None else CANNOT_KNOW[:0],
        reads=READS,
        explains=EXPLAINS,
    )


def _cause(reading: Reading) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    """(cause, evidence, against, runner-up) for a queue with room in the KV pool."""
    room = f"KV usage {reading.kv_median:.0%}: blocks are free"
    ceiling = f"{reading.ceiling:.0f}" + (" (configured)" if reading.seats is not None else " (highest seen)")
    share = reading.batch_share_of_gap
    limit = reading.limits("waiting_growth", "batch_share_of_gap")
    in_prefill = reading.requests_in_prefill
    gap = _gap_words(reading)
    if _budget_is_full(reading) and not (reading.pinned and share < limit and not _chunked(reading)):
        evidence = [
            f"{in_prefill:.1f} requests are in prefill on average: every step is filled by prompt tokens",
            f"{reading.prompt_share:.0%} of the computed tokens are prompt tokens",
            room,
        ]
        return "prefill_limited", tuple(evidence), (), "overload"
    if reading.pinned:
        pinned = f"running stays at its ceiling of {ceiling}"
        if share != share:
            why = "no quiet time before to compare the token gap with"
            return "overload", (pinned, room, gap), (why,), "seat_limited"
        if share < limit:
            return "seat_limited", (pinned, room, f"{gap}: the batch makes {share:.0%} of the gap"), (), "overload"
        return (
            "overload",
            (pinned, room, f"{gap}: the batch makes {share:.0%} of the gap, more seats would not help"),
            (),
            "seat_limited",
        )
    return (
        "overload",
        (room, gap),
        (f"running is below its ceiling of {ceiling}: seats are free",),
        "prefill_limited",
    )


def _chunked(reading: Reading) -> bool:
    return reading.steps_per_prefill >= reading.limits("waiting_growth", "steps_per_prefill")


def _budget_is_full(reading: Reading) -> bool:
    """Whether prompts fill every step.

    Told by the tokens per step where the operator gave the budget. Else: some request is in prefill at any time, and
    either its prompt is cut into chunks (what cuts it is the budget) or nearly all computed tokens are prompt tokens.
    """
    if reading.token_budget is not None and reading.tokens_per_step == reading.tokens_per_step:
        return reading.tokens_per_step >= reading.limits("waiting_growth", "budget_used_ratio") * reading.token_budget
    if not reading.requests_in_prefill >= reading.limits("waiting_growth", "requests_in_prefill"):
        return False
    return _chunked(reading) or reading.prompt_share >= reading.limits("waiting_growth", "prompt_share")


def _gap_words(reading: Reading) -> str:
    now, before = reading.gap_seconds, reading.gap_before_seconds
    if before != before or now != now:
        return f"token gap {digits(1000 * now)} ms" if now == now else "no token gap to be seen"
    return (
        f"token gap {digits(1000 * now)} ms with {digits(reading.running_mean)} running on average, "
        f"{digits(1000 * before)} ms with {digits(reading.running_before)} before"
    )
