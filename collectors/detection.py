"""Which engine version a replica runs, read from the names it exports.

Names come and go at known releases, so the set that a replica exports rules versions in or out. What is left is a stretch between two
milestones of the dialect, never a patch release; the configuration can name the exact one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from collectors.dialect import Dialect, Version, load_dialect, parse_version, split_dialect_name
from collectors.settings import Engine

_IMPOSSIBLE = 10.0
"""Weight of a name that a version cannot export, against 1 for a name that it should and that may have been dropped on the way."""
_LABEL = 0.5


@dataclass(frozen=True)
class EngineVersion:
    """The engine of one replica as far as its metrics tell."""

    dialect: Dialect
    version: Version
    """The version that names are looked up at."""
    since: Version
    until: Version | None
    """First version that cannot be it; None when it may be newer than the dialect knows."""
    prefix: str
    how: Literal["configured", "told", "detected", "assumed"]
    """told = by the replica's own /version."""

    @property
    def text(self) -> str:
        """'vLLM 0.11.0' (configured), 'vLLM 0.11.0 (/version)', 'vLLM 0.11', 'vLLM 0.14 to 0.19', 'vLLM 0.32 or newer'; '?' when assumed."""
        if self.how in ("configured", "told"):
            exact = f"{self.dialect.title} {'.'.join(map(str, self.version))}"
            return f"{exact} (/version)" if self.how == "told" else exact
        words = f"{self.dialect.title} {_minor(self.since)}"
        if self.until is None:
            words += " or newer"
        elif self.until[:2] > (self.since[0], self.since[1] + 1):
            words += f" to {_before(self.until)}"
        return words + ("?" if self.how == "assumed" else "")

    def names(self, signal: str) -> tuple[str, ...]:
        """Metric names of a signal as this replica spells them, preferred first; empty = not in this engine version."""
        return tuple(self.dialect.respell(m.name, self.prefix) for m in self.dialect.signal(signal, self.version))


def _minor(version: Version) -> str:
    return f"{version[0]}.{version[1]}" if version[2:] in ((), (0,)) else ".".join(map(str, version))


def _before(version: Version) -> str:
    """The newest minor release before a version: (0, 12, 0) -> '0.11'; (0, 9, 2) -> '0.9.1'."""
    if any(version[2:]):
        return ".".join(map(str, (*version[:2], version[2] - 1)))
    return f"{version[0]}.{max(version[1] - 1, 0)}"


@lru_cache(maxsize=8)
def telling_families(dialect: Dialect) -> tuple[str, ...]:
    """Families whose presence tells versions apart, and the two that every engine has."""
    told = []
    for name in dict.fromkeys(entry.name for entry in dialect.entries):
        if not name.startswith(dialect.prefix):
            continue
        at = [dialect.metric(name, version) for version in dialect.milestones]
        some = [entry for entry in at if entry is not None]
        if len(some) < len(at) and any(entry.always or entry.status == "hidden" for entry in some):
            told.append(name)
    return tuple(dict.fromkeys([*_first_names(dialect), *told]))


def _first_names(dialect: Dialect) -> tuple[str, ...]:
    return tuple(entry.name for entry in dialect.signal("requests_running", dialect.default)[:1])


@lru_cache(maxsize=8)
def telling_samples(dialect: Dialect) -> tuple[str, ...]:
    """One series name per telling family, without the prefix: what discovery asks for."""
    samples = []
    for name in telling_families(dialect):
        entry = next(entry for entry in dialect.entries if entry.name == name)
        samples.append((name + "_count" if entry.type == "histogram" else name).removeprefix(dialect.prefix))
    return tuple(samples)


@lru_cache(maxsize=4096)
def _detect(dialect: Dialect, families: frozenset[str], ranked: bool | None) -> tuple[Version, Version | None, float]:
    """Best stretch of versions and its score (0 = everything fits)."""
    scores: list[float] = []
    for version in dialect.milestones:
        score = 0.0
        for name in telling_families(dialect):
            entry = dialect.metric(name, version)
            if name in families:
                score -= _IMPOSSIBLE if entry is None else 0.0
            elif entry is not None and entry.always and entry.status != "hidden":
                score -= 1.0
        running = dialect.metric(_first_names(dialect)[0], version)
        if ranked is not None and running is not None and ranked != ("engine" in running.labels):
            score -= _LABEL
        scores.append(score)
    best = max(scores)
    fitting = [index for index, score in enumerate(scores) if score == best]
    default = max((i for i, version in enumerate(dialect.milestones) if version <= dialect.default), default=0)
    chosen = default if default in fitting else fitting[0]
    first, last = chosen, chosen
    while first - 1 in fitting:
        first -= 1
    while last + 1 in fitting:
        last += 1
    until = dialect.milestones[last + 1] if last + 1 < len(dialect.milestones) else None
    return dialect.milestones[first], until, best


def detect(
    families: Collection[str], settings: Engine, *, prefix: str = "", ranked: bool | None = None, told: str = ""
) -> EngineVersion:
    """The engine version of a replica that exports these families (the dialect's own spelling).

    `ranked` tells whether its gauges carry an engine label, `told` what its /version answers. What the configuration names wins. Raises ValueError for a configured
    dialect or version that does not exist.
    """
    engine, named = split_dialect_name(settings.dialect) if settings.dialect else ("vllm", "")
    dialect = load_dialect(engine)
    spelled = prefix or dialect.prefix
    if version_text := settings.version or named:
        version = parse_version(version_text)
        return EngineVersion(dialect, version, version, version, spelled, "configured")
    if told:
        version = parse_version(told)
        return EngineVersion(dialect, version, version, version, spelled, "told")
    known = frozenset(name for name in families if name.startswith(dialect.prefix))
    if not known:
        return EngineVersion(dialect, dialect.default, dialect.default, dialect.default, spelled, "assumed")
    since, until, score = _detect(dialect, known, ranked)
    inside = since <= dialect.default and (until is None or dialect.default < until)
    version = dialect.default if inside else since
    return EngineVersion(dialect, version, since, until, spelled, "detected" if score > -_IMPOSSIBLE else "assumed")


def always_exported(shown: Collection[str], configured: str = "", engine: str = "vllm") -> frozenset[str]:
    """Canonical signals that every version which fits exports without a feature being switched on.

    A version fits when it has every signal that is shown; a configured one stands alone. Hidden names do not count.
    """
    return _always_exported(load_dialect(engine), frozenset(shown), configured)


@lru_cache(maxsize=256)
def _always_exported(dialect: Dialect, shown: frozenset[str], configured: str) -> frozenset[str]:
    known = [signal for signal in shown if signal in dialect.signals]
    fitting = [v for v in dialect.milestones if all(dialect.signal(signal, v) for signal in known)]
    versions = [dialect.clamp(configured)] if configured else fitting or list(dialect.milestones)
    engine_signals = {entry.signal for entry in dialect.entries if entry.name.startswith(dialect.prefix)}
    return frozenset(
        signal
        for signal in engine_signals
        if all(any(m.always and m.status != "hidden" for m in dialect.signal(signal, v)) for v in versions)
    )


def engines_text(counts: Mapping[str, int]) -> str:
    """'vLLM 0.11' when all agree, else 'vLLM 0.11 (3), vLLM 0.32 or newer (1)', most frequent first."""
    if len(counts) == 1:
        return next(iter(counts))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{text} ({count})" for text, count in ordered)
