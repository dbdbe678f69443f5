"""Which of the closed list of classes an attempt belongs to, by what it printed; never by the last line alone."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.memory.account import last_out_of_memory
from runbooks.memory.patterns import SAYS_MEMORY
from runbooks.memory.reader import Attempt, Failure
from runbooks.memory.torch_oom import OutOfMemory

OUTSIDE_ORDINARY_GIB = 3.0
"""Above this a process's memory outside PyTorch is no longer context, NCCL and cuBLAS of one engine (0.5 to 2 GiB, whatever the card's size)."""
OTHERS_WORTH_NAMING_GIB = 1.0
"""Below this it may be a bare context of another rank or a display."""


@dataclass(frozen=True)
class Verdict:
    """The class, the failure that it rests on (None for a start that worked) and the engine's phase then."""

    name: str
    failure: Failure | None = None
    phase: str = ""


_BY_KIND = (
    ("sampler_warmup", "sampler_warmup_oom"),
    ("window_too_long", "kv_window_too_long"),
    ("v0_window_too_long", "kv_window_too_long"),
    ("free_memory_short", "startup_free_memory_short"),
    ("freed_while_profiling", "memory_freed_during_profiling"),
)
_HOST = ("swap_too_large", "host_memory", "host_python_memory", "host_killed", "host_shared_memory", "host_signal")
_BY_PHASE = {"weights": "weights_do_not_fit", "graphs": "graph_capture_oom", "sampler": "sampler_warmup_oom"}
_BEFORE_THE_POOL = {
    "weights_gib",
    "loaded_percent",
    "free0_gib",
    "gpu_memory_utilization",
    "requested_gib",
    "total_gib",
    "max_num_batched_tokens",
    "max_model_len_tokens",
}
"""Figures that are printed before the pool is sized: a log with no other and no failure ends in the middle of a start."""
_SETTINGS = (
    "window_over_model",
    "budget_under_window",
    "budget_under_seats",
    "utilization_over_one",
    "heads",
    "metrics_bug",
    "kernel_resources",
)


def classify(attempt: Attempt, available_kv_gib: float | None) -> Verdict:
    """The class of one attempt. A specific message beats an out-of-memory figure, which beats a generic failure line."""
    kinds = {failure.kind: failure for failure in attempt.failures}
    if attempt.other_engine and not attempt.version and not attempt.facts:
        return Verdict("undetermined", phase="other_engine")
    for kind, name in _BY_KIND:
        if kind in kinds:
            return Verdict(name, kinds[kind], kinds[kind].phase)
    if "no_blocks" in kinds:
        return Verdict(
            "negative_kv" if available_kv_gib is not None and available_kv_gib < 0 else "no_kv_blocks",
            kinds["no_blocks"],
        )
    memory = last_out_of_memory(attempt)
    if memory is not None and memory.out_of_memory is not None:
        phase = _phase(attempt, memory)
        if phase == "kv_allocation" and attempt.pool_by_hand and not others_explain(memory.out_of_memory):
            return Verdict("undetermined", memory, "kv_allocation_by_hand")
        if phase == "" and attempt.start_failed and not others_explain(memory.out_of_memory):
            return Verdict(
                "undetermined", memory, "start"
            )  # nothing was served yet, and no frame says which step it was
        return Verdict(_out_of_memory_class(memory.out_of_memory, phase), memory, phase)
    for kind in _SETTINGS:
        if kind in kinds:
            return Verdict("not_memory", kinds[kind])
    if "out_of_memory" in kinds or "driver_out_of_memory" in kinds:
        failure = kinds.get("out_of_memory") or kinds["driver_out_of_memory"]
        phase = _phase(attempt, failure)
        return Verdict(_BY_PHASE.get(phase, "undetermined"), failure, phase)
    if "nccl" in kinds:
        return Verdict("undetermined", kinds["nccl"], "nccl")
    for kind in _HOST:
        if kind == "host_signal" and attempt.probe_failed and kind in kinds:
            return Verdict("not_memory", kinds[kind], "probe")
        if kind in kinds:
            return Verdict("host_oom", kinds[kind])
    if available_kv_gib is not None and available_kv_gib < 0:
        return Verdict("negative_kv")
    if "exception" in kinds and not attempt.serving_without_fault:
        if SAYS_MEMORY.search(kinds["exception"].message):
            return Verdict("undetermined", kinds["exception"], "unknown_words")
        return Verdict("not_memory", kinds["exception"])
    if attempt.generic_failures or not attempt.recognised:
        return Verdict("undetermined")
    if (
        attempt.facts
        and not attempt.started
        and not attempt.statistics
        and {f.name for f in attempt.facts} <= _BEFORE_THE_POOL
    ):
        return Verdict("undetermined", phase="cut_short")
    return Verdict("not_memory")


def _phase(attempt: Attempt, failure: Failure) -> str:
    """By the traceback's frames; without frames by how far the start had come."""
    if failure.phase == "warm_up" or failure.phase == "dummy_run" and attempt.values("available_kv_gib"):
        return "graphs"  # warm-up and capture run after the pool was sized, in the same slack
    if failure.phase == "dummy_run":
        return "profiling"
    if failure.phase:
        return failure.phase
    if attempt.fatal or attempt.started or attempt.statistics:
        return "serving"
    if attempt.values("captured_percent") and not attempt.values("graphs_gib"):
        return "graphs"
    memory = failure.out_of_memory
    if memory is not None and memory.private_pools_gib is not None and not attempt.start_failed:
        return "serving"  # graphs hold memory: they had been captured
    if attempt.values("graphs_gib"):
        return ""
    if attempt.values("available_kv_gib"):
        return "" if attempt.arguments.get("enforce_eager") == "True" else "graphs"
    if attempt.values("weights_gib"):
        return "profiling"
    return "weights" if attempt.values("loaded_percent") else ""


def others_explain(memory: OutOfMemory) -> bool:
    """True when other processes hold enough for the request to have fitted without them."""
    others = memory.others_gib
    return others is not None and others >= OTHERS_WORTH_NAMING_GIB and others >= memory.short_by_gib


def outside_is_large(memory: OutOfMemory) -> bool:
    """True when memory outside PyTorch is beyond what one engine's context and libraries take."""
    outside = memory.outside_pytorch_gib
    return outside is not None and outside >= OUTSIDE_ORDINARY_GIB


def _out_of_memory_class(memory: OutOfMemory, phase: str) -> str:
    if phase == "graphs":
        return "graph_capture_oom"
    if phase == "sampler":
        return "sampler_warmup_oom"
    if others_explain(memory):
        return "other_process"
    if phase == "weights":
        return "weights_do_not_fit"
    if phase == "kv_allocation":
        return "other_process"
    if phase == "profiling":
        return "runtime_oom_activation"
    if memory.allocated_gib is None:
        return "undetermined"  # the message is cut before the figures that decide
    if memory.fragmentation_possible:
        return "runtime_oom_fragmentation"
    if outside_is_large(memory):
        return "runtime_oom_outside_pytorch"
    return "runtime_oom_activation" if phase == "serving" else "undetermined"
