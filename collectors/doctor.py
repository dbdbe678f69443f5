"""`pagewatch doctor`: what was found, what is missing, and which line of the configuration mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from collectors.asking import Answers
from collectors.counting import counted
from collectors.dialect import Dialect, Version
from collectors.discovery import discover
from collectors.figures import Finding as FleetFinding
from collectors.identity import FleetTree
from collectors.instants import format_instant
from collectors.model import SourceInfo
from collectors.prometheus import RemoteSource
from collectors.scope import ScopedSource
from collectors.settings import Settings
from collectors.signals import duration_text, rate_window_ms
from collectors.source import Source, SourceError
from collectors.sources import open_source

Severity = Literal["ok", "note", "warning", "error"]
_MARKS: Mapping[Severity, str] = {"ok": "ok      ", "note": "note    ", "warning": "warning ", "error": "error   "}
_OTHER_NAMES = (
    ("http_requests_total", "rejected requests (4xx) cannot be seen", "Keep the http_* metrics of the API server when scraping"),
    ("process_start_time_seconds", "restarts cannot be told from gaps", "Keep the process_* metrics when scraping"),
    ("up", "a dead replica cannot be told from a missing one", "Ask a source that keeps `up`"),
)  # fmt: skip
_LOOKBACK_MS = 300_000


@dataclass(frozen=True)
class Finding:
    """One thing that was found; `mend` is the configuration line or the step that helps, '' when nothing has to be done."""

    severity: Severity
    subject: str
    text: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{_MARKS[self.severity]}{self.subject}: {self.text}" + (
            f"\n          mend: {self.mend}" if self.mend else ""
        )


def doctor(spec: str | None, settings: Settings) -> list[Finding]:
    """Look at the configuration and at one source, or at every configured source when none is named. Never raises SourceError."""
    found = [_configuration(settings)]
    if spec is None and not settings.source:
        found.append(
            Finding("error", "source", "none is configured", '[[source]] name = "prod" url = "http://prometheus:9090"')
        )
    for each in [spec] if spec is not None else [source.name for source in settings.source]:
        found += _source(each, settings)
    return found


def _configuration(settings: Settings) -> Finding:
    if settings.path is None:
        return Finding("note", "configuration", "no pagewatch.toml was found; every setting has its default")
    names = ", ".join(source.name for source in settings.source) or "none"
    return Finding("ok", "configuration", f"{settings.path}, sources: {names}")


def _source(spec: str, settings: Settings) -> list[Finding]:
    subject = settings.named_source(spec).name if settings.named_source(spec) else "source"  # type: ignore[union-attr]
    try:
        source = open_source(spec, settings)
        _check(source)
    except SourceError as error:
        return [Finding("error", subject, error.cause, error.next_step)]
    info = source.info()
    found = [Finding("ok", info.name, _answers_as(source, info))]
    if info.backend == "victoria-metrics":
        found.append(
            Finding(
                "note",
                info.name,
                "VictoriaMetrics repeats the value of 30 s ago at the right end of charts, and takes rates in its own way",
                "start it with -search.latencyOffset=5s",
            )
        )
    try:
        return found + _fleet(source, settings)
    except SourceError as error:
        return [*found, Finding("error", info.name, error.cause, error.next_step)]
    except ValueError as error:  # a configured dialect or version that does not exist
        return [*found, Finding("error", "engine", str(error), '[engine] dialect = "vllm-0.11.0"')]


def _check(source: Source) -> None:
    inner = source
    while isinstance(inner, ScopedSource):
        inner = inner.inner
    if isinstance(inner, RemoteSource):
        inner.check()


def _answers_as(source: Source, info: SourceInfo) -> str:
    extent = source.extent_ms()
    if extent is not None:
        return f"{info.kind}, {format_instant(extent[0])} to {format_instant(extent[1])}"
    return f"{info.backend or 'an unknown backend'} {info.version or '(version not told)'} at {info.url}"


def _fleet(source: Source, settings: Settings) -> list[Finding]:
    now_ms = source.now_ms()
    answers = Answers(source)
    discovery = discover(answers, settings, now_ms)
    tree = discovery.tree()
    if not tree.replicas:
        return [_no_engine(source, settings, now_ms)]
    found = [_replicas(tree, settings), *map(_of_fleet, tree.findings), *_engines(tree)]
    found.append(_interval(discovery.scrape_interval_seconds))
    found += _missing(source, tree, now_ms)
    found += [
        Finding("warning", "answers", warning, "Let all parts of the backend answer") for warning in answers.warnings()
    ]
    return found


def _no_engine(source: Source, settings: Settings, now_ms: int) -> Finding:
    if settings.scope:
        scope = ", ".join(f"{label}={value}" for label, value in settings.scope.items())
        return Finding(
            "error", "engine", f"no vLLM metric within the scope {scope}", "Correct or remove the lines under [scope]"
        )
    targets = source.series(["up"], now_ms - _LOOKBACK_MS, now_ms)
    jobs = sorted({labels.get("job", "") for labels in targets})
    seen = (
        f"it scrapes {counted(len(targets), 'target')} of the {'job' if len(jobs) == 1 else 'jobs'} {', '.join(jobs[:8])}"
        if targets
        else "it scrapes nothing, or keeps no `up`"
    )
    return Finding(
        "error",
        "engine",
        f"no vLLM metric in the last 5 minutes; {seen}",
        "Let the server scrape /metrics of every replica (scrape_configs: job_name: vllm)",
    )


def _replicas(tree: FleetTree, settings: Settings) -> Finding:
    names = ", ".join(replica.text for replica in tree.replicas[:8]) + (" ..." if len(tree.replicas) > 8 else "")
    ranks = sum(len(replica.ranks) for replica in tree.replicas)
    text = f"{counted(len(tree.replicas), 'replica')} with {counted(ranks, 'rank')}: {names}"
    wanted = settings.desired_replicas
    if isinstance(wanted, int) and wanted != len(tree.replicas):
        return Finding(
            "warning",
            "replicas",
            f"{text}; {wanted} are desired",
            f"desired_replicas = {len(tree.replicas)}, if that is right",
        )
    down = [replica.text for replica in tree.replicas if replica.up is False]
    if down:
        return Finding("warning", "replicas", f"{text}; down: {', '.join(down)}", "Look at these targets")
    return Finding("ok", "replicas", text)


def _of_fleet(finding: FleetFinding) -> Finding:
    mend = {"router_echo": "", "scraped_twice": ""}.get(
        finding.id, '[identity] replica = ["namespace", "pod"], or what is unique'
    )
    return Finding("warning" if finding.taints else "note", finding.id, finding.text, mend if finding.taints else "")


def _engines(tree: FleetTree) -> list[Finding]:
    assumed = [engine for engine in tree.engines if engine.how == "assumed"]
    if assumed:
        return [
            Finding(
                "warning",
                "engine",
                f"{tree.engine_text} is assumed; its metrics fit no known version",
                '[engine] version = "0.11.0"',
            )
        ]
    return [Finding("ok", "engine", tree.engine_text)]


def _interval(seconds: float | None) -> Finding:
    if seconds is None:
        return Finding(
            "warning",
            "scrape interval",
            "it cannot be told: the server has scraped for less than a minute, or keeps no `up`",
            "Ask again in a minute; keep `up`, and let the server scrape at a steady interval",
        )
    window = duration_text(rate_window_ms(seconds))
    if seconds > 60:
        return Finding(
            "warning", "scrape interval", f"{seconds:g} s is too long for an incident of minutes", "scrape_interval: 5s"
        )
    return Finding("ok", "scrape interval", f"{seconds:g} s; rates are taken over {window}")


def _missing(source: Source, tree: FleetTree, now_ms: int) -> list[Finding]:
    """Names that the engines' versions always export and the source does not have."""
    names = _names(source, now_ms)
    found: list[Finding] = []
    for engine in tree.engines:
        expected = _always(engine.dialect, engine.version)
        missing = sorted(
            name for name, sample in expected.items() if engine.dialect.respell(sample, engine.prefix) not in names
        )
        if missing:
            listed = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
            found.append(
                Finding("warning", "metrics", f"{engine.text} should export {listed}", "Look for metric_relabel_configs that drop, and for --disable-log-stats")
            )  # fmt: skip
        else:
            found.append(Finding("ok", "metrics", f"all {len(expected)} that {engine.text} always exports are there"))
    found += [
        Finding("warning", "metrics", f"no {name}: {harm}", mend)
        for name, harm, mend in _OTHER_NAMES
        if name not in names
    ]
    return found


def _names(source: Source, now_ms: int) -> set[str]:
    vector = source.instant('count by (__name__) ({__name__=~".*vllm.*|http_.*|process_.*|up"})', now_ms)
    return {labels.get("__name__", "") for labels in vector.labels}


def _always(dialect: Dialect, version: Version) -> dict[str, str]:
    """Family -> one sample name of it, for what is exported from the first scrape on."""
    suffix = {"histogram": "_count", "summary": "_count"}
    return {
        metric.name: metric.name + suffix.get(metric.type, "")
        for metric in dialect.metrics(version, hidden=False).values()
        if metric.always and metric.name.startswith(dialect.prefix) and metric.status == "active"
    }
