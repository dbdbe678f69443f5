"""Signal names of runbooks in the words of a dialect, and the parameters that templates may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from collectors.dialect import Dialect, UnknownSignal, load_dialect, split_dialect_name
from collectors.settings import Settings
from runbooks.template import SeriesName

_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class DialectNames:
    """Looks signals up in a dialect at a version; `prefix` is how a deployment spells the engine's own."""

    dialect: Dialect
    version: str
    rank_label: str = "engine"
    prefix: str = ""

    def __getitem__(self, signal: str) -> SeriesName:
        """The series of a signal, of a histogram's part with _bucket, _sum or _count. Raises KeyError."""
        try:
            return self._series(signal, "")
        except UnknownSignal:
            for part in _PARTS:
                if signal.endswith(part):
                    return self._series(signal.removesuffix(part), part)
            raise

    def _series(self, signal: str, part: str) -> SeriesName:
        metrics = self.dialect.signal(signal, self.version)
        if not metrics:
            raise UnknownSignal(f"signal {signal!r} does not exist in {self.dialect.engine} {self.version}")
        metric = metrics[0]
        if bool(part) != (metric.type in ("histogram", "summary")) or (part == "_bucket" and metric.type == "summary"):
            wanted = "_bucket, _sum or _count" if metric.type == "histogram" else "no such ending"
            raise UnknownSignal(f"{signal!r} is a {metric.type}: it takes {wanted}")
        name = self.dialect.respell(metric.name, self.prefix) + part
        return SeriesName(name, ranked="engine" in metric.labels)

    def edges(self, signal: str) -> tuple[float, ...]:
        """Finite bucket bounds of a histogram signal, ascending."""
        return self.dialect.signal(signal, self.version)[0].buckets


@lru_cache(maxsize=8)
def names_of(dialect: str = "vllm-0.11.0", rank_label: str = "engine", prefix: str = "") -> DialectNames:
    """The names of 'vllm-0.11.0' (a bare engine: its default version). Raises ValueError naming what there is."""
    engine, version = split_dialect_name(dialect)
    loaded = load_dialect(engine)
    return DialectNames(loaded, version or ".".join(map(str, loaded.default)), rank_label, prefix)


def default_names() -> DialectNames:
    """The dialect that runbooks are written and checked against."""
    return names_of("vllm-0.11.0")


def settings_dialect(settings: Settings) -> str:
    """The dialect that the operator configured, else the one all rules were checked against."""
    engine = settings.engine.dialect or "vllm"
    return f"{engine}-{settings.engine.version}" if settings.engine.version and "-" not in engine else engine


def duration(seconds: float) -> str:
    """A PromQL duration in whole seconds or minutes."""
    whole = max(1, round(seconds))
    return f"{whole // 60}m" if whole % 60 == 0 else f"{whole}s"


def rate_window_seconds(interval_seconds: float) -> float:
    """At least four scrapes and at most twelve, one minute where that allows: 1m at 5 s and 15 s, 2m at 30 s."""
    return max(4 * interval_seconds, min(60.0, 12 * interval_seconds))


def le_matcher(bound: float) -> str:
    """Matches a bucket bound however the exposition spells it (`1`, `1.0`)."""
    spellings = sorted({f"{bound:g}", repr(float(bound))})
    escaped = [spelling.replace(".", "\\\\.").replace("+", "\\\\+") for spelling in spellings]
    return f'le=~"{"|".join(escaped)}"' if len(spellings) > 1 else f'le="{spellings[0]}"'


def parameters(
    settings: Settings, *, rate_window_seconds: float, lookback_seconds: float, names: DialectNames
) -> Mapping[str, str]:
    """Values of every template parameter. SLO thresholds are snapped to the bucket edge at or below them."""
    replica = [label for label in settings.identity.replica]
    if "job" not in replica:
        replica.insert(0, "job")
    first_token, token_gap = settings.slo.time_to_first_token, settings.slo.inter_token_latency
    return {
        "w": duration(rate_window_seconds),
        "lookback": duration(lookback_seconds),
        "replica": ", ".join(replica),
        "rank": ", ".join([*replica, settings.identity.rank]),
        "first_token_slo": le_matcher(snapped(first_token.threshold_seconds, names.edges("time_to_first_token"))),
        "token_gap_slo": le_matcher(snapped(token_gap.threshold_seconds, names.edges("inter_token_latency"))),
        "first_token_budget": f"{1 - first_token.objective:.6g}",
        "token_gap_budget": f"{1 - token_gap.objective:.6g}",
        "seats": str(settings.engine.seats) if settings.engine.seats else "NaN",
        "desired": str(settings.desired_replicas) if isinstance(settings.desired_replicas, int) else "NaN",
    }


def snapped(threshold: float, edges: tuple[float, ...]) -> float:
    """The largest bucket edge at or below a threshold (the strict reading of an objective); the lowest when none is."""
    below = [edge for edge in edges if edge <= threshold]
    return below[-1] if below else (edges[0] if edges else threshold)
