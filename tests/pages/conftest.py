"""A console on a real recording, and the ways to make its source hostile, empty or dead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from collectors.capsule import read_capsule
from collectors.capsule.convert import import_file
from collectors.model import Samples
from collectors.settings import Settings
from collectors.source import SourceUnreachable
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from pages.ui import data, record_job, story
from pages.ui.console import Console, configure
from tests.shared_data import ROOT

RECORDING = ROOT / "tests" / "data" / "recordings" / "b_waiting_growth.json.gz"
BEFORE, INSIDE, END = "2026-11-30T02:37:20Z", "2026-11-30T02:38:20Z", "2026-11-30T02:39:53Z"
INSIDE_MS = 1796006300000


@pytest.fixture(scope="session")
def capsule_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capsules") / "b_waiting_growth.capsule"
    import_file(RECORDING, path)
    return path


@pytest.fixture(scope="module")  # a running playwright holds the thread's event loop
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    from tests.pages.browsing import FLAGS, chromium

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield running
        running.close()


@dataclass
class Clock:
    now_ms: int = INSIDE_MS

    def __call__(self) -> int:
        return self.now_ms


class Switchable:
    """A source that can be switched off, and counts what it is asked."""

    def __init__(self, inner: EmbeddedSource) -> None:
        self.inner = inner
        self.down = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        told = getattr(self.inner, name)
        if not callable(told) or name in ("info", "now_ms", "extent_ms", "metadata"):
            return told  # whatever else it can be asked is an answer, and fails while it is down

        def ask(*args: Any) -> Any:
            self.asked += 1
            if self.down:
                raise SourceUnreachable("connection refused", "Is it running? pagewatch doctor")
            return told(*args)

        return ask


@dataclass
class Bench:
    """A configured console with its clock; `live` replaces its source by a switchable one over changed samples."""

    console: Console
    clock: Clock
    capsule_path: Path
    sources: list[Switchable] = field(default_factory=list)

    def live(
        self,
        keep: Callable[[str], bool] = lambda name: True,
        relabel: Mapping[str, str] | None = None,
        jobs: Mapping[str, str] | None = None,
    ) -> Switchable:
        blocks = Blocks()
        blocks.load(
            Samples(
                {k: (relabel or {}).get(v, v) for k, v in each.labels.items()}
                | ({"job": jobs[each.labels["instance"]]} if jobs else {}),
                each.times_ms,
                each.values,
            )
            for each in read_capsule(self.capsule_path).samples()
            if keep(each.labels["__name__"])
        )
        source = Switchable(EmbeddedSource(blocks, name="bench", kind="store", clock=self.clock))
        data._held[""] = data.Held("", source, None)  # type: ignore[arg-type]
        self.sources.append(source)
        return source


@pytest.fixture
def bench(capsule_path: Path, tmp_path: Path) -> Iterator[Bench]:
    clock = Clock()
    console = Console(
        str(capsule_path),
        Settings(),
        incidents_folder=tmp_path / "incidents",
        records_file=tmp_path / "records.sqlite3",
        clock=clock,
    )
    configure(console)
    data.forget_all()
    story.stop()
    yield Bench(console, clock, capsule_path)
    record_job.stop()
    data.forget_all()
    story.stop()


def components(at: Any, name: str) -> list[tuple[str, Any]]:
    """(key, data) of every component of that kind in a tested page; data is a dict, or bytes for charts."""
    found = []

    def visit(block: Any) -> None:
        for child in getattr(block, "children", {}).values():
            if getattr(child, "type", "") == "bidi_component" and child.proto.component_name == f"pagewatch_{name}":
                proto = child.proto
                raw = proto.bytes or (json.loads(proto.json) if proto.json else None)
                found.append((proto.id, raw))
            visit(child)

    visit(at.main)
    return found


def html(at: Any) -> str:
    """Everything that st.html shows on a tested page."""
    return "\n".join(element.proto.body for element in at.get("html"))
