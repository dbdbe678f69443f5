"""Warnings and infos about an answer, in Prometheus's words (without its positions, which the parser does not give)."""

from __future__ import annotations

from collectors.store.promql.numbers import go_shortest

COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


class Notes:
    """What was noticed while a query ran; each text once, in order."""

    def __init__(self) -> None:
        self.warnings: dict[str, None] = {}
        self.infos: dict[str, None] = {}

    def warn(self, text: str) -> None:
        """Something that may make the answer wrong."""
        self.warnings[f"PromQL warning: {text}"] = None

    def inform(self, text: str) -> None:
        """Something that may be meant differently."""
        self.infos[f"PromQL info: {text}"] = None

    def merge(self, other: Notes) -> None:
        """Take over what another evaluation noticed."""
        self.warnings.update(other.warnings)
        self.infos.update(other.infos)

    def not_a_counter(self, name: str) -> None:
        """rate or increase over a name that does not look like a counter's."""
        if name and not name.endswith(COUNTER_SUFFIXES):
            self.inform(f'metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "{name}"')

    def bad_quantile(self, value: float) -> None:
        """A quantile outside [0, 1]."""
        self.warn(f"quantile value should be between 0 and 1, got {go_shortest(value)}")

    def bad_bucket(self, name: str, bound: str) -> None:
        """A series without a number in its le label."""
        of = f' for metric name "{name}"' if name else ""
        self.warn(f'bucket label "le" is missing or has a malformed value of "{bound}"{of}')

    def forced_monotonic(self, name: str) -> None:
        """Buckets that fall with rising bound."""
        of = f' for metric name "{name}"' if name else ""
        self.inform(
            "input to histogram_quantile needed to be fixed for monotonicity (see "
            f"https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile){of}"
        )
