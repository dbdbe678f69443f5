"""Dialects: which metric names, types, labels and caveats an engine has for each canonical signal, version by version.

A dialect is a TOML file in `collectors/dialects/`; nothing downstream of this module knows a metric name by heart.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, Literal

from collectors.model import MetricMeta

MetricType = Literal["gauge", "counter", "histogram", "summary"]
Status = Literal["active", "deprecated", "hidden", "removed", "not_yet", "unknown"]
Version = tuple[int, ...]

NOT_IN_VERSION = "not in this engine version"
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "gauge": ("",),
    "counter": ("",),
}


class UnknownSignal(KeyError):
    """A canonical signal that no dialect has; the message names near ones."""

    def __str__(self) -> str:
        return str(self.args[0])


def parse_version(text: str) -> Version:
    """The leading numbers of a version: '0.11.0' and 'v0.11.0.dev3+cpu' are both (0, 11, 0). Raises ValueError."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a version such as 0.11.0")
    numbers = tuple(int(part) for part in found.group(1).split("."))
    return numbers + (0,) * (3 - len(numbers))


@dataclass(frozen=True)
class Metric:
    """One metric name as it stands in one range of versions (since <= version < until)."""

    signal: str
    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    """Labels that the engine itself writes; `le` and the scraper's target labels are not among them."""
    extra_labels: tuple[str, ...]
    """Labels that some deployments add to this very metric (pid under several API servers)."""
    values: Mapping[str, tuple[str, ...]]
    """Closed sets of label values, where they are known."""
    buckets: tuple[float, ...]
    """Finite upper bounds, ascending; empty where they are not known. `+Inf` always follows."""
    buckets_follow: str
    """The setting that cuts the layout short (max_model_len), or ''."""
    allowed: tuple[str, ...]
    always: bool
    """Exported from the first scrape on, without any feature having to be switched on."""
    help: str
    caveat: str
    status: Literal["active", "deprecated", "hidden"]
    since: Version
    until: Version | None

    def holds_at(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    @property
    def samples(self) -> tuple[str, ...]:
        """Names of the series that the text format writes for it."""
        return tuple(self.name + suffix for suffix in _SUFFIXES[self.type])


@dataclass(frozen=True, eq=False)
class Dialect:
    """All names of one engine. Versions outside [oldest, newest] are read as the nearest known one."""

    engine: str
    title: str
    prefix: str
    other_prefixes: tuple[str, ...]
    oldest: Version
    newest: Version
    default: Version
    entries: tuple[Metric, ...]

    @cached_property
    def milestones(self) -> tuple[Version, ...]:
        """First version of every stretch in which no name appears or goes, ascending."""
        edges = {entry.since for entry in self.entries} | {e.until for e in self.entries if e.until}
        return tuple(sorted(edges | {self.oldest}))

    @cached_property
    def _by_signal(self) -> Mapping[str, tuple[Metric, ...]]:
        grouped: dict[str, list[Metric]] = {}
        for entry in self.entries:
            grouped.setdefault(entry.signal, []).append(entry)
        return {signal: tuple(entries) for signal, entries in grouped.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[Metric, ...]]:
        grouped: dict[str, list[Metric]] = {}
        for entry in self.entries:
            grouped.setdefault(entry.name, []).append(entry)
        return {name: tuple(entries) for name, entries in grouped.items()}

    @cached_property
    def _by_sample(self) -> Mapping[str, str]:
        names = {sample: entry.name for entry in self.entries for sample in entry.samples}
        for entry in self.entries:  # the base name itself (TYPE lines) and the creation-time gauge
            names.setdefault(entry.name, entry.name)
            if entry.type != "gauge":
                base = entry.name if entry.type != "counter" else entry.name.removesuffix("_total")
                names.setdefault(base + "_created", entry.name)
        return names

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(self._by_signal)

    def clamp(self, version: Version | str) -> Version:
        """The version to look things up at: newer than the newest known reads as the newest, older as the oldest."""
        parsed = parse_version(version) if isinstance(version, str) else version
        return min(max(parsed, self.oldest), self.newest)

    def metrics(self, version: Version | str, *, hidden: bool = True) -> dict[str, Metric]:
        """Every name that exists at a version; `hidden=False` leaves out those behind the hidden-metrics flag."""
        at = self.clamp(version)
        return {e.name: e for e in self.entries if e.holds_at(at) and (hidden or e.status != "hidden")}

    def signal(self, signal: str, version: Version | str) -> tuple[Metric, ...]:
        """The names of a signal at a version, the one to prefer first; empty = not in this engine version.

        Raises UnknownSignal when no version has such a signal.
        """
        found = self._asked.get((signal, version))
        if found is None:
            found = self._asked[signal, version] = self._signal(signal, version)
        return found

    @cached_property
    def _asked(self) -> dict[tuple[str, Version | str], tuple[Metric, ...]]:
        """Every row of a fleet's table asks for the same few signals of the same few versions."""
        return {}

    def _signal(self, signal: str, version: Version | str) -> tuple[Metric, ...]:
        if signal not in self._by_signal:
            near = difflib.get_close_matches(signal, self._by_signal, n=3)
            hint = f"; near ones: {', '.join(near)}" if near else ""
            raise UnknownSignal(f"{self.title} has no signal {signal!r}{hint}")
        at = self.clamp(version)
        return tuple(entry for entry in self._by_signal[signal] if entry.holds_at(at))

    def metric(self, name: str, version: Version | str) -> Metric | None:
        """The entry of a metric name at a version, None where it does not exist then."""
        at = self.clamp(version)
        return next((entry for entry in self._by_name.get(name, ()) if entry.holds_at(at)), None)

    def status(self, name: str, version: Version | str) -> Status:
        """Whether a metric name exists at a version; `unknown` when no version has it."""
        entries = self._by_name.get(name, ())
        if not entries:
            return "unknown"
        if found := self.metric(name, version):
            return found.status
        at = self.clamp(version)
        return "not_yet" if at < min(entry.since for entry in entries) else "removed"

    def replacement(self, name: str, version: Version | str) -> str | None:
        """The active name that carries the same signal at a version, when it is another one."""
        for entry in self._by_name.get(name, ())[:1]:
            for other in self.signal(entry.signal, version):
                if other.status == "active" and other.name != name:
                    return other.name
        return None

    def canonical(self, sample_name: str) -> tuple[str, str] | None:
        """A series name as scraped -> (family name in the engine's own spelling, prefix it came with).

        `ray_vllm_num_requests_running` -> ("vllm:num_requests_running", "ray_vllm_"). Names without the engine's
        prefix come back with an empty one; None when the dialect does not know the name.
        """
        if sample_name in self._by_sample:
            family = self._by_sample[sample_name]
            return family, (self.prefix if family.startswith(self.prefix) else "")
        for prefix in self.other_prefixes:
            if sample_name.startswith(prefix):
                spelled = self.prefix + sample_name.removeprefix(prefix)
                if spelled in self._by_sample:
                    return self._by_sample[spelled], prefix
        return None

    def respell(self, name: str, prefix: str) -> str:
        """A name of this dialect as a deployment with another prefix spells it."""
        if not prefix or not name.startswith(self.prefix):
            return name
        return prefix + name.removeprefix(self.prefix)

    def metadata(self, version: Version | str | None = None) -> dict[str, MetricMeta]:
        """TYPE and HELP by family name, for data that came without; all versions unless one is named."""
        chosen: Iterable[Metric] = self.entries if version is None else self.metrics(version).values()
        return {entry.name: MetricMeta(entry.type, entry.help, entry.unit) for entry in chosen}


@lru_cache(maxsize=8)
def load_dialect(engine: str = "vllm") -> Dialect:
    """The dialect of an engine, read once. Raises ValueError naming the engines there are."""
    folder = resources.files("collectors.dialects")
    file = folder / f"{engine}.toml"
    if not re.fullmatch(r"[a-z0-9_-]+", engine) or not file.is_file():
        known = sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
        raise ValueError(f"no dialect for engine {engine!r}; there are: {', '.join(known)}")
    return parse_dialect(file.read_text(encoding="utf-8"))


def split_dialect_name(name: str) -> tuple[str, str]:
    """'vllm-0.11.0' -> ('vllm', '0.11.0'); a bare engine gives an empty version."""
    found = re.fullmatch(r"([a-z_]+)(?:-v?(\d.*))?", name.strip())
    if not found:
        raise ValueError(f"{name!r} is not a dialect such as vllm-0.11.0")
    return found.group(1), found.group(2) or ""


def parse_dialect(text: str) -> Dialect:
    """A dialect from its TOML text. Raises ValueError naming the metric and the field that is wrong."""
    table = tomllib.loads(text)
    entries: list[Metric] = []
    for metric in table["metric"]:
        known = {"signal", "name", "type", "unit", "labels", "buckets", "buckets_follow", "use", "always", "help"}
        if strange := set(metric) - known - {"caveat", "ranges"}:
            raise ValueError(f"{metric.get('name')}: unknown field {', '.join(sorted(strange))}")
        last: Version = ()
        for stretch in metric["ranges"]:
            entry = _entry(table, metric, stretch)
            if entry.since < last or (entry.until is not None and entry.until <= entry.since):
                raise ValueError(f"{entry.name}: its ranges overlap or run backwards")
            last = entry.until or entry.since
            entries.append(entry)
    return Dialect(
        engine=table["engine"],
        title=table["title"],
        prefix=table["prefix"],
        other_prefixes=tuple(table["other_prefixes"]),
        oldest=parse_version(table["oldest"]),
        newest=parse_version(table["newest"]),
        default=parse_version(table["default"]),
        entries=tuple(entries),
    )


def _entry(table: Mapping[str, Any], metric: Mapping[str, Any], stretch: Mapping[str, Any]) -> Metric:
    merged = {**metric, **stretch}
    labels = merged["labels"]
    buckets = merged.get("buckets", "")
    try:
        return Metric(
            signal=merged["signal"],
            name=merged["name"],
            type=merged["type"],
            unit=merged["unit"],
            labels=tuple(table["labels"][labels] if isinstance(labels, str) else labels),
            extra_labels=tuple(merged.get("extra_labels", ())),
            values={label: tuple(values) for label, values in merged.get("values", {}).items()},
            buckets=tuple(float(bound) for bound in table["buckets"][buckets]) if buckets else (),
            buckets_follow=merged.get("buckets_follow", ""),
            allowed=tuple(table["allowed"][merged["use"]]),
            always=merged.get("always", True),
            help=merged["help"],
            caveat=merged.get("caveat", ""),
            status=merged.get("status", "active"),
            since=parse_version(merged["since"]),
            until=parse_version(merged["until"]) if "until" in merged else None,
        )
    except KeyError as missing:
        raise ValueError(f"{metric.get('name')}: {missing} is missing or names nothing in the tables") from None


def metadata(engine: str = "vllm") -> Mapping[str, MetricMeta]:
    """TYPE and HELP by family name for every name of an engine, in our own words: for imports that lack them."""
    return load_dialect(engine).metadata()
