"""Advice for PyTorch running out of device memory: weights, profiling, graphs, sampler, serving."""

from __future__ import annotations

from typing import Any

from runbooks.memory.account import last_out_of_memory
from runbooks.memory.advice import HIGH_UTILIZATION, SMALL_TOKEN_BUDGET, Advice, gib, hundredths_down, hundredths_up
from runbooks.memory.classes import OTHERS_WORTH_NAMING_GIB, Verdict, outside_is_large
from runbooks.memory.reader import Attempt
from runbooks.memory.torch_oom import OutOfMemory

GRAPH_MARGIN_GIB = 0.25


def sampler(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    requests = numbers.get("dummy_requests")
    memory = verdict.failure.out_of_memory if verdict.failure else None

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
    no_fragmentation_hint(advice, memory)
    others_besides(advice, memory)
    lower_utilization(advice, numbers, memory)
    advice.says.append(
        "a higher gpu_memory_utilization would make this worse, not better: it takes the memory that the warm-up needs"
    )


def graphs(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = verdict.failure.out_of_memory if verdict.failure else None
    advice.says.append(
        "CUDA graphs are captured after the KV cache has been sized, in what utilization left over: lower gpu_memory_utilization, capture fewer sizes, or run eager"
    )
    if memory is not None:
        advice.says.append(full_device(memory))
        if memory.outside_pytorch_gib is not None:
            advice.says.append(
                f"{memory.outside_pytorch_gib:.2f} GiB outside PyTorch (context, NCCL, graph and library memory)"
            )
    no_fragmentation_hint(advice, memory)
    others_besides(advice, memory)
    lower_utilization(advice, numbers, memory)
    advice.fix({"enforce_eager": True}, "no graphs: more time per decode step, most at small batches", graphs_gib=0.0)
    advice.says.append(
        "never answer this with a higher utilization: it takes from the very memory that the graphs need"
    )


def lower_utilization(advice: Advice, numbers: dict[str, float], memory: OutOfMemory | None) -> None:
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
    step = hundredths_up(lacking / total)
    pool = numbers.get("available_kv_gib")
    if pool is not None and step * total >= pool or share is not None and step >= share:
        held = f"the whole KV cache of {gib(pool)}" if pool is not None else "the whole share of this server"
        advice.says.append(
            f"a lower utilization alone is no way out: {gib(step * total)} are lacking, which is {held} or more. The device is too small for this model with these settings: fewer tokens a step, quantize, or tensor parallel"
        )
        return
    change: dict[str, Any] = (
        {"gpu_memory_utilization_at_most": round(share - step, 2)}
        if share is not None
        else {"gpu_memory_utilization": f"lower by {step:.2f}"}
    )
    left = {} if pool is None else {"available_kv_gib": round(pool - step * total, 2)}
    advice.fix(change, f"{gib(step * total)} less for the KV cache", frees_gib=round(step * total, 2), **left)


def full_device(memory: OutOfMemory) -> str:
    short = memory.short_by_gib
    wanted, free = memory.exact_mib["tried"], memory.exact_mib["free"]
    gap = (
        f"short by {wanted - free:.2f} MiB"
        if 0 < short < 1
        else f"short by {short:.2f} GiB"
        if short > 0
        else "by the driver's view it would have fitted (memory was freed since, or a cap is set)"
    )
    capped = (
        f"; a cap on this process's share (memory fraction) is set: {memory.allowed_gib:.2f} GiB"
        if memory.allowed_gib is not None
        else ""
    )
    return f"{gib(memory.tried_gib)} were wanted, {gib(memory.free_gib)} of {memory.total_gib:.2f} GiB were free: {gap}{capped}"


def no_fragmentation_hint(advice: Advice, memory: OutOfMemory | None) -> None:
    if memory is None or memory.reserved_unallocated_gib is None or memory.fragmentation_possible:
        return
    advice.says.append(
        f"not fragmentation: {gib(memory.reserved_unallocated_gib)} are reserved but unallocated, less than the {gib(memory.tried_gib)} wanted, so the hint of the message (expandable_segments) cannot help"
    )


def activation(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = message_of(verdict)
    advice.says.append(full_device(memory))
    budget = numbers.get("max_num_batched_tokens")
    if verdict.phase == "profiling":
        advice.says.append(
            "it happened in the profiling run, a dummy forward pass of the whole token budget: the activation peak does not fit beside the weights. Lower max_num_batched_tokens (and max_num_seqs; for a multimodal model limit_mm_per_prompt, as its dummy images or videos are part of the pass)"
        )
    else:
        advice.says.append(
            "a running server's transient memory (activations, logits, a long prefill, multimodal encoder, LoRA) exceeded what was profiled plus the slack: lower gpu_memory_utilization to leave more, or lower max_num_batched_tokens"
        )
        advice.says.append(
            "the KV pool is inside the allocated figure from the start, so a high figure there is normal, and a full KV cache never raises this error: it preempts"
        )
        lower_utilization(advice, numbers, memory)
    smaller = int(budget // 4) if budget and budget >= 4 * SMALL_TOKEN_BUDGET else SMALL_TOKEN_BUDGET
    smaller = max(smaller, int(numbers.get("max_num_seqs", 0)))  # a budget below the seats is refused
    if budget is None or budget > smaller:
        advice.fix(
            {"max_num_batched_tokens": smaller},
            "longer prefill: more steps per prompt",
            effect="the activation peak shrinks about in proportion",
        )
    no_fragmentation_hint(advice, memory)
    own_listed(advice, memory)
    if outside_is_large(memory) and memory.outside_pytorch_gib is not None:
        advice.says.append(
            f"besides, {memory.outside_pytorch_gib:.2f} GiB lie outside PyTorch, more than a context and its libraries take"
        )


def fragmentation(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = message_of(verdict)
    reserved = memory.reserved_unallocated_gib or 0.0
    advice.says.append(full_device(memory))
    advice.says.append(
        f"fragmentation is plausible: {gib(reserved)} are reserved but unallocated, more than the {gib(memory.tried_gib)} wanted, but in pieces. "
        f"{memory.setting}=expandable_segments:True lets the allocator join them"
    )
    advice.says.append(
        "the peak of a long prefill is the other half of it: lower max_num_batched_tokens or lower gpu_memory_utilization if it comes back"
    )
    advice.fix(
        {memory.setting: "expandable_segments:True"},
        "needs a restart; not with every memory pool or older driver",
        reusable_gib=round(reserved, 3),
    )
    lower_utilization(advice, numbers, memory)
    own_listed(advice, memory)
    if memory.in_use_gib is None:
        advice.says.append(
            "this form of the message does not print what the process has in use, so the share outside PyTorch is unknown"
        )


def others_besides(advice: Advice, memory: OutOfMemory | None) -> None:
    """Names other processes where the phase, and not they, decides the class."""
    others = memory.others_gib if memory is not None else None
    if others is not None and others >= OTHERS_WORTH_NAMING_GIB:
        advice.says.append(
            f"besides, other processes hold {others:.2f} GiB of this device: look at them first (nvidia-smi)"
        )


def own_listed(advice: Advice, memory: OutOfMemory) -> None:
    if memory.own_listed:
        advice.says.append(
            f"the listed process with {memory.in_use_gib:.2f} GiB is taken for this one, as happens inside a container: it holds at least what PyTorch allocated here"
        )


def outside(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = message_of(verdict)
    outside_gib = memory.outside_pytorch_gib or 0.0
    advice.says.append(full_device(memory))
    advice.says.append(
        f"{outside_gib:.2f} GiB outside PyTorch: in use {memory.in_use_gib} - allocated {memory.allocated_gib} - reserved {gib(memory.reserved_unallocated_gib or 0.0)}. One context with NCCL and cuBLAS takes about 0.5 to 2 GiB; "
        "look for NCCL buffers, custom all-reduce, several contexts in one process, or another library"
    )
    no_fragmentation_hint(advice, memory)
    own_listed(advice, memory)
    lower_utilization(advice, numbers, memory)
    advice.says.append("the allocator's settings do not reach that memory, and a higher utilization would not either")


def other_process(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = message_of(verdict)
    others = memory.others_gib
    advice.says.append(full_device(memory))
    named = ", ".join(f"process {pid} holds {size:.2f} GiB" for pid, size in memory.named_processes[:8])
    if others is not None and others >= OTHERS_WORTH_NAMING_GIB:
        advice.says.append(
            f"another process holds {others:.2f} GiB of this device (total - free - in use)"
            + (f": {named}" if named else "")
        )
        advice.says.append(
            f"this process itself uses {memory.in_use_gib or memory.allocated_gib or 0.0:.2f} GiB of {memory.total_gib:.2f}: with the device to itself the request would have fitted"
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
        most = hundredths_down((memory.total_gib - others) / memory.total_gib * HIGH_UTILIZATION)
        if most > 0:
            advice.fix(
                {"gpu_memory_utilization_at_most": most},
                "only if the two must share the device: a smaller KV cache",
                requested_gib=round(most * memory.total_gib, 2),
            )
    no_fragmentation_hint(advice, memory)


def weights(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    memory = verdict.failure.out_of_memory if verdict.failure else None
    advice.says.append(
        "the device filled while the weights were being created: the model does not fit. Quantize (another checkpoint, not a flag) or use tensor parallel over more devices"
    )
    if memory is not None:
        advice.says.append(full_device(memory))
        if memory.allocated_gib is not None:
            advice.says.append(f"{memory.allocated_gib:.2f} GiB were already allocated, by weights alone")
        size = 2 * int(numbers.get("tensor_parallel_size", 1))
        advice.fix(
            {"tensor_parallel_size": size},
            "twice the devices, and traffic between them in every layer",
            effect="each device holds about half of the weights",
        )
    no_fragmentation_hint(advice, memory)
    advice.says.append("no KV setting, window or utilization helps: none of them is in use yet at this point")


def message_of(verdict: Verdict) -> OutOfMemory:
    """PyTorch's figures of a verdict that rests on them."""
    assert verdict.failure is not None
    assert verdict.failure.out_of_memory is not None
    return verdict.failure.out_of_memory
