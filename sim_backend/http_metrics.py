"""The `http_*` families as prometheus-fastapi-instrumentator's defaults make them, and the default collectors of a process.

The real server's middleware measures a request; what it measured is recorded here, so that load generated in process and requests over the
wire end in the same counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim_backend.exposition import Family, Histogram, LabelPairs, Page, histogram_samples
from sim_backend.metrics import surface

EXCLUDED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Unanchored patterns of handlers that are never recorded, as the real server excludes them."""


@dataclass(slots=True)
class _Sum:
    count: int = 0
    sum: float = 0.0
    created_seconds: float = 0.0


@dataclass(slots=True)
class _Timed:
    histogram: Histogram
    created_seconds: float


@dataclass(slots=True)
class HttpMetrics:
    """Requests by handler, method and grouped status. Series appear with their first request; the unlabelled histogram exists from start."""

    created_seconds: float
    _total: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    _in: dict[str, _Sum] = field(default_factory=dict)
    _out: dict[str, _Sum] = field(default_factory=dict)
    _low: dict[tuple[str, str], _Timed] = field(default_factory=dict)
    _high: Histogram = field(default_factory=lambda: Histogram(surface()["buckets"]["http_highr"]))
    _families: tuple[Family, ...] = ()

    def record(
        self,
        now_seconds: float,
        handler: str,
        status: str,
        duration_seconds: float,
        *,
        method: str = "POST",
        request_bytes: int = 0,
        response_bytes: int = 0,
    ) -> None:
        """One answered request: `handler` is the route template or "none", `status` grouped ("2xx"), bytes those of the Content-Length headers."""
        key = (method, status, handler)
        if key not in self._total:
            self._total[key] = [0.0, now_seconds]
            self._families = ()
        self._total[key][0] += 1
        for sums, size in ((self._in, request_bytes), (self._out, response_bytes)):
            entry = sums.get(handler)
            if entry is None:
                entry = sums[handler] = _Sum(created_seconds=now_seconds)
                self._families = ()
            entry.count += 1
            entry.sum += size
        self._high.observe(duration_seconds)
        timed = self._low.get((method, handler))
        if timed is None:
            timed = self._low[method, handler] = _Timed(Histogram(surface()["buckets"]["http_lowr"]), now_seconds)
            self._families = ()
        timed.histogram.observe(duration_seconds)

    def page(self) -> Page:
        values: list[float] = []
        for total in self._total.values():
            values += total
        for sums in (self._in, self._out):
            for entry in sums.values():
                values += (float(entry.count), float(entry.sum), entry.created_seconds)
        values += self._high.values(self.created_seconds)
        for timed in self._low.values():
            values += timed.histogram.values(timed.created_seconds)
        if not self._families:
            self._families = self._lay_out()
        return Page(self._families, values)

    def _lay_out(self) -> tuple[Family, ...]:
        totals: list[tuple[str, LabelPairs]] = []
        for method, status, handler in self._total:
            labels: LabelPairs = (("method", method), ("status", status), ("handler", handler))
            totals += (("http_requests_total", labels), ("http_requests_created", labels))
        low: list[tuple[str, LabelPairs]] = []
        for (method, handler), timed in self._low.items():
            labels = (("method", method), ("handler", handler))
            low += histogram_samples("http_request_duration_seconds", labels, timed.histogram.bounds)
        return (
            Family("http_requests", "counter", "Requests by method, status and handler.", tuple(totals)),
            _summary("http_request_size_bytes", "Content length of requests by handler.", self._in),
            _summary("http_response_size_bytes", "Content length of responses by handler.", self._out),
            Family(
                "http_request_duration_highr_seconds",
                "histogram",
                "Latency of all requests, many buckets.",
                tuple(histogram_samples("http_request_duration_highr_seconds", (), self._high.bounds)),
            ),
            Family("http_request_duration_seconds", "histogram", "Latency by handler, few buckets.", tuple(low)),
        )


def _summary(name: str, text: str, sums: dict[str, _Sum]) -> Family:
    samples: list[tuple[str, LabelPairs]] = []
    for handler in sums:
        labels = (("handler", handler),)
        samples += ((f"{name}_count", labels), (f"{name}_sum", labels), (f"{name}_created", labels))
    return Family(name, "summary", text, tuple(samples))


_GENERATIONS = ("0", "1", "2")
_PROCESS = (
    ("process_virtual_memory_bytes", "gauge", "Virtual memory of the API server."),
    ("process_resident_memory_bytes", "gauge", "Resident memory of the API server."),
    ("process_start_time_seconds", "gauge", "Start of the process, unix seconds."),
    ("process_cpu_seconds", "counter", "CPU time of the API server."),
    ("process_open_fds", "gauge", "Open file descriptors."),
    ("process_max_fds", "gauge", "Limit of open file descriptors."),
)


def _process_families() -> tuple[Family, ...]:
    families = []
    for name, text in (
        ("python_gc_objects_collected", "Objects collected by the garbage collector."),
        ("python_gc_objects_uncollectable", "Objects the garbage collector found uncollectable."),
        ("python_gc_collections", "Collections by generation."),
    ):
        samples = tuple((f"{name}_total", (("generation", generation),)) for generation in _GENERATIONS)
        families.append(Family(name, "counter", text, samples))
    version = (
        ("implementation", "CPython"),
        ("major", "3"),
        ("minor", "12"),
        ("patchlevel", "11"),
        ("version", "3.12.11"),
    )
    families.append(Family("python_info", "gauge", "The interpreter.", (("python_info", version),)))
    for name, kind, text in _PROCESS:
        sample = f"{name}_total" if kind == "counter" else name
        families.append(Family(name, kind, text, ((sample, ()),)))
    return tuple(families)


_FAMILIES = _process_families()


def process_page(start_time_seconds: float, cpu_seconds: float, requests_in_flight: int, work: int) -> Page:
    """What the default collectors of the API server's process would show; `work` (tokens handled so far) drives the collector's counters."""
    collections = work // 700
    values = [
        *(float(work * 5), float(work), float(work // 4), 0.0, 0.0, 0.0),
        *(float(collections), float(collections // 11), float(collections // 121)),
        1.0,
        *(
            5.3e9,
            9.5e8 + 2e4 * requests_in_flight,
            start_time_seconds,
            cpu_seconds,
            34.0 + requests_in_flight,
            1048576.0,
        ),
    ]
    return Page(_FAMILIES, values)
