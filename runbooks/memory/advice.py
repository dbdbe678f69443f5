"""What to say of a class, what to change (solved from the figures, with its price) and what the log does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runbooks.memory.account import Account
from runbooks.memory.classes import Verdict, outside_is_large
from runbooks.memory.reader import Attempt
from runbooks.memory.torch_oom import OutOfMemory

HIGH_UTILIZATION = 0.95
"""Above this nothing is left for graphs, context and run-time peaks; raising it further only moves the failure."""
GRAPH_MARGIN_GIB = 0.25


@dataclass
class Advice:
    """`fixes` are {change, predicted, price}; `missing` are facts to ask for."""

    says: list[str] = field(default_factory=list)
    fixes: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def fix(self, change: dict[str, Any], price: str, **predicted: float | bool | str) -> None:
        self.fixes.append({"change": change, "predicted": predicted, "price": price})


def gib(value: float) -> str:
    """'2.14 GiB', or MiB below one GiB where two decimals of a GiB would hide it."""
    return f"{value:.2f} GiB" if abs(value) >= 1 or value == 0 else f"{value * 1024:.2f} MiB"


def advise(verdict: Verdict, attempt: Attempt, account: Account) -> Advice:
    advice = Advice()
    _WRITERS[verdict.name](advice, verdict, attempt, account.numbers)
    advice.says += account.notes
    if account.identity.holds is False:
        advice.says.append(
            f"the account does not add up: {account.identity.difference_gib} GiB differ, more than rounding; lines of two starts may be mixed"
        )
    return advice


def _window(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    window = numbers["max_model_len_tokens"]
    longest = numbers.get("estimated_max_len_tokens", numbers.get("kv_capacity_tokens"))
    if longest is None and "bytes_per_token" in numbers and numbers.get("available_kv_gib", 0) > 0:
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
        advice.says.append(f"max window {longest:.0f}: the largest max_model_len that this pool takes at start")
        advice.says.append(
            f"the start-up check does not count the null block: with exactly {longest:.0f} a full-length request ends one block short and preempts itself; {max(longest - block, 0):.0f} avoids that"
        )
        advice.fix(
            {"max_model_len_at_most": int(longest)},
            "requests longer than that are refused with HTTP 400",
            concurrency=1.0,
        )
    else:
        advice.says.append(
            "no window fits at all: not even one token's keys and values, so the weights and the activation peak must shrink first"
        )
    needed, available = numbers.get("needed_gib"), numbers.get("available_kv_gib")
    if needed is not None and available is not None:
        if needed / 2 <= available:
            advice.fix(
                {"kv_cache_dtype": "fp8"},
                "half the KV bytes, some accuracy; needs hardware and an attention backend that support it",
                needed_gib=round(needed / 2, 2),
            )
        _raise_utilization(advice, numbers, needed - available)
    advice.says.append(
        "the window is a setting of this server, not a size of the card; nothing needs to be bought for it"
    )


def _raise_utilization(advice: Advice, numbers: dict[str, float], lacking_gib: float) -> None:
    """The utilization that would add `lacking_gib`, if it stays under the ceiling; otherwise says that it cannot help."""
    share, total = numbers.get("gpu_memory_utilization"), numbers.get("total_gib")
    if share is None or total is None:
        return
    wanted = math.ceil((share + lacking_gib / total) * 100) / 100
    if wanted <= HIGH_UTILIZATION:
        advice.fix(
            {"gpu_memory_utilization_at_least": wanted},
            f"leaves {gib((1 - wanted) * total)} outside the budget for graphs, context and run-time peaks",
            requested_gib=round(wanted * total, 2),
        )
    else:
        advice.says.append(
            f"utilization cannot close the gap: {wanted:.2f} would be needed, which is not safe above {HIGH_UTILIZATION}"
        )


def _negative(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
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
        _raise_utilization(advice, numbers, deficit)
    else:
        advice.says.append(
            "whether a higher utilization can close the deficit depends on the device total: deficit / total is what it would have to grow by, only to reach zero blocks"
        )
    budget = numbers.get("max_num_batched_tokens")
    if budget is not None and budget > 2048:
        advice.fix(
            {"max_num_batched_tokens": 2048},
            "longer prefill: more steps per prompt",
            effect="lowers the activation peak; the new peak must be measured",
        )
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


def _no_blocks(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    share, weights = numbers.get("gpu_memory_utilization"), numbers.get("weights_gib")
    advice.says.append(
        "nothing is left for the KV cache: weights + activation peak + non-torch memory reach the requested share of the device"
    )
    if weights is None:
        advice.says.append(
            "without the weights and the device total nobody can say which of the three is too large; the engine's own hint is a guess"
        )
        advice.missing.append("weights (the line 'Model loading took ... GiB')")
    elif share is not None and share <= 0.6:
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
    if budget is not None and budget > 2048:
        advice.fix(
            {"max_num_batched_tokens": 2048},
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


def _free_short(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    free, total, requested, share = (
        numbers[name] for name in ("free_gib", "total_gib", "requested_gib", "gpu_memory_utilization")
    )
    most = math.floor(free / total * 100) / 100
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
    if most > 0:
        advice.fix(
            {"gpu_memory_utilization_at_most": most},
            f"{gib((share - most) * total)} less for the KV cache",
            requested_gib=round(most * total, 2),
        )
    advice.says.append(
        f"utilization {most:.2f} is the largest in hundredths that starts with what is free now ({free / total:.3f} exactly); graphs come on top of it"
    )


def _freed(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    advice.says.append(
        f"another process on the device freed {numbers['freed_gib']:.2f} GiB while this one was profiling ({numbers['initial_free_gib']:.2f} free before, {numbers['current_free_gib']:.2f} after), "
        "so the measurement cannot be used: retry, or start one after the other"
    )
    advice.says.append(
        "no setting of this server is wrong; the start is safe to repeat once the other process has ended or settled"
    )


def _sampler(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    requests = numbers.get("dummy_requests")
    memory = verdict.failure.out_of_memory if verdict.failure else None
    from runbooks.memory.account import last_out_of_memory

    last = last_out_of_memory(attempt)
    memory = memory or (last.out_of_memory if last else None)
    count = f" with {requests:.0f} dummy requests" if requests else ""
    advice.says.append(
        f"the sampler's warm-up{count} did not fit: it runs after the KV cache is allocated, in what utilization left over. Lower max_num_seqs, or lower gpu_memory_utilization to leave more"
    )
    if requests:
        seats = max(1, int(requests) // 4)
        if memory is not None:
            per_request = memory.tried_gib / requests
            fitting = int(memory.free_gib / per_request) if per_request > 0 else 0
            advice.says.append(
                f"{gib(memory.tried_gib)} for {requests:.0f} requests is {per_request * 1024:.2f} MiB each; {gib(memory.free_gib)} are free, enough for about {fitting}"
            )
            while seats > 1 and seats > fitting:
                seats //= 2
            advice.fix(
                {"max_num_seqs": seats},
                "fewer requests run at once",
                needed_gib=round(seats * per_request, 3),
                free_gib=round(memory.free_gib, 3),
            )
        else:
            advice.fix(
                {"max_num_seqs": seats},
                "fewer requests run at once",
                effect="the buffers shrink in proportion; the figures to check it are not in the log",
            )
    _no_fragmentation_hint(advice, memory)
    _lower_utilization(advice, numbers, memory)
    advice.says.append(
        "a higher gpu_memory_utilization would make this worse, not better: it takes the memory that the warm-up needs"
    )


def _graphs(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = verdict.failure.out_of_memory if verdict.failure else None
    advice.says.append(
        "CUDA graphs are captured after the KV cache has been sized, in what utilization left over: lower gpu_memory_utilization, capture fewer sizes, or run eager"
    )
    if memory is not None:
        advice.says.append(_full_device(memory))
        if memory.outside_pytorch_gib is not None:
            advice.says.append(
                f"{memory.outside_pytorch_gib:.2f} GiB outside PyTorch (context, NCCL, graph and library memory)"
            )
    _no_fragmentation_hint(advice, memory)
    _lower_utilization(advice, numbers, memory)
    advice.fix({"enforce_eager": True}, "no graphs: more time per decode step, most at small batches", graphs_gib=0.0)
    advice.says.append(
        "never answer this with a higher utilization: it takes from the very memory that the graphs need"
    )


def _lower_utilization(advice: Advice, numbers: dict[str, float], memory: OutOfMemory | None) -> None:
    share = numbers.get("gpu_memory_utilization")
    total = memory.total_gib if memory else numbers.get("total_gib")
    if total is None:
        advice.fix(
            {"gpu_memory_utilization": "lower by 0.05"},
            "a smaller KV cache",
            effect="frees 5 % of the device; the exact step needs the device total",
        )
        return
    lacking = max(memory.short_by_gib, 0.0) + GRAPH_MARGIN_GIB if memory else 0.05 * total
    step = math.ceil(lacking / total * 100) / 100
    change: dict[str, Any] = (
        {"gpu_memory_utilization_at_most": round(share - step, 2)}
        if share is not None
        else {"gpu_memory_utilization": f"lower by {step:.2f}"}
    )
    advice.fix(change, f"{gib(step * total)} less for the KV cache", frees_gib=round(step * total, 2))


def _full_device(memory: OutOfMemory) -> str:
    short = memory.short_by_gib
    wanted, free = memory.exact_mib["tried"], memory.exact_mib["free"]
    gap = (
        f"short by {wanted - free:.2f} MiB"
        if 0 < short < 1
        else f"short by {short:.2f} GiB"
        if short > 0
        else "by the driver's view it would have fitted (memory was freed since, or a cap is set)"
    )
    return f"{gib(memory.tried_gib)} were wanted, {gib(memory.free_gib)} of {memory.total_gib:.2f} GiB were free: {gap}"


def _no_fragmentation_hint(advice: Advice, memory: OutOfMemory | None) -> None:
    if memory is None or memory.reserved_unallocated_gib is None or memory.fragmentation_possible:
        return
    advice.says.append(
        f"not fragmentation: {gib(memory.reserved_unallocated_gib)} are reserved but unallocated, less than the {gib(memory.tried_gib)} wanted, so the hint of the message (expandable_segments) cannot help"
    )


def _activation(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = _memory(verdict)
    advice.says.append(_full_device(memory))
    budget = numbers.get("max_num_batched_tokens")
    if verdict.phase == "profiling":
        advice.says.append(
            "it happened in the profiling run, a dummy forward pass of the whole token budget: the activation peak does not fit beside the weights. Lower max_num_batched_tokens (and max_num_seqs, multimodal limits)"
        )
    else:
        advice.says.append(
            "a running server's transient memory (activations, logits, a long prefill, multimodal encoder, LoRA) exceeded what was profiled plus the slack: lower gpu_memory_utilization to leave more, or lower max_num_batched_tokens"
        )
        advice.says.append(
            "the KV pool is inside the allocated figure from the start, so a high figure there is normal, and a full KV cache never raises this error: it preempts"
        )
        _lower_utilization(advice, numbers, memory)
    if budget is None or budget > 2048:
        advice.fix(
            {"max_num_batched_tokens": int(budget // 4) if budget and budget >= 8192 else 2048},
            "longer prefill: more steps per prompt",
            effect="the activation peak shrinks about in proportion",
        )
    _no_fragmentation_hint(advice, memory)
    if outside_is_large(memory) and memory.outside_pytorch_gib is not None:
        advice.says.append(
            f"besides, {memory.outside_pytorch_gib:.2f} GiB lie outside PyTorch, more than a context and its libraries take"
        )


def _fragmentation(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = _memory(verdict)
    reserved = memory.reserved_unallocated_gib or 0.0
    advice.says.append(_full_device(memory))
    advice.says.append(
        f"fragmentation is plausible: {gib(reserved)} are reserved but unallocated, more than the {gib(memory.tried_gib)} wanted, but in pieces. "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the allocator join them"
    )
    advice.says.append(
        "the peak of a long prefill is the other half of it: lower max_num_batched_tokens or lower gpu_memory_utilization if it comes back"
    )
    advice.fix(
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "needs a restart; not with every memory pool or older driver",
        reusable_gib=round(reserved, 3),
    )
    _lower_utilization(advice, numbers, memory)
    if memory.in_use_gib is None:
        advice.says.append(
            "this form of the message does not print what the process has in use, so the share outside PyTorch is unknown"
        )


def _outside(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = _memory(verdict)
    outside = memory.outside_pytorch_gib or 0.0
    advice.says.append(_full_device(memory))
    advice.says.append(
        f"{outside:.2f} GiB outside PyTorch: in use {memory.in_use_gib} - allocated {memory.allocated_gib} - reserved {gib(memory.reserved_unallocated_gib or 0.0)}. One context with NCCL and cuBLAS takes about 0.5 to 2 GiB; "
        "look for NCCL buffers, custom all-reduce, several contexts in one process, or another library"
    )
    _no_fragmentation_hint(advice, memory)
    _lower_utilization(advice, numbers, memory)
    advice.says.append("the allocator's settings do not reach that memory, and a higher utilization would not either")


def _other_process(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = _memory(verdict)
    others = memory.others_gib
    advice.says.append(_full_device(memory))
    named = ", ".join(f"process {pid} holds {size:.2f} GiB" for pid, size in memory.named_processes[:8])
    if others is not None and others > 0:
        advice.says.append(
            f"another process holds {others:.2f} GiB of this device (total - free - in use)"
            + (f": {named}" if named else "")
        )
        advice.says.append(
            f"this process itself uses {memory.in_use_gib:.2f} GiB of {memory.total_gib:.2f}: with the device to itself the request would have fitted"
        )
    else:
        advice.says.append(
            "memory was taken by something else between profiling and allocation" + (f"; {named}" if named else "")
        )
        advice.missing.append("memory held by other processes on the device (nvidia-smi)")
    advice.says.append(
        "find that process first (nvidia-smi, then its owner); changing this server's settings would treat the symptom"
    )
    if others is not None and memory.total_gib > others:
        most = math.floor((memory.total_gib - others) / memory.total_gib * 95) / 100
        advice.fix(
            {"gpu_memory_utilization_at_most": most},
            "only if the two must share the device: a smaller KV cache",
            requested_gib=round(most * memory.total_gib, 2),
        )
    _no_fragmentation_hint(advice, memory)


def _weights(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = verdict.failure.out_of_memory if verdict.failure else None
    advice.says.append(
        "the device filled while the weights were being created: the model does not fit. Quantize (another checkpoint, not a flag) or use tensor parallel over more devices"
    )
    if memory is not None:
        advice.says.append(_full_device(memory) + f"; {memory.allocated_gib} GiB were already allocated")
        size = 2 * int(numbers.get("tensor_parallel_size", 1))
        advice.fix(
            {"tensor_parallel_size": size},
            "twice the devices, and traffic between them in every layer",
            effect="each device holds about half of the weights",
        )
    _no_fragmentation_hint(advice, memory)
    advice.says.append("no KV setting, window or utilization helps: none of them is in use yet at this point")


def _host(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    failure = verdict.failure
    if failure is not None and failure.kind == "swap_too_large":
        advice.says.append(
            f"swap_space asks {numbers['swap_gib']:.2f} of {numbers['cpu_gib']:.2f} GiB of host memory; V1 never swaps, so set swap_space 0"
        )
        advice.fix({"swap_space": 0}, "none: V1 has no use for it", swap_gib=0.0)
        return
    code = numbers.get("exit_code")
    advice.says.append(
        "the process was killed by the system: host memory or container limit, not the device's memory"
        + (f" (exit code {code:.0f} = killed by signal 9)" if code else "")
        + ". A CUDA out-of-memory error ends with a traceback instead"
    )
    advice.says.append(
        "loading reads the checkpoint through host memory, per worker: raise the container's memory limit, or load fewer shards at once; settings of the device's memory have no part in it"
    )
    advice.missing.append("container memory limit (and the host's own free memory at that time)")


_SETTING_WORDS: dict[str, Callable[[dict[str, float]], str]] = {
    "window_over_model": lambda n: (
        f"max_model_len {n['asked_len']:.0f} is longer than the model was made for ({n['derived_len']:.0f}): set it to at most {n['derived_len']:.0f}, or configure rope scaling if the model supports it"
    ),
    "budget_under_window": lambda n: (
        f"chunked prefill is off and the token budget {n['max_num_batched_tokens']:.0f} is below max_model_len {n['max_model_len_tokens']:.0f}: enable chunked prefill, or set the budget to at least the window"
    ),
    "budget_under_seats": lambda n: (
        f"max_num_batched_tokens {n['max_num_batched_tokens']:.0f} is below max_num_seqs {n['max_num_seqs']:.0f}: every running request takes at least one token of a step. Set the budget to at least {n['max_num_seqs']:.0f}, or fewer seats"
    ),
    "utilization_over_one": lambda n: (
        f"the utilization given ({n['gpu_memory_utilization']:g}) is above 1: it is a share of the device, 0.9 by default"
    ),
    "heads": lambda n: (
        f"{n['heads']:.0f} attention heads cannot be divided by a tensor parallel size of {n['tensor_parallel_size']:.0f}: choose a tensor parallel size that divides them ({_divisors(int(n['heads']))})"
    ),
    "metrics_bug": lambda n: (
        "a metrics counter was given a negative amount and the exception ended the engine: a fault in the metrics code of this version, not of memory. Update, or start with --disable-log-stats until then"
    ),
}


def _divisors(heads: int) -> str:
    return ", ".join(str(size) for size in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if heads % size == 0)


def _not_memory(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    failure = verdict.failure
    if failure is not None:
        words = _SETTING_WORDS.get(failure.kind)
        advice.says.append(
            words(numbers)
            if words
            else "the start or run ended with an exception that is not about memory; its message says what: "
            + failure.message[:200]
        )
        if failure.kind == "window_over_model":
            advice.fix({"max_model_len_at_most": int(numbers["derived_len"])}, "longer requests are refused")
        if failure.kind == "budget_under_seats":
            advice.fix(
                {"max_num_batched_tokens_at_least": int(numbers["max_num_seqs"])}, "a little more activation memory"
            )
            advice.fix({"max_num_seqs_at_most": int(numbers["max_num_batched_tokens"])}, "fewer requests run at once")
        if failure.kind == "budget_under_window":
            advice.fix(
                {"max_num_batched_tokens_at_least": int(numbers["max_model_len_tokens"])}, "a larger activation peak"
            )
        return
    _describe_healthy(advice, attempt, numbers)


def _describe_healthy(advice: Advice, attempt: Attempt, numbers: dict[str, float]) -> None:
    get = numbers.get
    if attempt.statistics and attempt.peak_kv_usage_percent >= 90:
        advice.says.append(
            f"the KV cache is {attempt.peak_kv_usage_percent:.1f} % full at its peak and {attempt.last_waiting} requests wait: KV pressure shows as waiting and preemption. It can never end in a device memory error, because the pool is allocated at start"
        )
    if (per_token := get("bytes_per_token")) and (capacity := get("kv_capacity_tokens")):
        advice.says.append(
            f"the pool holds {capacity:.0f} tokens, {get('usable_kv_tokens', capacity):.0f} usable (one null block), at {per_token:.0f} bytes per token and device"
        )
    terms = [get(name) for name in ("weights_gib", "non_torch_gib", "activation_peak_gib", "available_kv_gib")]
    budget = get("requested_gib", get("budget_gib"))
    if budget is not None and all(term is not None for term in terms):
        total = sum(term for term in terms if term is not None)
        if len({fact.value for fact in attempt.values("available_kv_gib")}) <= 1:
            advice.says.append(
                f"the terms sum {total:.2f} GiB against a budget of {budget:.2f} GiB: it adds up within rounding"
                if abs(total - budget) <= 0.025
                else f"the terms sum {total:.2f} GiB, the budget is {budget:.2f} GiB"
            )
    if (
        len(attempt.values("available_kv_gib")) > 1
        and len({fact.process for fact in attempt.values("available_kv_gib")}) > 1
    ):
        advice.says.append(
            "several workers: the smaller worker decides, the scheduler uses the least number of blocks on every one"
        )
    window, usable, capacity = get("max_model_len_tokens"), get("usable_kv_tokens"), get("kv_capacity_tokens")
    if window and usable and capacity and usable < window <= capacity:
        block = numbers["block_size"]
        advice.says.append(
            f"latent risk: a request of the full window {window:.0f} needs {math.ceil(window / block)} blocks and {usable / block:.0f} are usable ({usable:.0f} tokens): alone on the engine it would preempt itself again and again"
        )
        advice.fix(
            {"max_model_len_at_most": int(usable)},
            "requests of the last block's length are refused instead of looping",
            usable_kv_tokens=usable,
        )
    if attempt.recognised and not attempt.statistics:
        _ask_healthy(advice, numbers)


def _ask_healthy(advice: Advice, numbers: dict[str, float]) -> None:
    if "weights_gib" in numbers and "total_gib" not in numbers:
        advice.missing.append("total device memory")
    if "weights_gib" in numbers and "activation_peak_gib" not in numbers:
        advice.missing.append("activation peak and non-torch memory (debug level: VLLM_LOGGING_LEVEL=DEBUG once)")


def _undetermined(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    failure = verdict.failure
    if failure is not None and failure.out_of_memory is not None:
        advice.says.append(_full_device(failure.out_of_memory))
        advice.says.append(
            "the message alone does not show what the engine was doing; the frames of the traceback decide between weights, profiling, graphs and serving"
        )
        advice.missing.append("the traceback above the message, and the start-up lines")
        _no_fragmentation_hint(advice, failure.out_of_memory)
    elif failure is not None:
        advice.says.append(
            "device memory ran out, but the figures of the message are missing, so its reason cannot be told"
        )
        advice.missing.append("the numbers of the OOM message (the whole line after 'Tried to allocate')")
        advice.missing.append(
            "the ledger of the earlier version, if it worked before: the same start-up lines from then"
        )
    elif attempt.generic_failures:
        advice.says.append(
            "these lines only say that a process died; its reason stands in earlier lines of that process"
        )
        advice.missing.append("earlier lines of the worker process or engine core (above the first 'failed to start')")
    else:
        advice.says.append("no line of a vLLM log was recognised in this text")
        advice.missing.append("the start-up log from 'vLLM API server version' on, or the whole out-of-memory message")


def _memory(verdict: Verdict) -> OutOfMemory:
    assert verdict.failure is not None
    assert verdict.failure.out_of_memory is not None
    return verdict.failure.out_of_memory


_WRITERS: dict[str, Callable[[Advice, Verdict, Attempt, dict[str, float]], None]] = {
    "kv_window_too_long": _window,
    "negative_kv": _negative,
    "no_kv_blocks": _no_blocks,
    "startup_free_memory_short": _free_short,
    "memory_freed_during_profiling": _freed,
    "sampler_warmup_oom": _sampler,
    "graph_capture_oom": _graphs,
    "runtime_oom_activation": _activation,
    "runtime_oom_fragmentation": _fragmentation,
    "runtime_oom_outside_pytorch": _outside,
    "other_process": _other_process,
    "weights_do_not_fit": _weights,
    "host_oom": _host,
    "not_memory": _not_memory,
    "undetermined": _undetermined,
}
CLASSES = tuple(_WRITERS)
