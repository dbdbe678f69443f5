"""What the API tells about the server itself: targets, flags, build, run time; what Grafana's Prometheus data source asks beside queries."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from collectors.instants import format_instant
from collectors.store.api_params import Parameters
from collectors.store.blocks import Blocks
from collectors.store.promql import Engine
from collectors.store.scrape import ScrapeSettings, TargetStatus

API_VERSION = "3.0.0+pagewatch"
"""The Prometheus whose API and semantics are answered; clients choose features by it. What follows the plus is ours."""

Answer = tuple[Any, Sequence[str], Sequence[str]]
StatusEndpoint = Callable[[Parameters, Request], Answer]


@dataclass(frozen=True)
class ServedData:
    """What is served: an engine over blocks, a clock, and what there is to say about targets (nothing for an incident file)."""

    blocks: Blocks
    engine: Engine
    now_ms: Callable[[], int]
    statuses: Callable[[], Sequence[TargetStatus]] = tuple
    scrape_settings: ScrapeSettings | None = None
    problem: Callable[[], str] = str
    flags: Mapping[str, str] = field(default_factory=dict)
    retention: str = ""
    started_ms: int = 0


def status_routes(served: ServedData) -> dict[str, StatusEndpoint]:
    """GET endpoints below /api/v1/ that take no query."""
    about = _About(served)
    return {
        "targets": about.targets,
        "scrape_pools": about.scrape_pools,
        "rules": lambda parameters, request: ({"groups": []}, (), ()),
        "alerts": lambda parameters, request: ({"alerts": []}, (), ()),
        "alertmanagers": lambda parameters, request: ({"activeAlertmanagers": [], "droppedAlertmanagers": []}, (), ()),
        "status/buildinfo": about.build,
        "status/flags": about.flags,
        "status/runtimeinfo": about.runtime,
        "status/config": lambda parameters, request: ({"yaml": ""}, (), ()),
        "status/tsdb": about.tsdb,
    }


class _About:
    def __init__(self, served: ServedData) -> None:
        self._served = served
        self._started_ms = served.started_ms or served.now_ms()

    def targets(self, parameters: Parameters, request: Request) -> Answer:
        state = parameters.text("state").lower()
        pool = parameters.text("scrapePool")
        statuses = [] if state == "dropped" else self._served.statuses()
        active = [self._target(status) for status in statuses if not pool or status.target.job == pool]
        return {"activeTargets": active, "droppedTargets": [], "droppedTargetCounts": {}}, (), ()

    def _target(self, status: TargetStatus) -> dict[str, Any]:
        settings = self._served.scrape_settings or ScrapeSettings()
        target = status.target
        return {
            "discoveredLabels": {"__address__": target.instance, **target.labels},
            "labels": dict(target.labels),
            "scrapePool": target.job,
            "scrapeUrl": target.url,
            "globalUrl": target.url,
            "lastError": status.error,
            "lastScrape": format_instant(status.at_ms) if status.at_ms else "0001-01-01T00:00:00Z",
            "lastScrapeDuration": status.duration_seconds,
            "health": status.health,
            "scrapeInterval": f"{settings.interval_seconds:g}s",
            "scrapeTimeout": f"{settings.limits.timeout_seconds:g}s",
        }

    def scrape_pools(self, parameters: Parameters, request: Request) -> Answer:
        return {"scrapePools": sorted({status.target.job for status in self._served.statuses()})}, (), ()

    def build(self, parameters: Parameters, request: Request) -> Answer:
        said = {"version": API_VERSION, "revision": "", "branch": "", "buildUser": "", "buildDate": "", "goVersion": ""}
        return said | {"application": "pagewatch"}, (), ()

    def flags(self, parameters: Parameters, request: Request) -> Answer:
        return dict(self._served.flags), (), ()

    def runtime(self, parameters: Parameters, request: Request) -> Answer:
        return (
            {
                "startTime": format_instant(self._started_ms),
                "CWD": os.getcwd(),
                "reloadConfigSuccess": True,
                "lastConfigTime": format_instant(self._started_ms),
                "corruptionCount": 0,
                "goroutineCount": threading.active_count(),
                "GOMAXPROCS": os.cpu_count() or 1,
                "GOGC": "",
                "GODEBUG": "",
                "storageRetention": self._served.retention,
                "serverTime": format_instant(time.time_ns() // 1_000_000),
            },
            (),
            (),
        )

    def tsdb(self, parameters: Parameters, request: Request) -> Answer:
        extent = self._served.blocks.extent_ms()
        head = {
            "numSeries": len(self._served.blocks.index),
            "numLabelPairs": 0,
            "chunkCount": 0,
            "minTime": extent[0] if extent else 0,
            "maxTime": extent[1] if extent else 0,
        }
        empty: dict[str, Any] = dict.fromkeys(
            (
                "seriesCountByMetricName",
                "labelValueCountByLabelName",
                "memoryInBytesByLabelName",
                "seriesCountByLabelValuePair",
            ),
            [],
        )
        return {"headStats": head} | empty, (), ()
