"""Re-runs a recorded scheduler trace of the real engine and finds the first decision that differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim_backend.kv.identity import ExtraKeys, TokenChain
from sim_backend.request import Request, planned_finish
from sim_backend.scheduler import Scheduler, SchedulerConfig, Step
from sim_backend.trace import Trace, TraceConfig, TraceError, TraceRequest, parse_trace, read_trace

STOP_TOKEN = 50001


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a trace and our decisions. `step` is -1 for the totals."""

    step: int
    field: str
    expected: object
    got: object

    def __str__(self) -> str:
        place = f"step {self.step}" if self.step >= 0 else "totals"
        return f"{place}, {self.field}: expected {_short(self.expected)}, got {_short(self.got)}"


def _short(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 400 else text[:397] + "..."


def token(seed: int, index: int) -> int:
    """The token formula of the traces."""
    return (seed * 1000003 + index * 7919) % 50000


def check_trace(path: str | Path) -> Divergence | None:
    """The first divergence of our scheduler from the trace in `path` (`.json`, gzipped or not); None when identical. Raises TraceError."""
    return compare(read_trace(Path(path)), str(path))


def compare(data: dict[str, Any], name: str = "the trace") -> Divergence | None:
    """The first difference in any field that the trace defines; list order and the order of `scheduled` count. Raises TraceError, with `name`."""
    trace = parse_trace(data, name)
    replay = Replay(trace.config)
    arrivals, aborts = _by_step(trace)
    for number, expected in enumerate(trace.steps):
        got = replay.step(number, arrivals.get(number, []), aborts.get(number, []), "block_ids" in expected)
        difference = _difference(number, expected, got)
        if difference is not None:
            return difference
    if replay.scheduler.has_requests or any(at >= len(trace.steps) for at in arrivals):
        return Divergence(len(trace.steps), "has_requests", False, True)
    for total, value in (trace.totals or {}).items():
        if replay.totals.get(total) != value:
            return Divergence(-1, total, value, replay.totals.get(total))
    return None


def _difference(number: int, expected: dict[str, Any], got: dict[str, Any]) -> Divergence | None:
    unexpected = [name for name in ("arrived", "aborted", "idle") if name in got and name not in expected]
    for name in [*expected, *unexpected]:
        want, have = expected.get(name), got.get(name)
        if want != have or (name == "scheduled" and list(want or ()) != list(have or ())):
            return Divergence(number, name, want, have)
    return None


def _by_step(trace: Trace) -> tuple[dict[int, list[TraceRequest]], dict[int, list[str]]]:
    arrivals: dict[int, list[TraceRequest]] = {}
    aborts: dict[int, list[str]] = {}
    for request in trace.requests:
        arrivals.setdefault(request.arrival_step, []).append(request)
        if request.abort_at_step is not None:
            aborts.setdefault(request.abort_at_step, []).append(request.id)
    return arrivals, aborts


class Replay:
    """Drives our scheduler as the recorder drove the real one."""

    def __init__(self, config: TraceConfig) -> None:
        self.config = SchedulerConfig(**config.model_dump())
        self.scheduler = Scheduler(self.config)
        self.totals: dict[str, Any] = dict.fromkeys(
            [
                "steps",
                "preemptions",
                "preemptions_reported",
                "prefix_requests",
                "prefix_queries",
                "prefix_hits",
                "scheduled_tokens",
                "generated_tokens",
                "prompt_tokens",
                "finished_stop",
                "finished_length",
                "finished_abort",
                "first_scheduled",
                "resumed",
            ],
            0,
        )
        self.totals["idle_steps"] = []

    def request(self, spec: TraceRequest) -> Request:
        prompt = [token(seed, index) for seed, length in spec.prompt_segments for index in range(length)]
        stop = spec.stop_at_output_index

        def output(index: int) -> int:
            return STOP_TOKEN if index == stop else token(spec.output_seed, index)

        return Request(
            spec.id,
            prompt_len=len(prompt),
            finish=planned_finish(len(prompt), spec.max_tokens, self.config.max_model_len, stop),
            chain=TokenChain(prompt, output, self.config.block_size, ExtraKeys(cache_salt=spec.cache_salt)),
            arrival_time=spec.arrival_time,
            priority=spec.priority,
        )

    def step(self, number: int, arrivals: list[TraceRequest], aborts: list[str], with_ids: bool) -> dict[str, Any]:
        """One step in the trace's own fields."""
        scheduler = self.scheduler
        for spec in arrivals:
            scheduler.add(self.request(spec))
        aborted = [request for name in aborts for request in scheduler.abort([name])]
        fields: dict[str, Any] = {"step": number, "has_requests": scheduler.has_requests}
        if arrivals:
            fields["arrived"] = [spec.id for spec in arrivals]
        if aborted:
            fields["aborted"] = [request.id for request in aborted]
        step = scheduler.schedule() if scheduler.has_requests else Step()
        fields |= _decisions(step)
        fields |= _state(scheduler, with_ids)
        fields |= self._outcome(step, aborted)
        self._count(fields)
        return fields

    def _outcome(self, step: Step, aborted: list[Request]) -> dict[str, Any]:
        sampled = self.scheduler.update(step)
        stats = self.scheduler.take_stats()
        finished: list[dict[str, Any]] = [
            {"id": request.id, "reason": "abort", "num_output_tokens": request.output_len} for request in aborted
        ]
        prompt_tokens = preempted = 0
        for request in sampled:
            if request.output_len == 1:
                prompt_tokens += request.prompt_len
            preempted += sum(1 for name, _ in request.events if name == "PREEMPTED")
            request.events.clear()
            if request.finish_reason is not None:
                finished.append(
                    {
                        "id": request.id,
                        "reason": request.finish_reason,
                        "num_output_tokens": request.output_len,
                        "num_cached_tokens": request.num_cached_tokens,
                    }
                )
        return {
            "sampled": [request.id for request in sampled],
            "finished": finished,
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "kv_cache_usage": stats.kv_cache_usage_ratio,
            "prefix_cache_stats": {
                "requests": stats.prefix.requests,
                "queries": stats.prefix.queries,
                "hits": stats.prefix.hits,
            },
            "free_blocks": self.scheduler.pool.num_free,
            "iteration": {
                "num_prompt_tokens": prompt_tokens,
                "num_generation_tokens": len(sampled),
                "num_preempted_reqs": preempted,
            },
        }

    def _count(self, fields: dict[str, Any]) -> None:
        totals = self.totals
        counted: list[tuple[str, Callable[[dict[str, Any]], int]]] = [
            ("steps", lambda f: 1),
            ("preemptions", lambda f: len(f["preempted"])),
            ("preemptions_reported", lambda f: int(f["iteration"]["num_preempted_reqs"])),
            ("prefix_requests", lambda f: int(f["prefix_cache_stats"]["requests"])),
            ("prefix_queries", lambda f: int(f["prefix_cache_stats"]["queries"])),
            ("prefix_hits", lambda f: int(f["prefix_cache_stats"]["hits"])),
            ("scheduled_tokens", lambda f: int(f["total_scheduled_tokens"])),
            ("generated_tokens", lambda f: int(f["iteration"]["num_generation_tokens"])),
            ("prompt_tokens", lambda f: int(f["iteration"]["num_prompt_tokens"])),
            ("first_scheduled", lambda f: len(f["new"])),
            ("resumed", lambda f: len(f["resumed"])),
        ]
        for name, count in counted:
            totals[name] += count(fields)
        for ended in fields["finished"]:
            totals[f"finished_{ended['reason']}"] += 1
        if "idle" in fields:
            totals["idle_steps"].append(fields["step"])


def _decisions(step: Step) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "scheduled": {request.id: count for request, count in step.scheduled.items()},
        "total_scheduled_tokens": step.total_tokens,
        "new": [request.id for request in step.new],
        "resumed": [request.id for request in step.resumed],
        "preempted": [request.id for request in step.preempted],
        "num_cached_tokens": {request.id: step.admitted_tokens[request] for request in (*step.new, *step.resumed)},
    }
    if not step.scheduled:
        fields["idle"] = True
    return fields


def _state(scheduler: Scheduler, with_ids: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "running": [request.id for request in scheduler.running],
        "waiting": [request.id for request in scheduler.waiting],
        "free_blocks_after_schedule": scheduler.pool.num_free,
        "num_blocks": {request.id: len(request.blocks) for request in scheduler.running},
    }
    if with_ids:
        fields["block_ids"] = {request.id: list(request.blocks) for request in scheduler.running}
    return fields


__all__ = ["Divergence", "Replay", "TraceError", "check_trace", "compare", "read_trace"]
