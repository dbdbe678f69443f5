"""Advice for starts whose KV cache does not fit: window, blocks, free memory."""

from __future__ import annotations

import math
import re

from runbooks.memory.advice import HIGH_UTILIZATION, SMALL_TOKEN_BUDGET, Advice, gib, hundredths_down, hundredths_up
from runbooks.memory.classes import OTHERS_WORTH_NAMING_GIB, Verdict
from runbooks.memory.reader import Attempt

WORTH_STARTING = 0.2
"""A smaller share of a device holds no model that was meant for most of it."""
LEAST_POOL_GIB = 0.01
"""More than nothing: at zero the start is refused just the same."""
LOW_SHARE = 0.6
"""At or below this share of the device most of it is meant for somebody else, and the share is the first thing to look at."""


def window(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    window = numbers.get("max_model_len_tokens", 0.0)
    longest = numbers.get("estimated_max_len_tokens", numbers.get("kv_capacity_tokens"))
    if longest is None and _estimate_left_out(verdict, attempt):
        longest = 0.0
    elif longest is None and numbers.get("bytes_per_token", 0) > 0 and numbers.get("available_kv_gib", 0) > 0:
        size = numbers.get("block_size", 16.0)
        longest = math.floor(numbers["available_kv_gib"] * 2**30 / (numbers["bytes_per_token"] * size)) * size
    if "needed_gib" in numbers and "available_kv_gib" in numbers:
        advice.says.append(
            f"one request of max_model_len {window:.0f} needs {numbers['needed_gib']:.2f} GiB of KV cache and {numbers['available_kv_gib']:.2f} GiB are available: "
            f"short by {numbers['short_by_gib']:.2f} GiB; {numbers.get('bytes_per_token', 0):.0f} bytes per token (holds for full attention only)"
        )
    elif longest is not None:
        advice.says.append(
            f"one request of max_model_len {window:.0f} does not fit in a pool of {longest:.0f} tokens: short by {window - longest:.0f} tokens"
        )
    if longest:
        block = numbers.get("block_size", 16.0)
        advice.says.append(
            f"max window {longest:.0f} is the bare limit of the start-up check, which does not count the null block: a full-length request would end one block short and preempt itself"
            + (f"; set {longest - block:.0f}" if longest > block else "")
        )
        advice.fix_window(longest, block, "requests longer than that are refused with HTTP 400", concurrency=1.0)
    elif "available_kv_gib" not in numbers:
        needs = f"needs {numbers['needed_gib']:.2f} GiB" if "needed_gib" in numbers else "needs more"
        advice.says.append(
            f"one request of max_model_len {window:.0f} {needs} of KV cache, more than there is; the message is cut before the figure that decides the longest window"
        )
        advice.missing.append(
            "the rest of the message: the available KV cache memory and the estimated maximum model length"
        )
    else:
        advice.says.append(
            "no window fits at all: not even one token's keys and values, so the weights and the activation peak must shrink first"
        )
    needed, available = numbers.get("needed_gib"), numbers.get("available_kv_gib")
    if needed is not None and available is not None:
        if needed / 2 <= available and not attempt.arguments.get("kv_cache_dtype", "auto").startswith("fp8"):
            advice.fix(
                {"kv_cache_dtype": "fp8"},
                "half the KV bytes, some accuracy; needs hardware and an attention backend that support it",
                needed_gib=round(needed / 2, 2),
            )
        raise_utilization(advice, numbers, needed - available)
    advice.says.append(
        "the window is a setting of this server, not a size of the card; nothing needs to be bought for it"
    )


def _estimate_left_out(verdict: Verdict, attempt: Attempt) -> bool:
    """True when a version that prints the longest window that fits printed none: then no token fits."""
    message = verdict.failure.message if verdict.failure else ""
    version = re.match(r"v?([0-9]+)\.([0-9]+)", attempt.version)
    prints_it = version is not None and (int(version[1]), int(version[2])) >= (0, 9)
    return prints_it and "GiB). Try" in message


def raise_utilization(advice: Advice, numbers: dict[str, float], lacking_gib: float) -> None:
    """The utilization that would add `lacking_gib`, if it stays under the ceiling; otherwise says that it cannot help."""
    share, total = numbers.get("gpu_memory_utilization"), numbers.get("total_gib")
    if share is None or not total:
        return
    wanted = hundredths_up(share + lacking_gib / total)
    free = numbers.get("free0_gib")
    if wanted <= HIGH_UTILIZATION and free is not None and wanted * total > free:
        advice.says.append(
            f"utilization cannot close the gap: {wanted:.2f} of {total:.2f} GiB are {wanted * total:.2f} GiB, and only {free:.2f} GiB were free before the start; the start-up check would refuse it"
        )
        if total - free >= OTHERS_WORTH_NAMING_GIB:
            advice.says.append(
                f"something else held {total - free:.2f} GiB of the device already: look at that first (nvidia-smi)"
            )
    elif wanted <= HIGH_UTILIZATION:
        advice.fix(
            {"gpu_memory_utilization_at_least": wanted},
            f"leaves {gib((1 - wanted) * total)} outside the budget for graphs, context and run-time peaks",
            requested_gib=round(wanted * total, 2),
            available_kv_gib=round(numbers.get("available_kv_gib", 0.0) + (wanted - share) * total, 2),
        )
    else:
        advice.says.append(
            f"utilization cannot close the gap: {wanted:.2f} would be needed, which is not safe above {HIGH_UTILIZATION}"
        )


def negative(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    deficit = -numbers["available_kv_gib"]
    weights, share = numbers.get("weights_gib"), numbers.get("gpu_memory_utilization")
    advice.says.append(
        f"KV cache deficit {deficit:.2f} GiB: weights, activation peak and non-torch memory exceed the requested share by that much before the first block"
        + (f" (weights alone take {weights:.2f} GiB)" if weights is not None else "")
    )
    advice.says.append("max_model_len has no part in this figure: no window makes room for weights")
    total = numbers.get("total_gib")
    if share is not None and share >= HIGH_UTILIZATION:
        advice.says.append(
            f"utilization is already {share:.2f}: there is no head-room left in it, and it must not go higher"
        )
    elif share is not None and total is not None:
        raise_utilization(advice, numbers, deficit + LEAST_POOL_GIB)
        advice.says.append(
            f"such a rise only closes the deficit and leaves a pool of {LEAST_POOL_GIB:.2f} GiB or little more; what the window needs comes on top"
        )
    else:
        advice.says.append(
            "whether a higher utilization can close the deficit depends on the device total: deficit / total is what it would have to grow by, only to reach zero blocks"
        )
    budget = numbers.get("max_num_batched_tokens")
    smaller = max(SMALL_TOKEN_BUDGET, int(numbers.get("max_num_seqs", 0)))  # a budget below the seats is refused
    if budget is not None and budget > smaller:
        advice.fix(
            {"max_num_batched_tokens": smaller},
            "longer prefill: more steps per prompt",
            effect="lowers the activation peak; the new peak must be measured",
        )
    if share is not None and share <= LOW_SHARE:
        advice.says.append(
            f"only {share:.2f} of the device was asked for: whether the rest is free or held by another process decides, before anything about the model"
        )
        advice.missing.append("memory held by other processes on the device (nvidia-smi)")
        _ask_total_and_share(advice, attempt, numbers)
        return
    advice.says.append(
        "quantize (another checkpoint of the model, not a flag) or spread it: tensor parallel over more devices divides the weights"
    )
    if weights is not None:
        advice.fix(
            {"tensor_parallel_size": 2 * int(numbers.get("tensor_parallel_size", 1))},
            "twice the devices, and traffic between them in every layer",
            weights_gib=round(weights / 2, 2),
        )
    _ask_total_and_share(advice, attempt, numbers)


def no_blocks(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    share, weights = numbers.get("gpu_memory_utilization"), numbers.get("weights_gib")
    advice.says.append(
        "nothing is left for the KV cache: weights + activation peak + non-torch memory reach the requested share of the device"
    )
    if weights is None:
        advice.says.append(
            "without the weights and the device total nobody can say which of the three is too large; the engine's own hint is a guess"
        )
        advice.missing.append("weights (the line 'Model loading took ... GiB')")
    elif share is not None and share <= LOW_SHARE:
        advice.says.append(
            f"at utilization {share:.2f} only that share of the card is asked for; the weights take {weights:.2f} GiB. On any card whose {share:.2f} share is well above that the weights are not the problem: "
            "memory held by another process on the card is charged to this one in some versions, or the share itself is set too low"
        )
        advice.missing.append("memory held by other processes on the device (nvidia-smi)")
    if share is not None and share >= HIGH_UTILIZATION:
        advice.says.append(
            f"utilization is already {share:.2f} and must not go higher: quantize or use tensor parallel"
        )
    budget = numbers.get("max_num_batched_tokens")
    smaller = max(SMALL_TOKEN_BUDGET, int(numbers.get("max_num_seqs", 0)))  # a budget below the seats is refused
    if budget is not None and budget > smaller:
        advice.fix(
            {"max_num_batched_tokens": smaller},
            "longer prefill: more steps per prompt",
            effect="lowers the activation peak; the new peak must be measured",
        )
    advice.says.append("a shorter window does not help here: no block is left, whatever the window")
    _ask_total_and_share(advice, attempt, numbers)
    if "activation_peak_gib" not in numbers:
        advice.missing.append("activation peak and non-torch memory (debug level: VLLM_LOGGING_LEVEL=DEBUG once)")


def _ask_total_and_share(advice: Advice, attempt: Attempt, numbers: dict[str, float]) -> None:
    if "total_gib" not in numbers:
        advice.missing.append("total device memory")
    if "gpu_memory_utilization" not in numbers:
        advice.missing.append("gpu_memory_utilization (the log does not show it)")


def free_short(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    free, total, requested, share = (
        numbers[name] for name in ("free_gib", "total_gib", "requested_gib", "gpu_memory_utilization")
    )
    most = hundredths_down(free / total)
    advice.says.append(
        f"{requested:.2f} GiB are requested and {free:.2f} of {total:.2f} GiB are free: short by {requested - free:.2f} GiB; {total - free:.2f} GiB were in use before the start"
    )
    used_ratio = (total - free) / total
    if used_ratio >= 0.15:
        advice.says.append(
            "that much is more than a driver context: look which process holds it (nvidia-smi) before changing anything; a server that has not ended yet is the usual one"
        )
    else:
        advice.says.append(
            "so little may be the driver's context, a display or another rank's start; the figures do not show that any other process is to blame"
        )
    if share >= 1.0:
        advice.says.append(
            "1.0 passes the range check and then always fails here, because the context alone takes memory"
        )
    if most >= WORTH_STARTING:
        advice.fix(
            {"gpu_memory_utilization_at_most": most},
            f"{gib((share - most) * total)} less for the KV cache",
            requested_gib=round(most * total, 2),
        )
    advice.says.append(
        f"utilization {most:.2f} is the largest in hundredths that starts with what is free now ({free / total:.3f} exactly); graphs come on top of it"
    )


def freed(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    advice.says.append(
        f"another process on the device freed {numbers['freed_gib']:.2f} GiB while this one was profiling ({numbers['initial_free_gib']:.2f} free before, {numbers['current_free_gib']:.2f} after), "
        "so the measurement cannot be used: retry, or start one after the other"
    )
    advice.says.append(
        "no setting of this server is wrong; the start is safe to repeat once the other process has ended or settled"
    )
