"""A recorded scheduler trace as a file: read, and checked field by field before anything is re-run."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class TraceError(Exception):
    """The file is not a scheduler trace that can be re-run; the message names the file, the fault and the next step."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class TraceConfig(_Part):
    """Scheduler and cache configuration; the names are those of the engine's flags."""

    num_gpu_blocks: int = Field(ge=1)
    block_size: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_model_len: int = Field(ge=1)
    long_prefill_token_threshold: int = Field(ge=0)
    policy: Literal["fcfs", "priority"]
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    max_loras: int = Field(default=0, ge=0)


class TraceRequest(_Part):
    """One request of a trace. The prompt is made from `prompt_segments` by the token formula."""

    id: str
    arrival_step: int = Field(ge=0)
    arrival_time: float
    priority: int
    prompt_segments: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    """[seed, length] pairs."""
    cache_salt: str | None
    max_tokens: int = Field(ge=1)
    output_seed: int
    stop_at_output_index: int | None
    abort_at_step: int | None

    @model_validator(mode="after")
    def _has_a_prompt(self) -> TraceRequest:
        if min((length for _, length in self.prompt_segments), default=0) < 0 or not self.prompt_len:
            raise ValueError("prompt_segments needs at least one token")
        return self

    @property
    def prompt_len(self) -> int:
        return sum(length for _, length in self.prompt_segments)


class Trace(_Part):
    """Requests and, step by step, what was decided. A step may leave fields out: what it has is compared."""

    format: Literal[1]
    config: TraceConfig
    requests: list[TraceRequest]
    steps: list[dict[str, Any]] = Field(min_length=1)
    totals: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Trace:
        seen: set[str] = set()
        for request in self.requests:
            if request.id in seen:
                raise ValueError(f"two requests have the id {request.id!r}")
            seen.add(request.id)
        return self


def read_trace(path: Path) -> dict[str, Any]:
    """The JSON of a trace file, gzipped or not. Raises TraceError for content that is no JSON, OSError for a path that cannot be read."""
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not a readable JSON trace ({error}). Give a .json or .json.gz file") from error
    if not isinstance(data, dict) or data.get("format") != 1:
        raise TraceError(
            f"{path}: not a scheduler trace of format 1. Its top level needs format, config, requests and steps"
        )
    return data


def parse_trace(data: dict[str, Any], name: str = "the trace") -> Trace:
    """Validate; the first mistake is named with its place. Raises TraceError."""
    try:
        return Trace.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        fault = first["msg"].removeprefix("Value error, ")
        raise TraceError(
            f"{name}: {place + ': ' if place else ''}{fault}. The trace cannot be re-run; record it again"
        ) from error
