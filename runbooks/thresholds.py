"""The numbers that judgements use: `thresholds.toml` beside this file, overridden by the operator's settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from collectors.settings import Settings, SettingsError

FILE = Path(__file__).with_name("thresholds.toml")


@lru_cache(maxsize=1)
def _shipped() -> Mapping[str, Mapping[str, float]]:
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {detector: {name: float(value) for name, value in values.items()} for detector, values in table.items()}


def has_threshold(detector: str, name: str) -> bool:
    """Whether thresholds.toml has such a value."""
    return name in _shipped().get(detector, {})


@dataclass(frozen=True)
class Thresholds:
    """Values by detector id and name."""

    values: Mapping[str, Mapping[str, float]]

    def __call__(self, detector: str, name: str) -> float:
        return self.values[detector][name]

    @staticmethod
    def of(settings: Settings) -> Thresholds:
        """Shipped values with the operator's over them. Raises SettingsError for a name that no detector has.

        A detector that has no table here (its numbers are in its runbook) is left to the runbook library.
        """
        merged = {detector: dict(values) for detector, values in _shipped().items()}
        for detector, values in settings.alerts.thresholds.items():
            if detector not in merged:
                continue
            for name, value in values.items():
                if name not in merged[detector]:
                    known = ", ".join(sorted(merged[detector]))
                    raise SettingsError(f"alerts.thresholds.{detector}: no threshold {name!r}; there are: {known}")
                merged[detector][name] = value
        return Thresholds(merged)


@dataclass(frozen=True)
class Pace:
    """How far "now" reaches and how long a condition must hold, both following the scrape interval."""

    interval_ms: int
    recent_ms: int
    hold_ms: int

    @staticmethod
    def of(thresholds: Thresholds, interval_ms: int) -> Pace:
        def longer(kind: str) -> int:
            seconds, scrapes = thresholds("pace", f"{kind}_seconds"), thresholds("pace", f"{kind}_scrapes")
            return round(max(seconds * 1000, scrapes * interval_ms))

        return Pace(interval_ms, longer("recent"), longer("hold"))
