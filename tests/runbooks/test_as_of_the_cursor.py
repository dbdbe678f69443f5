"""No later sample is used: whatever is said at T on a whole recording is said on the recording cut at T."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.capsule import CapsuleSource, read_capsule
from collectors.capsule.facts import facts_of
from collectors.capsule.file import write_capsule
from collectors.capsule.manifest import Extent, Manifest
from collectors.fleet import fleet_picture
from collectors.latency import latency_picture
from collectors.model import Samples, Window
from collectors.settings import Settings
from runbooks.diagnosis import diagnose
from runbooks.engine import walk
from runbooks.verdicts import RUNBOOK_OF_CAUSE
from tests.runbooks.shipped import NAMES, as_of, shipped

SETTINGS = Settings()


def plain(value: Any) -> Any:
    """Nested plain data in which equal means equal to the bit, NaN included."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes() if value.dtype != object else [plain(v) for v in value])
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, (str, int, bool, type(None))) else repr(value)


def instants_of(name: str) -> list[int]:
    """Between scrapes, and exactly on one of the first replica."""
    window = shipped(name).manifest.window
    length = window.end_ms - window.start_ms
    between = [window.start_ms + round(length * share) + 137 for share in (0.3, 0.55, 0.8)]
    up = next(each for each in shipped(name).samples(("up",)))
    return [*between, int(up.times_ms[round(0.65 * up.times_ms.size)])]


def cut(name: str, at_ms: int, folder: Path) -> CapsuleSource:
    """The recording as it would have been written at T: samples up to T, and a manifest made of them."""
    kept = []
    for each in shipped(name).samples():
        count = int(np.searchsorted(each.times_ms, at_ms, side="right"))
        if count:
            kept.append(Samples(each.labels, each.times_ms[:count], each.values[:count]))
    whole = shipped(name).manifest
    facts = facts_of(kept, whole.metadata())
    facts["window"] = Extent(start_ms=whole.window.start_ms, end_ms=at_ms)
    path = folder / f"{name}.capsule"
    write_capsule(path, Manifest(title=whole.title, source=whole.source, engine=whole.engine, **facts), kept)
    return CapsuleSource(read_capsule(path))


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_at_an_instant_needs_no_later_sample(name: str, tmp_path: Path) -> None:
    causes = set()
    for at_ms in instants_of(name):
        whole, short = as_of(name, at_ms), cut(name, at_ms, tmp_path)
        assert max(int(s.times_ms[-1]) for s in short.capsule.samples()) <= at_ms
        told = [diagnose(source, at_ms, SETTINGS) for source in (whole, short)]
        assert plain(told[0].to_json()) == plain(told[1].to_json())
        causes.add(told[0].verdicts[0].cause)
        runbook = RUNBOOK_OF_CAUSE[told[0].verdicts[0].cause] or "waiting_growth"
        walks = [walk(runbook, source, at_ms, SETTINGS) for source in (whole, short)]
        assert plain(walks[0]) == plain(walks[1])
        window = Window(at_ms - 120_000, at_ms, 5000)
        for picture in (fleet_picture, latency_picture):
            pictures = [plain(picture(source, window, SETTINGS)) for source in (whole, short)]
            assert pictures[0] == pictures[1]
    assert causes - {"healthy"}, "no instant of the incident was looked at"


def test_queries_that_reach_ahead_see_nothing_of_it(tmp_path: Path) -> None:
    for name in NAMES[:2]:
        at_ms = instants_of(name)[1]
        whole, short = as_of(name, at_ms), cut(name, at_ms, tmp_path)
        for promql in (
            "sum(vllm:num_requests_running offset -1m)",
            f"vllm:num_requests_running @ {at_ms / 1000 + 60}",
            f"rate(vllm:generation_tokens_total[1m] @ {at_ms / 1000 + 30})",
            "max_over_time(vllm:num_requests_waiting[2m:5s] offset -1m)",
        ):
            assert plain(whole.instant(promql, at_ms)) == plain(short.instant(promql, at_ms)), promql


def test_the_comparison_would_notice_a_single_other_sample(tmp_path: Path) -> None:
    name = "seats_full"
    at_ms = instants_of(name)[1]
    short = cut(name, at_ms, tmp_path)
    changed = [
        Samples(each.labels, each.times_ms, np.append(each.values[:-1], each.values[-1] + 40))
        if each.labels["__name__"] == "vllm:num_requests_waiting"
        else each
        for each in short.capsule.samples()
    ]
    path = tmp_path / "changed.capsule"
    write_capsule(path, short.capsule.manifest, changed)
    other = CapsuleSource(read_capsule(path))
    window = Window(at_ms - 120_000, at_ms, 5000)
    assert plain(fleet_picture(short, window, SETTINGS)) != plain(fleet_picture(other, window, SETTINGS))
    assert plain(diagnose(short, at_ms, SETTINGS).to_json()) != plain(diagnose(other, at_ms, SETTINGS).to_json())
