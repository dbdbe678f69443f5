"""Reads a log once, in bounded memory, into the facts of each start attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from runbooks.memory.framing import LogLine, unframe
from runbooks.memory.patterns import (
    DRIVER_OUT_OF_MEMORY,
    EXCEPTION,
    FAILURES,
    FATAL,
    FIGURES,
    FRAME,
    GENERIC,
    KEYWORDS,
    OUT_OF_MEMORY,
    PHASES,
    ROUTINE,
    VALUE_ERROR,
)
from runbooks.memory.torch_oom import OutOfMemory, parse_out_of_memory

MOST_FACTS = 5_000
MOST_FRAMES = 64
MOST_ATTEMPTS = 200

_ARGUMENT = re.compile(
    r"'?(?P<name>[a-z_]+)'?\s*[:=]\s*(?P<value>-?[0-9]+(?:\.[0-9]+)?|True|False|None|'[^']*'|\"[^\"]*\")"
)
_WANTED_ARGUMENTS = {
    "max_model_len", "gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "block_size", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "kv_cache_dtype", "enforce_eager", "enable_chunked_prefill", "num_gpu_blocks_override", "swap_space", "quantization", "dtype", "kv_cache_memory",
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
    fatal: bool = False
    started: bool = False
    statistics: int = 0
    peak_kv_usage_percent: float = 0.0
    most_waiting: int = 0
    recognised: int = 0

    @property
    def serving_without_fault(self) -> bool:
        """True while the server runs: an exception then belongs to one request, and only a fatal line makes it the engine's."""
        return (self.started or self.statistics > 0) and not self.fatal and self.generic_failures == 0

    @property
    def failed(self) -> bool:
        return bool(self.failures) or self.generic_failures > 0

    def values(self, name: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.name == name]

    def argument(self, name: str) -> float | None:
        try:
            return float(self.arguments[name])
        except (KeyError, ValueError):
            return None


def read_log(lines: Iterable[str]) -> list[Attempt]:
    """The attempts found, in order; at least one, perhaps empty. One pass; memory does not grow with the log."""
    reader = _Reader()
    ok, received, added = ROUTINE
    for number, raw in enumerate(lines, 1):
        if ok in raw or received in raw or added in raw:
            continue
        for keyword in KEYWORDS:
            if keyword in raw:
                reader.take(unframe(number, raw))
                break
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self.attempts = [Attempt(first_line=1)]
        self.frames: dict[str, list[str]] = {}

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    def take(self, line: LogLine) -> None:
        text = line.text
        if ", line " in text:
            frame = FRAME.search(text)
            if frame:
                frames = (
                    self.frames.setdefault(line.process, [])
                    if len(self.frames) < MOST_FRAMES
                    else self.frames.get(line.process, [])
                )
                frames.append(frame["function"])
                del frames[:-MOST_FRAMES]
                return
        if text.startswith("Traceback (most recent call last)"):
            self.frames.pop(line.process, None)
            return
        if self._figures(line):
            return
        if self._failure(line):
            self.attempt.recognised += 1

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
            or self.attempt.failed
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
        scale = (
            1e9 / 2**30
            if groups.pop("unit", "GiB") == "GB" and attempt.version.startswith(("0.1", "0.2", "0.3", "0.4"))
            else 1.0
        )
        for name, text in groups.items():
            if len(attempt.facts) < MOST_FACTS:
                attempt.facts.append(
                    Fact(
                        name,
                        float(text.replace(",", "")) * (scale if name == "weights_gib" else 1.0),
                        line.process,
                        line.number,
                    )
                )

    def _failure(self, line: LogLine) -> bool:
        text = line.text
        for pattern in FAILURES:
            found = pattern.search(text)
            if found:
                figures = {
                    name: float(value)
                    for name, value in found.groupdict().items()
                    if value is not None and re.fullmatch(r"-?[0-9.]+", value)
                }
                self._fail(Failure(pattern.kind, line.process, line.number, self._phase(line.process), figures))
                return True
        if FATAL.search(text):
            self.attempt.fatal = True
        if OUT_OF_MEMORY.search(text):
            self._fail(
                Failure(
                    "out_of_memory", line.process, line.number, self._phase(line.process), {}, parse_out_of_memory(text)
                )
            )
            return True
        if DRIVER_OUT_OF_MEMORY.search(text):
            self._fail(Failure("driver_out_of_memory", line.process, line.number, self._phase(line.process), {}))
            return True
        if GENERIC.search(text):
            self.attempt.generic_failures += 1
            return True
        exception = EXCEPTION.match(text) or VALUE_ERROR.match(text)
        if exception and not self.attempt.serving_without_fault:
            self._fail(
                Failure("exception", line.process, line.number, self._phase(line.process), {}, message=text[:300])
            )
            return True
        return False

    def _phase(self, process: str) -> str:
        frames = " ".join(self.frames.get(process) or self.frames.get("", []))
        return next((phase for phase, names in PHASES if names.search(frames)), "")

    def _fail(self, failure: Failure) -> None:
        if len(self.attempt.failures) < 100:
            self.attempt.failures.append(failure)

    def finish(self) -> list[Attempt]:
        kept = [attempt for attempt in self.attempts if attempt.recognised or attempt.failed]
        return kept or self.attempts[:1]
