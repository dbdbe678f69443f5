"""The shared queue cases and real recordings as data: reading, judging by their READMEs' rules, and changing them.

A changed recording (thinned scrapes, other names, other times, a healthy neighbour) must get the same judgement: what a
rule sees must be the incident, not the file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.model import Samples
from collectors.observations import observe
from collectors.settings import Settings
from runbooks.diagnosis import judge
from tests.runbooks.recorded_source import RecordedSource
from tests.shared_data import shared_files

CALM = {"healthy", "none", "ok", "undetermined", ""}


@dataclass(frozen=True)
class Case:
    """One recording with what is expected of it."""

    name: str
    path: Path
    expected: Mapping[str, Any]

    @property
    def incidents(self) -> list[Mapping[str, Any]]:
        return [incident for incident in self.expected["incidents"] if not incident.get("optional")]

    def instants(self) -> Iterator[tuple[str, float, Mapping[str, Any] | None]]:
        """(label, unix seconds, incident expected then) of every instant that the case names."""
        for label, at in sorted(self.expected["at"].items(), key=lambda item: item[1]):
            incident = None
            if label.startswith("during"):
                incident = self.incidents[int(label.split("_")[1]) - 1 if "_" in label else 0]
            yield label, at, incident

    def dense(
        self, source: RecordedSource, step: float, lead_seconds: float
    ) -> Iterator[tuple[float, Mapping[str, Any] | None]]:
        """(unix seconds, incident or None) over the whole recording, leaving out the times that are open to debate.

        Quiet: until a minute before the first incident (a restart may lead up to it), and after the instant `after`. In an incident: from `lead_seconds` after its
        start to its end.
        """
        start, end = (t / 1000 for t in source.extent_ms() or (0, 0))
        incidents = self.expected["incidents"]
        first = min((i["from"] for i in incidents), default=end + 1)
        after = self.expected["at"].get("after", end + 1) if incidents else start
        for at in np.arange(start + 60, end - 5, step):
            incident = next((i for i in self.incidents if i["from"] + lead_seconds <= at <= i["to"] - 1), None)
            if incident is not None or at < first - 60 or at >= after:
                yield float(at), incident


def cases() -> list[Case]:
    """Every queue case of the shared folder; empty when it is missing."""
    found = []
    for path in shared_files("cases", "queue", pattern="*.expect.json"):
        expected = json.loads(path.read_text())
        found.append(Case(expected["name"], path.with_name(path.name.replace(".expect.json", ".json.gz")), expected))
    return found


def diagnosed(source: RecordedSource, at: float, settings: Settings | None = None) -> dict[str, Any]:
    """The diagnosis JSON at a unix time."""
    chosen = settings or Settings()
    return judge(observe(source, round(at * 1000), chosen), chosen).to_json()


def faults(expected: Mapping[str, Any], answer: Mapping[str, Any], incident: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with an answer, by the rules of the cases' README; empty = right."""
    verdicts = answer["verdicts"]
    named = [v for v in verdicts if v["cause"] not in CALM]
    top = (named or verdicts)[0]
    allowed = set(expected.get("allowed", ()))
    found = []
    for verdict in named:
        forbidden = set(expected["must_not"]) | (set(expected.get("must_not_during", ())) if incident else set())
        counts = verdict["confidence"] == "likely" or (verdict is top and verdict["confidence"] == "possible")
        if counts and verdict["cause"] in forbidden:
            found.append(f"forbidden {verdict['cause']}")
    if incident is not None:
        right = {incident["cause"], *incident.get("accept", ())}
        hit = next((v for v in verdicts if v["cause"] in right), None)
        soft = incident.get("confidence") == "undetermined" or bool(incident.get("accept"))
        if hit is None:
            found.append(f"wanted {incident['cause']}")
        elif hit["confidence"] != "likely" and not soft:
            found.append(f"{hit['cause']} only {hit['confidence']}")
        elif not _right_place(incident["where"], hit["where"]):
            found.append(f"wrong place {hit['where']}")
        elif top["cause"] not in right | allowed:
            found.append(f"headline {top['cause']}")
        allowed = right | allowed
    elif top["cause"] not in CALM | allowed and top["confidence"] != "undetermined":
        found.append(f"false headline {top['cause']}")
    found += [f"false {v['cause']}" for v in named if v["confidence"] == "likely" and v["cause"] not in allowed]
    return found


def _right_place(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    instances, engines = wanted.get("instance", "*"), wanted.get("engine")
    named = {replica["instance"] for replica in got["replicas"]}
    if engines is not None:
        ranks = {replica["engine"] for replica in got["replicas"] if replica["engine"] is not None}
        if not ranks or not ranks <= set(engines.split("|")):
            return False
    return bool(named) and (instances == "*" or named <= set(instances.split("|")))


def thinned(source: RecordedSource, keep_every: int, offset: int = 0) -> RecordedSource:
    """Only every n-th scrape of every target, as a slower scrape interval would have it."""
    kept: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    for series in source.all_samples():
        if series.labels["__name__"] == "up":
            kept[series.labels["instance"]] = series.times_ms[offset::keep_every]
    return RecordedSource(
        [
            Samples(s.labels, s.times_ms[chosen], s.values[chosen])
            for s in source.all_samples()
            if (chosen := np.isin(s.times_ms, kept[s.labels["instance"]])).any()
        ],
        f"{source.name}, every {keep_every}th scrape",
    )


def dropped(source: RecordedSource, ratio: float, seed: int) -> RecordedSource:
    """Without a share of the scrapes of every target, `up` and all, as a scraper that was busy leaves them out."""
    random = np.random.default_rng(seed)
    kept = {
        series.labels["instance"]: series.times_ms[random.random(len(series.times_ms)) >= ratio]
        for series in source.all_samples()
        if series.labels["__name__"] == "up"
    }
    return RecordedSource(
        [
            Samples(s.labels, s.times_ms[chosen], s.values[chosen])
            for s in source.all_samples()
            if (chosen := np.isin(s.times_ms, kept[s.labels["instance"]])).any()
        ],
        f"{source.name}, {ratio:.0%} of the scrapes lost",
    )


def moved(source: RecordedSource, names: Mapping[str, str], shift_ms: int) -> RecordedSource:
    """Other instance names, another date. Values that are instants (start times) move along."""
    return RecordedSource(
        [
            Samples(
                {**s.labels, "instance": names.get(s.labels["instance"], s.labels["instance"])},
                s.times_ms + shift_ms,
                s.values + shift_ms / 1000 if _is_instant(s.labels["__name__"]) else s.values,
            )
            for s in source.all_samples()
        ],
        f"{source.name}, moved",
    )


def _is_instant(name: str) -> bool:
    return name.endswith("_created") or name == "process_start_time_seconds"


def with_neighbour(source: RecordedSource, other: RecordedSource, name: str) -> RecordedSource:
    """The replicas of another recording beside these, at the same time, under one further name each."""
    (start, end), (other_start, _) = source.extent_ms() or (0, 0), other.extent_ms() or (0, 0)
    instances = sorted({s.labels["instance"] for s in other.all_samples()})[:1]
    shifted = moved(other, {instances[0]: name}, start - other_start)
    added = [s for s in shifted.all_samples() if s.labels["instance"] == name]
    cut = [Samples(s.labels, s.times_ms[s.times_ms <= end], s.values[s.times_ms <= end]) for s in added]
    return RecordedSource(
        [*source.all_samples(), *(s for s in cut if len(s.times_ms))], f"{source.name}, with a neighbour"
    )


def moved_expectation(expected: Mapping[str, Any], names: Mapping[str, str], shift_seconds: float) -> dict[str, Any]:
    """What is expected of a `moved` recording."""
    text = json.dumps(expected)
    for old, new in names.items():
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    changed: dict[str, Any] = json.loads(text)
    changed["at"] = {label: at + shift_seconds for label, at in changed["at"].items()}
    for incident in changed["incidents"]:
        incident["from"] += shift_seconds
        incident["to"] += shift_seconds
    return changed


def recording(path: Path) -> dict[str, Any]:
    """The wrapper of a recording (ground truth included: for tests only)."""
    with gzip.open(path) as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


def healthy(found: Sequence[Case]) -> list[Case]:
    """Cases in which nothing may be named."""
    return [case for case in found if not case.expected["incidents"]]
