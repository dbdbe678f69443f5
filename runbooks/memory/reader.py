"""Reads a log once, in bounded memory, into the facts of each start attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from runbooks.memory.framing import LONGEST_LINE, LogLine, unframed
from runbooks.memory.patterns import (
    DRIVER_OUT_OF_MEMORY,
    EXCEPTION,
    FAILURES,
    FATAL,
    FIGURES,
    FRAME,
    GENERIC,
    KEYWORDS,
    NCCL,
    OTHER_ENGINE,
    OUT_OF_MEMORY,
    PHASES,
    ROUTINE,
    VALUE_ERROR,
)
from runbooks.memory.torch_oom import OutOfMemory, parse_out_of_memory, size_gib

MOST_FACTS = 5_000
MOST_FRAMES = 64
MOST_ATTEMPTS = 200
MOST_WRAPPED = 6
"""Lines that the longest message of PyTorch takes in a narrow terminal."""

_ARGUMENT = re.compile(
    r"'?(?P<name>[a-z_]+)'?\s*[:=]\s*(?P<value>-?[0-9]+(?:\.[0-9]+)?|True|False|None|'[^']*'|\"[^\"]*\")"
)
_WANTED_ARGUMENTS = {
    "max_model_len", "gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "block_size", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "kv_cache_dtype", "enforce_eager", "enable_chunked_prefill", "num_gpu_blocks_override", "swap_space", "quantization", "dtype", "kv_cache_memory_bytes",
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One figure as it was read."""

    name: str
    value: float
    process: str
    line: int


@dataclass(frozen=True)
class Failure:
    """One line that names a reason, with its figures; `phase` is where the engine was, by the frames before it ('' when none)."""

    kind: str
    process: str
    line: int
    phase: str
    figures: dict[str, float]
    out_of_memory: OutOfMemory | None = None
    message: str = ""


@dataclass
class Attempt:
    """Everything that one start (and the run after it) said."""

    first_line: int
    version: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    generic_failures: int = 0
    start_failed: bool = False
    other_engine: str = ""
    fatal: bool = False
    started: bool = False
    statistics: int = 0
    peak_kv_usage_percent: float = 0.0
    most_waiting: int = 0
    preemptions: int = 0
    probe_failed: bool = False
    recognised: int = 0

    @property
    def serving_without_fault(self) -> bool:
        """True while the server runs: an exception then belongs to one request, and only a fatal line makes it the engine's."""
        return (self.started or self.statistics > 0) and not self.fatal and self.generic_failures == 0

    @property
    def pool_by_hand(self) -> bool:
        """True when the size of the KV pool was given, in bytes or blocks, instead of measured."""
        return bool({"kv_cache_memory_bytes", "num_gpu_blocks_override"} & self.arguments.keys()) or any(
            fact.name in ("explicit_kv", "profiled_blocks") for fact in self.facts
        )

    @property
    def ended(self) -> bool:
        """True when this start can go no further; a lone exception before the first figure may have been caught."""
        hard = any(failure.kind != "exception" for failure in self.failures)
        return hard or self.generic_failures > 0 or bool(self.failures and self.facts)

    @property
    def failed(self) -> bool:
        return bool(self.failures) or self.generic_failures > 0

    def values(self, name: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.name == name]

    def argument(self, name: str) -> float | None:
        try:
            value = float(self.arguments[name])
        except (KeyError, ValueError):
            return None
        return None if name in NEVER_ZERO and value <= 0 else value


def read_log(lines: Iterable[str]) -> list[Attempt]:
    """The attempts found, in order; at least one, perhaps empty. One pass; memory does not grow with the log."""
    reader = _Reader()
    ok, received, added = ROUTINE
    for number, raw in enumerate(lines, 1):
        if (ok in raw or received in raw or added in raw) and len(raw) < LONGEST_LINE:
            continue
        if "Avg prompt throughput" in raw and reader.statistics_line(raw):
            continue
        for keyword in KEYWORDS:
            if keyword in raw:
                for line in unframed(number, raw, one_field_a_line=True):
                    if len(raw) < LONGEST_LINE or not any(routine in line.text for routine in ROUTINE):
                        reader.take(line)
                break
    return reader.finish()


NEVER_ZERO = frozenset(
    {"total_gib", "kv_capacity_tokens", "max_model_len_tokens", "max_model_len", "block_size", "gpu_memory_utilization", "bytes_per_token", "asked_len", "derived_len", "data_parallel_size", "tensor_parallel_size"}
)  # fmt: skip
"""Figures by which others are divided; a log in which they are zero or below is damaged there."""

_STATISTICS = next(pattern for pattern in FIGURES if pattern.kind == "statistics")
_TRIED = re.compile(r"Tried to allocate (?P<tried>[0-9]+(?:\.[0-9]+)? (?:bytes|KiB|MiB|GiB))")
_LIMIT = re.compile(r"^\s*memory:\s+(?P<size>[0-9]{1,9}(?:\.[0-9]{1,4})?)(?P<unit>[KMGT]i?)\s*$")
_LIMIT_SCALE_GIB = {
    "Ki": 2.0**-20, "Mi": 2.0**-10, "Gi": 1.0, "Ti": 1024.0, "K": 1e3 / 2**30, "M": 1e6 / 2**30, "G": 1e9 / 2**30, "T": 1e12 / 2**30,
}  # fmt: skip
_SCALE_GIB = {"_bytes": 2.0**-30, "_kib": 2.0**-20}


@dataclass
class _Wrapped:
    """An out-of-memory message whose rest is expected on the following lines."""

    failure: Failure
    text: str
    lines: int = 0


def _failure_figures(groups: dict[str, str | None]) -> dict[str, float]:
    """The numeric groups of a failure's pattern; those in bytes or KiB come out in GiB."""
    figures: dict[str, float] = {}
    for name, value in groups.items():
        if value is None or not re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?", value):
            continue
        suffix = next((suffix for suffix in _SCALE_GIB if name.endswith(suffix)), "")
        if suffix:
            figures[name.removesuffix(suffix) + "_gib"] = float(value) * _SCALE_GIB[suffix]
        else:
            figures["exit_code" if name.endswith("exit_code") else name] = float(value)
    return figures


class _Reader:
    def __init__(self) -> None:
        self.attempts = [Attempt(first_line=1)]
        self.frames: dict[str, list[str]] = {}
        self.latest = ""
        self.wrapped: _Wrapped | None = None
        self.in_limits = False

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    def statistics_line(self, raw: str) -> bool:
        """Takes the periodic line, most of what a serving engine writes, without looking at its framing. False when it is another."""
        found = _STATISTICS.regex.search(raw) if len(raw) < LONGEST_LINE else None
        if found:
            self._statistics(found.groupdict())
            self.attempt.recognised += 1
        return found is not None

    def take(self, line: LogLine) -> None:
        text = line.text
        if self.wrapped is not None:
            self._continue_wrapped(line)
        if self._container_limit(text):
            return
        if ", line " in text:
            frame = FRAME.search(text)
            if frame:
                frames = (
                    self.frames.setdefault(line.process, [])
                    if len(self.frames) < MOST_FRAMES
                    else self.frames.get(line.process, [])
                )
                frames.append(frame["function"])
                self.latest = line.process
                del frames[:-MOST_FRAMES]
                return
        if text.startswith("Traceback (most recent call last)"):
            self.frames.pop(line.process, None)
            return
        attempt = self.attempt
        if not attempt.recognised and not attempt.other_engine:
            foreign = OTHER_ENGINE.search(text)
            if foreign:
                attempt.other_engine = foreign[0]
        if self._figures(line):
            return
        if self._failure(line):
            self.attempt.recognised += 1

    def _container_limit(self, text: str) -> bool:
        """The `Limits:` block of a pod's description holds the container's memory limit on a line of its own."""
        if text.strip() in ("Limits:", "Requests:"):
            self.in_limits = text.strip() == "Limits:"
            return True
        found = _LIMIT.match(text) if self.in_limits else None
        if found:
            gib = float(found["size"]) * _LIMIT_SCALE_GIB[found["unit"]]
            self.attempt.facts.append(Fact("container_limit_gib", gib, "", 0))
            self.in_limits = False
        return bool(found)

    def _figures(self, line: LogLine) -> bool:
        for pattern in FIGURES:
            found = pattern.search(line.text)
            if not found:
                continue
            groups = {name: value for name, value in found.groupdict().items() if value is not None}
            if pattern.kind == "version":
                self._version(line, groups)
            elif pattern.kind == "arguments":
                self._arguments(groups)
            elif pattern.kind == "statistics":
                self._statistics(groups)
            else:
                self._figure(pattern.kind, line, groups)
            self.attempt.recognised += 1
            return True
        return False

    def _version(self, line: LogLine, groups: dict[str, str]) -> None:
        if (
            "version" in groups
            and (self.attempt.version or self.attempt.failed)
            and len(self.attempts) < MOST_ATTEMPTS
            or self.attempt.ended
            and len(self.attempts) < MOST_ATTEMPTS
        ):
            self._next_attempt(line)
        self.attempt.version = self.attempt.version or groups.get("version", groups.get("engine_version", ""))

    def _next_attempt(self, line: LogLine) -> None:
        self.attempts.append(Attempt(first_line=line.number))
        self.frames.clear()

    def _arguments(self, groups: dict[str, str]) -> None:
        for found in _ARGUMENT.finditer(next(iter(groups.values()))):
            if found["name"] in _WANTED_ARGUMENTS and found["value"] != "None":
                self.attempt.arguments[found["name"]] = found["value"].strip("'\"")

    def _statistics(self, groups: dict[str, str]) -> None:
        attempt = self.attempt
        attempt.statistics += 1
        attempt.peak_kv_usage_percent = max(attempt.peak_kv_usage_percent, float(groups["kv_usage_percent"]))
        attempt.most_waiting = max(attempt.most_waiting, int(groups["waiting"]))

    def _figure(self, kind: str, line: LogLine, groups: dict[str, str]) -> None:
        attempt = self.attempt
        if kind == "started":
            attempt.started = True
        elif kind == "explicit_kv":
            attempt.facts.append(Fact("explicit_kv", 1.0, line.process, line.number))
        elif kind == "preemption":
            attempt.preemptions += 1
        elif kind == "probe":
            attempt.probe_failed = True
        for name, text in groups.items():
            if name in NEVER_ZERO and float(text.replace(",", "")) <= 0:
                continue
            if len(attempt.facts) < MOST_FACTS:
                attempt.facts.append(
                    Fact(
                        name,
                        float(text.replace(",", "")),
                        line.process,
                        line.number,
                    )
                )

    def _failure(self, line: LogLine) -> bool:
        text = line.text
        for pattern in FAILURES:
            found = pattern.search(text)
            figures = _failure_figures(found.groupdict()) if found else {}
            if found and all(figures.get(name, 1) > 0 for name in NEVER_ZERO):
                self._fail(
                    Failure(
                        pattern.kind,
                        line.process,
                        line.number,
                        self._phase(line.process),
                        figures,
                        message=text[:1000],
                    )
                )
                return True
        if FATAL.search(text):
            self.attempt.fatal = True
        if OUT_OF_MEMORY.search(text):
            self._out_of_memory(line)
            return True
        if NCCL.search(text):
            self._fail(Failure("nccl", line.process, line.number, self._phase(line.process), {}, message=text[:300]))
            return True
        if DRIVER_OUT_OF_MEMORY.search(text):
            self._fail(Failure("driver_out_of_memory", line.process, line.number, self._phase(line.process), {}))
            return True
        if GENERIC.search(text):
            self.attempt.generic_failures += 1
            self.attempt.start_failed |= "failed to start" in text or "initialization failed" in text
            return True
        exception = EXCEPTION.match(text.lstrip(" \t|")) or VALUE_ERROR.match(text)
        if exception and not self.attempt.serving_without_fault:
            self._fail(
                Failure("exception", line.process, line.number, self._phase(line.process), {}, message=text[:300])
            )
            return True
        return False

    def _out_of_memory(self, line: LogLine) -> None:
        memory = parse_out_of_memory(line.text)
        wanted = _TRIED.search(line.text)
        figures = {"tried_gib": size_gib(wanted["tried"])} if memory is None and wanted else {}
        phase = "weights" if "Failed to load model" in line.text else self._phase(line.process)
        self._fail(Failure("out_of_memory", line.process, line.number, phase, figures, memory))
        if (memory is None or memory.allocated_gib is None) and wanted:
            self.wrapped = _Wrapped(self.attempt.failures[-1], line.text)

    def _continue_wrapped(self, line: LogLine) -> None:
        """A message that a terminal broke into several lines is read from the lines together."""
        wrapped = self.wrapped
        assert wrapped is not None
        wrapped.text = f"{wrapped.text.rstrip()} {line.text.strip()}"
        wrapped.lines += 1
        memory = parse_out_of_memory(wrapped.text)
        failures = self.attempt.failures
        if memory is not None and wrapped.failure in failures:
            whole = replace(wrapped.failure, out_of_memory=memory, figures={})
            failures[failures.index(wrapped.failure)] = wrapped.failure = whole
        if wrapped.lines >= MOST_WRAPPED or memory is not None and memory.allocated_gib is not None:
            self.wrapped = None

    def _phase(self, process: str) -> str:
        mine = self.frames.get(process) or self.frames.get("")
        if not mine and process == "":
            mine = self.frames.get(self.latest)  # a library's own line has no prefix and follows the traceback
        frames = " ".join(mine or [])
        return next((phase for phase, names in PHASES if names.search(frames)), "")

    def _fail(self, failure: Failure) -> None:
        if len(self.attempt.failures) < 100:
            self.attempt.failures.append(failure)

    def finish(self) -> list[Attempt]:
        kept = [attempt for attempt in self.attempts if attempt.recognised or attempt.failed]
        return kept or self.attempts[:1]
