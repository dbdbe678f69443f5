"""Alertmanager's webhook message, version 4, as Alertmanager 0.25 sends it. Validated before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

VERSION = "4"
MAX_ALERTS = 1000
EARLIEST, LATEST = 1971, 2200
"""Years in which an alert may start or end: what lies outside is a broken clock, and sources refuse to be asked about it."""
ZERO_TIME = "0001-01-01T00:00:00Z"
"""What Alertmanager writes as the end of an alert that still fires."""


class WebhookRefused(Exception):
    """A message that is not taken. One line: what is wrong with it."""


def _moment_ms(value: object) -> int | None:
    """Epoch milliseconds of an RFC 3339 time with its offset; None for the zero time and for an empty text."""
    if not isinstance(value, str):
        raise ValueError("not an RFC 3339 time")
    if not value or value.startswith("0001-01-01T"):
        return None
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time without an offset")
    if not EARLIEST <= moment.year < LATEST:
        raise ValueError(f"a time outside {EARLIEST} to {LATEST}")
    return round(moment.astimezone(UTC).timestamp() * 1000)


Moment = Annotated[int | None, BeforeValidator(_moment_ms)]


class Alert(BaseModel):
    """One alert of a group."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    status: Literal["firing", "resolved"]
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = Field(default_factory=dict)
    startsAt: Moment
    endsAt: Moment = None
    generatorURL: str = ""
    fingerprint: str = Field(min_length=1, max_length=256)

    @property
    def ends_ms(self) -> int | None:
        """When it ended; None while it fires (Alertmanager then sends the zero time, or when it would expire)."""
        return self.endsAt if self.status == "resolved" else None


class Message(BaseModel):
    """One delivery: a group of alerts. Unknown fields are ignored, a newer version is not."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    version: Literal["4"]
    groupKey: str = ""
    truncatedAlerts: int = 0
    status: Literal["firing", "resolved"]
    receiver: str = ""
    externalURL: str = ""
    alerts: Annotated[list[Alert], Field(max_length=MAX_ALERTS)]


def read_message(body: bytes) -> Message:
    """The message in a request body. Raises WebhookRefused with the first thing that is wrong."""
    try:
        message = Message.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        if place == "version":
            raise WebhookRefused(
                'version is not "4", the only Alertmanager webhook version that is understood'
            ) from None
        raise WebhookRefused(f"{place or 'body'}: {first['msg'].removeprefix('Value error, ')}") from None
    for index, alert in enumerate(message.alerts):
        if alert.startsAt is None:
            raise WebhookRefused(f"alerts.{index}.startsAt: an alert without a start")
    return message
