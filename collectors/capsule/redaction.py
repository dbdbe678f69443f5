"""Label values that must not leave the house: replaced before anything is written."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from collectors.model import Labels, Samples
from collectors.source import QueryRejected

_UNTOUCHABLE = frozenset(("__name__", "le", "quantile"))


class Redactor:
    """Replaces what a label's regular expression matches by a pseudonym, equal for equal text within one recording.

    Pseudonyms are keyed by a secret of the recording that is thrown away with it, so they cannot be guessed back.
    Raises QueryRejected for a regular expression that cannot be read, or a label that carries meaning (`le`).
    """

    def __init__(self, rules: Mapping[str, str] | None, secret: bytes) -> None:
        self._secret = secret
        self._rules: dict[str, re.Pattern[str]] = {}
        self._replaced: dict[str, set[str]] = {label: set() for label in rules or {}}
        for label, pattern in (rules or {}).items():
            if label in _UNTOUCHABLE:
                raise QueryRejected(
                    f"the label {label!r} cannot be redacted", "Leave the metric out with --match instead"
                )
            try:
                self._rules[label] = re.compile(pattern)
            except re.error as error:
                raise QueryRejected(f"--redact {label}: {pattern!r} is no regular expression: {error}") from None

    def labels(self, labels: Labels) -> Labels:
        """The labels with pseudonyms."""
        if not any(label in labels for label in self._rules):
            return labels
        changed = dict(labels)
        for label in self._rules.keys() & labels.keys():
            changed[label] = self._rules[label].sub(self._pseudonym, labels[label])
            if changed[label] != labels[label]:
                self._replaced[label].add(changed[label])
        return changed

    def note(self, labels: Labels) -> None:
        """Take notice of labels that were replaced in an earlier run."""
        for label in self._rules.keys() & labels.keys():
            if "redacted-" in labels[label]:
                self._replaced[label].add(labels[label])

    def counts(self) -> dict[str, int]:
        """How many different values each label had replaced."""
        return {label: len(values) for label, values in sorted(self._replaced.items())}

    def series(self, series: Samples) -> Samples:
        """The series with pseudonyms in its labels."""
        labels = self.labels(series.labels)
        return series if labels is series.labels else Samples(labels, series.times_ms, series.values)

    def _pseudonym(self, found: re.Match[str]) -> str:
        if not found[0]:
            return ""
        return (
            "redacted-"
            + hmac.new(self._secret, found[0].encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:10]
        )
