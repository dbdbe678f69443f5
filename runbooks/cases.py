"""What a detector must do on given series: the model of `library/<id>/cases.toml`, and promtool tests made of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from collectors.instants import parse_duration_ms
from runbooks.naming import default_names
from runbooks.runbook import Runbook, RunbookError


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CaseSeries(_Table):
    """One input series in promtool's notation; the name is a signal."""

    signal: str
    labels: dict[str, str]
    values: str

    @model_validator(mode="after")
    def _known(self) -> CaseSeries:
        try:
            default_names()[self.signal]
        except KeyError as error:
            raise ValueError(str(error)) from None
        return self


class Expectation(_Table):
    """What fires at an instant of the case: label sets (empty = silent), and the value when something does."""

    at: str
    firing: tuple[dict[str, str], ...] = ()
    value: float | None = None

    @model_validator(mode="after")
    def _valued(self) -> Expectation:
        parse_duration_ms(self.at)
        if bool(self.firing) != (self.value is not None):
            raise ValueError(f"at {self.at}: an expected alert has a value, and silence has none")
        return self


class Case(_Table):
    """One situation for one detector."""

    name: str
    detector: str
    interval: str
    series: tuple[CaseSeries, ...] = Field(min_length=1)
    expect: tuple[Expectation, ...] = Field(min_length=1)


class Cases(_Table):
    """All cases of a runbook's detectors."""

    schema_: int = Field(alias="schema", ge=1, le=1)
    case: tuple[Case, ...]


def read_cases(folder: Path, runbook: Runbook) -> tuple[Case, ...]:
    """The cases of a runbook; empty when it has no detector. Raises RunbookError with file and place."""
    file = folder / "cases.toml"
    if not file.is_file():
        if runbook.detector:
            raise RunbookError(f"{file}: missing; a detector is not shipped without a case")
        return ()
    try:
        cases = Cases.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).case
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunbookError(f"{file}: not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunbookError(f"{file}: {place}: {first['msg'].removeprefix('Value error, ')}") from None
    known = {detector.name for detector in runbook.detector}
    for case in cases:
        if case.detector not in known:
            raise RunbookError(f"{file}: case {case.name!r} is about detector {case.detector!r}, which does not exist")
    return cases
