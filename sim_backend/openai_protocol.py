"""The OpenAI requests that the real server takes, and the errors it gives back, in its own shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sim_backend.text import VOCABULARY

MAX_LOGPROBS = 20


class Refused(Exception):
    """A request the server answers with an error object: `{"error": {"message", "type", "param": null, "code"}}`."""

    def __init__(self, message: str, kind: str = "BadRequestError", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.status}}


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class SamplingFields(BaseModel):
    """What both routes take. Fields that do not matter here are accepted and ignored."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    priority: int = 0
    prompt_logprobs: int | None = None
    user: str | None = None

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def sequences(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.prompt_logprobs is not None


class CompletionBody(SamplingFields):
    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    max_tokens: int | None = 16
    echo: bool | None = False
    logprobs: int | None = None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """An echo with log-probabilities needs those of the prompt too."""
        return self.prompt_logprobs is not None or (bool(self.echo) and self.logprobs is not None)


class ChatBody(SamplingFields):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = Field(default=None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prompt ready for the engine."""

    tokens: list[int]
    max_tokens: int
    tool: tuple[str, str] | None = None
    """(name, arguments as JSON text) when the answer is a tool call."""


def parse_body(kind: type[SamplingFields], data: Any) -> Any:
    """Validate; a schema error is answered with pydantic's text and the type "Bad Request". Raises Refused."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = [
            {"type": item["type"], "loc": ("body", *item["loc"]), "msg": item["msg"], "input": item["input"]}
            for item in error.errors()
        ]
        raise Refused(str(details), "Bad Request") from error


def check_sampling(body: SamplingFields) -> None:
    """Sampling parameters out of range. Raises Refused."""
    temperature = 1.0 if body.temperature is None else body.temperature
    checks: list[tuple[bool, str]] = [
        (body.sequences < 1, f"n must be at least 1, got {body.sequences}."),
        (_outside(body.presence_penalty, -2, 2), f"presence_penalty must be in [-2, 2], got {body.presence_penalty}."),
        (
            _outside(body.frequency_penalty, -2, 2),
            f"frequency_penalty must be in [-2, 2], got {body.frequency_penalty}.",
        ),
        (
            body.repetition_penalty is not None and body.repetition_penalty <= 0,
            f"repetition_penalty must be greater than zero, got {body.repetition_penalty}.",
        ),
        (temperature < 0, f"temperature must be non-negative, got {temperature}."),
        (body.top_p is not None and not 0 < body.top_p <= 1, f"top_p must be in (0, 1], got {body.top_p}."),
        (body.top_k is not None and body.top_k < -1, f"top_k must be 0 (disable), or at least 1, got {body.top_k}."),
        (_outside(body.min_p, 0, 1), f"min_p must be in [0, 1], got {body.min_p}."),
        (body.max_tokens is not None and body.max_tokens < 1, f"max_tokens must be at least 1, got {body.max_tokens}."),
        (body.min_tokens < 0, f"min_tokens must be greater than or equal to 0, got {body.min_tokens}."),
        (
            body.max_tokens is not None and body.min_tokens > body.max_tokens >= 1,
            f"min_tokens must be less than or equal to max_tokens={body.max_tokens}, got {body.min_tokens}.",
        ),
        ("" in body.stop_strings, "stop cannot contain an empty string."),
        (temperature == 0 and body.sequences > 1, f"n must be 1 when using greedy sampling, got {body.sequences}."),
    ]
    for wrong, message in checks:
        if wrong:
            raise Refused(message)


def _outside(value: float | None, low: float, high: float) -> bool:
    return value is not None and not low <= value <= high


def check_logprobs(wanted: int | None) -> None:
    if wanted is not None and wanted > MAX_LOGPROBS:
        raise Refused(f"Requested sample logprobs of {wanted}, which is greater than max allowed: {MAX_LOGPROBS}")


def completion_limit(tokens: list[int], max_tokens: int | None, max_model_len: int) -> int:
    """max_tokens of a completion (default 16). The limit in the message is the window minus max_tokens, as the real server prints it. Raises Refused."""
    wanted = 16 if max_tokens is None else max_tokens
    _check_tokens(tokens)
    if len(tokens) > max_model_len - wanted:
        raise Refused(_too_long(max_model_len - wanted, len(tokens)))
    return wanted


def chat_limit(tokens: list[int], max_tokens: int | None, max_model_len: int) -> int:
    """max_tokens of a chat (default: the rest of the window). Raises Refused."""
    _check_tokens(tokens)
    length = len(tokens)
    if length >= max_model_len:
        raise Refused(_too_long(max_model_len, length) + " None")
    if max_tokens is None:
        return max_model_len - length
    if length + max_tokens > max_model_len:
        raise Refused(
            f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length is {max_model_len} tokens and "
            f"your request has {length} input tokens ({max_tokens} > {max_model_len} - {length}). None"
        )
    return max_tokens


def _too_long(limit: int, length: int) -> str:
    return (
        f"This model's maximum context length is {limit} tokens. However, your request has {length} input tokens. "
        "Please reduce the length of the input messages."
    )


def _check_tokens(tokens: list[int]) -> None:
    if not tokens:
        raise Refused("The decoder prompt cannot be empty")
    worst = max(tokens)
    if worst >= VOCABULARY or min(tokens) < 0:
        raise Refused(f"Token id {worst} is out of vocabulary")


def prompts_of(body: CompletionBody, tokenized: Any) -> list[list[int]]:
    """The prompts of a completion as token ids; `tokenized` turns a text into them. Raises Refused."""
    prompt = body.prompt
    if prompt is None or prompt == "":
        raise Refused("Either prompt or prompt_embeds must be provided and non-empty.", "Bad Request")
    if isinstance(prompt, str):
        return [tokenized(prompt)]
    if not prompt:
        raise Refused("please provide at least one prompt")
    if isinstance(prompt[0], int):
        return [[int(token) for token in prompt]]
    return [tokenized(item) if isinstance(item, str) else list(item) for item in prompt]


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }
