"""Signal names of runbooks in the words of a dialect, and the parameters that templates may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from collectors.dialect import Dialect, UnknownSignal, load_dialect, split_dialect_name
from collectors.settings import Settings
from collectors.signals import duration_text
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


def le_matcher(bound: float) -> str:
    """Matches a bucket bound however the exposition spells it (`1`, `1.0`)."""
    spellings = sorted({f"{bound:g}", repr(float(bound))})
    escaped = [spelling.replace(".", "\\\\.").replace("+", "\\\\+") for spelling in spellings]
    return f'le=~"{"|".join(escaped)}"' if len(spellings) > 1 else f'le="{spellings[0]}"'


def place_labels(settings: Settings) -> list[str]:
    """Labels that make a replica, the scrape job among them."""
    replica = list(settings.identity.replica)
    return replica if "job" in replica else ["job", *replica]


def parameters(settings: Settings, *, rate_window_ms: int, lookback_ms: int, names: DialectNames) -> Mapping[str, str]:
    """Values of every template parameter. SLO thresholds are snapped to the bucket edge at or below them."""
    replica = place_labels(settings)
    first_token, token_gap = settings.slo.time_to_first_token, settings.slo.inter_token_latency
    return {
        "w": duration_text(rate_window_ms),
        "lookback": duration_text(lookback_ms),
        "replica": ", ".join(replica),
        "rank": ", ".join([*replica, settings.identity.rank]),
        "first_token_slo": le_matcher(snapped(first_token.threshold_seconds, names.edges("time_to_first_token"))),
        "token_gap_slo": le_matcher(snapped(token_gap.threshold_seconds, names.edges("inter_token_latency"))),
        "first_token_budget": f"{1 - first_token.objective:.6g}",
        "token_gap_budget": f"{1 - token_gap.objective:.6g}",
        "first_token_objective": f"{first_token.threshold_seconds:.6g}",
        "seats": str(settings.engine.seats) if settings.engine.seats else "NaN",
        "desired": _desired(settings),
    }


def _desired(settings: Settings) -> str:
    """Configured number of replicas as a scalar expression: a number, or the scalar of the operator's PromQL."""
    desired = settings.desired_replicas
    if desired is None:
        return "NaN"
    return str(desired) if isinstance(desired, int) else f"scalar({desired})"


def snapped(threshold: float, edges: tuple[float, ...]) -> float:
    """The largest bucket edge at or below a threshold (the strict reading of an objective); the lowest when none is."""
    below = [edge for edge in edges if edge <= threshold]
    return below[-1] if below else (edges[0] if edges else threshold)
