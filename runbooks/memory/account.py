"""The GiB-by-GiB account of device memory that one start attempt implies: what was read, what follows, whether it adds up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from runbooks.memory.kv_arithmetic import GIB, roundest_between
from runbooks.memory.reader import Attempt, Failure

DEFAULT_BLOCK_SIZE = 16
"""Tokens per block on CUDA unless an attention backend forces another (vLLM 0.11.0)."""
PRINT_STEP_GIB = 0.01
"""Most memory lines print two decimals, so each figure is off by up to half of this."""

RANK_FIGURES = (
    "weights_gib",
    "activation_peak_gib",
    "non_torch_gib",
    "available_kv_gib",
    "requested_gib",
    "graphs_gib",
    "free0_gib",
    "kv_capacity_tokens",
    "concurrency",
)


@dataclass(frozen=True)
class Entry:
    """One line of the ledger. `origin`: read, derived or unknown (then `gib` is None)."""

    rank: str
    name: str
    gib: float | None
    origin: str
    line: int | None = None


@dataclass(frozen=True)
class Identity:
    """Whether requested = weights + peak + non-torch + KV within what printing rounds away; None when a term is unknown."""

    holds: bool | None
    difference_gib: float | None


@dataclass(frozen=True)
class Account:
    numbers: dict[str, float]
    entries: tuple[Entry, ...]
    identity: Identity
    notes: tuple[str, ...]
    origins: dict[str, str] = field(default_factory=dict)


def build_account(attempt: Attempt) -> Account:
    """The account of one attempt. With several workers the tightest decides, as in the engine itself."""
    numbers: dict[str, float] = {}
    notes: list[str] = []
    for name in (
        "gpu_memory_utilization",
        "max_num_batched_tokens",
        "max_num_seqs",
        "tensor_parallel_size",
        "block_size",
    ):
        value = attempt.argument(name)
        if value is not None:
            numbers[name] = value
    if (window := attempt.argument("max_model_len")) is not None:
        numbers["max_model_len_tokens"] = window
    for fact in attempt.facts:
        if fact.name in ("available_kv_gib", "kv_capacity_tokens", "concurrency", "free0_gib"):
            numbers[fact.name] = min(numbers.get(fact.name, math.inf), fact.value)
        elif fact.name in ("weights_gib", "activation_peak_gib", "non_torch_gib", "graphs_gib"):
            known = numbers.get(fact.name)
            finer = (
                fact.name == "weights_gib" and known is not None and abs(known - fact.value) <= PRINT_STEP_GIB
            )  # 14.9889 and 14.99 are one figure
            numbers[fact.name] = (
                known if finer and known is not None else max(known if known is not None else -math.inf, fact.value)
            )
        elif fact.name == "gpu_memory_utilization" and abs(numbers.get(fact.name, math.inf) - fact.value) < 0.0051:
            continue  # the flag is exact, the line prints two decimals
        elif fact.name not in ("profiled_blocks", "explicit_kv"):
            numbers[fact.name] = fact.value
    for failure in attempt.failures:
        for name, value in failure.figures.items():
            numbers[name] = value
    if (override := attempt.values("profiled_blocks")) and attempt.argument("num_gpu_blocks_override") is not None:
        numbers["num_gpu_blocks"] = attempt.argument("num_gpu_blocks_override") or override[-1].value
    memory = last_out_of_memory(attempt)
    if memory is not None and memory.out_of_memory is not None:
        _out_of_memory_numbers(memory, numbers)
    _derive(attempt, numbers, notes)
    return Account(numbers, _entries(attempt, numbers), _identity(attempt), tuple(notes))


def last_out_of_memory(attempt: Attempt) -> Failure | None:
    """The last failure that carries PyTorch's figures."""
    return next((failure for failure in reversed(attempt.failures) if failure.out_of_memory is not None), None)


def _out_of_memory_numbers(failure: Failure, numbers: dict[str, float]) -> None:
    figures = failure.out_of_memory
    assert figures is not None
    for name in (
        "tried",
        "total",
        "free",
        "in_use",
        "allocated",
        "reserved_unallocated",
        "private_pools",
        "allowed",
        "outside_pytorch",
        "others",
    ):
        value = getattr(figures, f"{name}_gib")
        if value is not None:
            numbers[f"{name}_gib"] = round(value, 4)
    if figures.short_by_gib > 0:
        numbers["short_by_gib"] = round(figures.short_by_gib, 4)


def _derive(attempt: Attempt, numbers: dict[str, float], notes: list[str]) -> None:
    get = numbers.get
    if "total_gib" not in numbers and (requested := get("requested_gib")) and (share := get("gpu_memory_utilization")):
        numbers["total_gib"] = round(requested / share, 2)
        notes.append("the device total is derived: requested memory / utilization")
    blocks, tokens = get("num_gpu_blocks"), get("kv_capacity_tokens")
    block_size = get("block_size")
    engines = attempt.argument("data_parallel_size") or 1
    if blocks and engines > 1:
        numbers["num_gpu_blocks_per_engine"] = blocks / engines
    if blocks and tokens:
        ratio = tokens / (blocks / engines)
        if block_size is None and ratio >= 1:
            groups = DEFAULT_BLOCK_SIZE / ratio
            if groups >= 1.5 and abs(groups - round(groups)) < 0.02:
                numbers["kv_cache_groups"] = float(round(groups))
                notes.append(
                    f"the printed token count is blocks x {DEFAULT_BLOCK_SIZE} over {groups:.0f} groups of layers that share the pool: a conservative figure"
                )
                ratio = float(DEFAULT_BLOCK_SIZE)
            block_size = numbers["block_size"] = float(round(ratio))
    elif block_size is None and (blocks or tokens):
        block_size = float(DEFAULT_BLOCK_SIZE)
        numbers["block_size"] = block_size
        notes.append(f"the block size is not in the log; {DEFAULT_BLOCK_SIZE} tokens is the documented default")
    if block_size:
        if blocks and not tokens:
            tokens = numbers["kv_capacity_tokens"] = blocks / engines * block_size
        elif tokens and not blocks:
            blocks = numbers["num_gpu_blocks"] = float(round(tokens / block_size))
        if tokens:
            numbers["usable_kv_tokens"] = tokens - block_size / get("kv_cache_groups", 1.0)
    window = get("max_model_len_tokens")
    kv = get("available_kv_gib")
    if kv is not None and kv > 0 and tokens and block_size:
        profiled = attempt.values(
            "profiled_blocks"
        )  # an override shrinks the pool, not what the memory would have held
        _bytes_per_token(
            numbers, kv, profiled[-1].value * block_size if profiled and profiled[-1].value else tokens, block_size
        )
    elif (needed := get("needed_gib")) and window:
        numbers["bytes_per_token"] = float(
            roundest_between((needed - 0.005) * GIB / window, (needed + 0.005) * GIB / window)
            or round(needed * GIB / window)
        )
    if window and tokens and "concurrency" not in numbers and block_size:
        numbers["concurrency"] = round((tokens / block_size) / math.ceil(window / block_size), 2)
    if window and tokens and block_size and tokens - block_size < window:
        numbers["short_by_tokens"] = window - tokens if tokens < window else window - (tokens - block_size)
    if (needed := get("needed_gib")) is not None and kv is not None:
        numbers["short_by_gib"] = round(needed - kv, 2)
    _free_memory(numbers)


def _bytes_per_token(numbers: dict[str, float], kv_gib: float, tokens: float, block_size: float) -> None:
    half = PRINT_STEP_GIB / 2
    low = max(kv_gib - half, 0.0) * GIB / (tokens + block_size)
    high = (kv_gib + half) * GIB / tokens
    numbers["bytes_per_token"] = float(roundest_between(low, high) or round(kv_gib * GIB / tokens))


def _free_memory(numbers: dict[str, float]) -> None:
    get = numbers.get
    free, total, requested = get("free_gib"), get("total_gib"), get("requested_gib")
    if free is not None and total and requested is not None and "tried_gib" not in numbers:
        numbers["used_before_gib"] = round(total - free, 2)
        numbers["max_utilization"] = max(math.floor(free / total * 1000 + 1e-7) / 1000, 0.0)
        if requested > free:
            numbers["short_by_gib"] = round(requested - free, 2)
    if (initial := get("initial_free_gib")) is not None and (current := get("current_free_gib")) is not None:
        numbers["freed_gib"] = round(current - initial, 2)


def _ranks(attempt: Attempt) -> list[str]:
    seen = dict.fromkeys(
        fact.process
        for fact in attempt.facts
        if fact.name in RANK_FIGURES and fact.name not in ("kv_capacity_tokens", "concurrency")
    )
    workers = [name for name in seen if name.startswith(("Worker", "VllmWorker", "EngineCore"))]
    return workers or list(seen) or [""]


def _entries(attempt: Attempt, numbers: dict[str, float]) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    known_total = numbers.get("total_gib")
    read_total = any(fact.name == "total_gib" for fact in attempt.facts) or any(
        "total_gib" in failure.figures or failure.out_of_memory for failure in attempt.failures
    )
    for rank in _ranks(attempt):
        mine = {fact.name: fact for fact in attempt.facts if fact.process == rank}
        entries.append(
            Entry(
                rank,
                "total",
                known_total,
                ("read" if read_total else "derived") if known_total is not None else "unknown",
            )
        )
        requested = mine.get("requested_gib") or mine.get("budget_gib")
        requested_gib = requested.value if requested else numbers.get("requested_gib")
        origin = "read" if requested_gib is not None else "unknown"
        if requested_gib is None and known_total is not None and "gpu_memory_utilization" in numbers:
            requested_gib, origin = round(known_total * numbers["gpu_memory_utilization"], 2), "derived"
        entries.append(Entry(rank, "requested", requested_gib, origin, requested.line if requested else None))
        for name, figure in (
            ("weights", "weights_gib"),
            ("activation_peak", "activation_peak_gib"),
            ("non_torch", "non_torch_gib"),
            ("kv_cache", "available_kv_gib"),
            ("graphs", "graphs_gib"),
        ):
            fact = mine.get(figure)
            if fact is None and figure == "available_kv_gib" and figure in numbers:
                entries.append(Entry(rank, name, numbers[figure], "read"))
                continue
            if fact is None and figure == "graphs_gib" and attempt.arguments.get("enforce_eager") == "True":
                entries.append(Entry(rank, name, 0.0, "derived"))
                continue
            entries.append(
                Entry(
                    rank, name, fact.value if fact else None, "read" if fact else "unknown", fact.line if fact else None
                )
            )
        terms = [mine[name].value for name in ("weights_gib", "available_kv_gib") if name in mine]
        if requested_gib is not None and len(terms) == 2 and "activation_peak_gib" not in mine:
            entries.append(
                Entry(rank, "activation_peak_and_non_torch", round(requested_gib - sum(terms), 2), "derived")
            )
    if (others := numbers.get("others_gib")) is not None:
        entries.append(Entry("", "other_processes", others, "derived"))
    if (outside := numbers.get("outside_pytorch_gib")) is not None:
        entries.append(Entry("", "outside_pytorch", outside, "derived"))
    return tuple(entries)


def _identity(attempt: Attempt) -> Identity:
    """The largest gap over the workers that print every term; each of five printed figures is off by up to half a step."""
    worst: float | None = None
    for rank in _ranks(attempt):
        mine = {fact.name: fact.value for fact in attempt.facts if fact.process == rank}
        requested = mine.get("requested_gib", mine.get("budget_gib"))
        terms = [mine.get(name) for name in ("weights_gib", "activation_peak_gib", "non_torch_gib", "available_kv_gib")]
        if requested is None or any(term is None for term in terms):
            continue
        gap = requested - sum(term for term in terms if term is not None)
        if worst is None or abs(gap) > abs(worst):
            worst = gap
    if worst is None:
        return Identity(None, None)
    return Identity(abs(worst) <= 5 * PRINT_STEP_GIB / 2 + 1e-9, round(worst, 3))
