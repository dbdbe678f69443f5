"""What a rule reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from collectors.dialect import Dialect
from runbooks.lint.documents import Expression
from runbooks.lint.query import Query

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    rule: str
    severity: Severity
    message: str
    suggestion: str = ""


@dataclass(frozen=True)
class Subject:
    """One expression under examination. `recorded` maps the names that the same files record to their expressions."""

    expression: Expression
    query: Query
    dialect: Dialect
    version: str
    recorded: dict[str, str]
    watched_absent: frozenset[str] = frozenset()
    """Metrics under an absent() anywhere in the same files: their going silent is alerted on apart."""
