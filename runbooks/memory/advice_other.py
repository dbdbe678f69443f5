"""Advice where the device's memory is not to blame, or nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Callable

from runbooks.memory.advice import Advice
from runbooks.memory.advice_device import full_device, no_fragmentation_hint
from runbooks.memory.classes import Verdict
from runbooks.memory.reader import Attempt


def host(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    failure = verdict.failure
    if failure is not None and failure.kind == "swap_too_large":
        advice.says.append(
            f"swap_space asks {numbers['swap_gib']:.2f} of {numbers['cpu_gib']:.2f} GiB of host memory; V1 never swaps, so set swap_space 0"
        )
        advice.fix({"swap_space": 0}, "none: V1 has no use for it", swap_gib=0.0)
        return
    if failure is not None and failure.kind == "host_shared_memory":
        advice.says.append(
            "shared memory (/dev/shm) of the container is full: it is host memory, and not the device's. Give the container more (--shm-size, or an emptyDir with medium Memory at /dev/shm), or --ipc=host"
        )
        advice.missing.append("size of /dev/shm in the container")
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
    if "container_limit_gib" in numbers:
        advice.says.append(f"the container limit is {numbers['container_limit_gib']:.2f} GiB of host memory")
    else:
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
    "kernel_resources": lambda n: (
        "a compiled kernel needs more of the chip's on-core shared memory than this card has, which has nothing to do with the device's memory: another attention backend or kernel configuration, or a newer version that tunes for this card"
    ),
    "metrics_bug": lambda n: (
        "a metrics counter was given a negative amount and the exception ended the engine: a fault in the metrics code of this version, not of memory. Update, or start with --disable-log-stats until then"
    ),
}


def _divisors(heads: int) -> str:
    return ", ".join(str(size) for size in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if heads % size == 0)


def not_memory(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    failure = verdict.failure
    if verdict.phase == "probe":
        advice.says.append(
            "a liveness or startup probe failed and the kubelet killed the container: exit code 137 is then its SIGKILL and no sign of memory. Give the start more time (startupProbe failureThreshold x periodSeconds above the load and capture time), or find why /health did not answer"
        )
        advice.missing.append("the container's log before the kill (kubectl logs --previous)")
        return
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
    _describe_pool(advice, attempt, numbers)
    if attempt.preemptions:
        advice.says.append(
            f"{attempt.preemptions} lines of preemption: the KV cache is full and requests are put back and computed again. That is KV pressure, not a device memory error, and never ends in one. The count in the line is cumulative"
        )
    if attempt.statistics and attempt.peak_kv_usage_percent >= 90:
        advice.says.append(
            f"the KV cache is {attempt.peak_kv_usage_percent:.1f} % full at its peak and up to {attempt.most_waiting} requests wait: KV pressure shows as waiting and preemption. It can never end in a device memory error, because the pool is allocated at start"
        )
    if capacity := get("kv_capacity_tokens"):
        per_token = f", at {get('bytes_per_token'):.0f} bytes per token and device" if get("bytes_per_token") else ""
        advice.says.append(
            f"the pool holds {capacity:.0f} tokens, {get('usable_kv_tokens', capacity):.0f} usable (one null block){per_token}"
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
    if window and capacity and window > capacity and not attempt.values("profiled_blocks"):
        advice.says.append(
            f"the window {window:.0f} is longer than the whole pool of {capacity:.0f} tokens: max window {capacity:.0f}; such a start is refused, or a full-length request never fits"
        )
        advice.fix_window(capacity, get("block_size") or 16.0, "longer requests are refused")
    if attempt.recognised and not attempt.statistics:
        _ask_healthy(advice, numbers)


def _describe_pool(advice: Advice, attempt: Attempt, numbers: dict[str, float]) -> None:
    """How the pool's size came about, where it was not simply measured."""
    if attempt.values("profiled_blocks"):
        window, capacity = numbers.get("max_model_len_tokens"), numbers.get("kv_capacity_tokens")
        advice.says.append(
            f"num_gpu_blocks_override is in force: {numbers['num_gpu_blocks']:.0f} blocks instead of the {attempt.values('profiled_blocks')[-1].value:.0f} that the memory holds; it is not checked against max_model_len"
        )
        if window and capacity and window > capacity:
            advice.says.append(
                f"the window {window:.0f} is longer than the whole pool of {capacity:.0f} tokens: a longer request is accepted and can preempt itself in a loop"
            )
            usable = numbers.get("usable_kv_tokens", capacity)
            advice.fix({"max_model_len_at_most": int(usable)}, "longer requests are refused")
    if attempt.values("explicit_kv"):
        advice.says.append(
            "the KV cache memory was set by hand (kv_cache_memory_bytes): it replaces the measured figure, and gpu_memory_utilization has no effect on the pool"
        )
    if attempt.values("freed_gib") and "in_use_gib" in numbers:
        advice.says.append(
            f"sleep mode gave back {numbers['freed_gib']:.2f} GiB and keeps {numbers['in_use_gib']:.2f} GiB; waking up needs the freed amount again, so nobody else may take it meanwhile"
        )
    if "waste_percent" in numbers:
        advice.says.append(
            f"{numbers['padding_layers']:.0f} padding layers of the hybrid layout waste at most {numbers['waste_percent']:.2f} % of the KV cache memory"
        )
    engines = attempt.argument("data_parallel_size")
    if engines and engines > 1 and "num_gpu_blocks" in numbers:
        advice.says.append(
            f"data parallel over {engines:.0f} engines: each has a pool of its own and a request lives in one of them; the front end's count of blocks is the sum"
        )


def _ask_healthy(advice: Advice, numbers: dict[str, float]) -> None:
    if "weights_gib" in numbers and "total_gib" not in numbers:
        advice.missing.append("total device memory")
    if "weights_gib" in numbers and "activation_peak_gib" not in numbers:
        advice.missing.append("activation peak and non-torch memory (debug level: VLLM_LOGGING_LEVEL=DEBUG once)")


def undetermined(advice: Advice, verdict: Verdict, attempt: Attempt, numbers: dict[str, float]) -> None:
    failure = verdict.failure
    if verdict.phase == "other_engine":
        advice.says.append(
            f"this log is not vLLM's: '{attempt.other_engine}' is another program's word. Its memory is laid out and set by its own options, so no setting of vLLM applies"
        )
        advice.missing.append("the log of the vLLM server, if one is meant")
    elif verdict.phase == "unknown_words" and failure is not None:
        advice.says.append(
            f"an exception speaks of memory in words that no known version of vLLM or PyTorch prints: {failure.message[:200]}"
        )
        advice.missing.append("the whole traceback, the program and version that wrote it, and the start-up lines")
    elif verdict.phase == "nccl":
        advice.says.append(
            "NCCL reports a failed CUDA call: it may hide an allocation that the driver refused, or be something else (driver, link, shared memory). Its buffers lie outside PyTorch, so the allocator's settings do not reach them"
        )
        advice.missing.append("the run with NCCL_DEBUG=INFO: the warning above this line names the call")
        advice.missing.append("memory held by other processes on the device (nvidia-smi) at that time")
    elif failure is not None and verdict.phase == "kv_allocation_by_hand" and failure.out_of_memory is not None:
        advice.says.append(full_device(failure.out_of_memory))
        advice.says.append(
            "the pool's size was set by hand (kv_cache_memory_bytes or num_gpu_blocks_override), it was not measured, and the device does not hold it beside the weights: ask for less, or leave the setting out"
        )
        no_fragmentation_hint(advice, failure.out_of_memory)
    elif failure is not None and verdict.phase == "wake_up":
        advice.says.append(
            "the server was waking up from sleep and the memory that it had given back was no longer free: something else took it meanwhile"
        )
        advice.missing.append("memory held by other processes on the device (nvidia-smi)")
        if failure.out_of_memory is not None:
            advice.says.append(full_device(failure.out_of_memory))
    elif failure is not None and failure.out_of_memory is not None:
        advice.says.append(full_device(failure.out_of_memory))
        if failure.out_of_memory.allocated_gib is None:
            advice.says.append(
                "the message is cut before what PyTorch had allocated and reserved, which is what tells activations, fragments and memory outside PyTorch apart"
            )
            advice.missing.append(
                "the numbers of the OOM message after its cut (from 'Of the allocated memory' to the end of the line)"
            )
        advice.says.append(
            "the message alone does not show what the engine was doing; the frames of the traceback decide between weights, profiling, graphs and serving"
        )
        advice.missing.append("the traceback above the message, and the start-up lines")
        no_fragmentation_hint(advice, failure.out_of_memory)
    elif failure is not None:
        advice.says.append(
            "device memory ran out, but the figures of the message are missing, so its reason cannot be told"
        )
        advice.missing.append(
            "the numbers of the OOM message that are not in this text (the whole line after 'Tried to allocate')"
        )
        advice.missing.append(
            "the ledger of the earlier version, if it worked before: the same start-up lines from then"
        )
    elif verdict.phase == "cut_short":
        advice.says.append(
            "the text ends in the middle of a start: no failure stands in it, and nothing of the KV pool or of serving either"
        )
        advice.missing.append("the rest of the log after its last line here, and the exit code if the process ended")
        _ask_healthy(advice, numbers)
    elif attempt.generic_failures:
        advice.says.append(
            "these lines only say that a process died; its reason stands in earlier lines of that process"
        )
        advice.missing.append("earlier lines of the worker process or engine core (above the first 'failed to start')")
    else:
        advice.says.append("no line of a vLLM log was recognised in this text")
        advice.missing.append(
            "the start-up log from 'vLLM API server version' on, or the whole traceback with its last line"
        )
