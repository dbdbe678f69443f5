"""The store's own `/metrics`: what it took in, refused and keeps, in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from collectors.store.store import Store


class StoreCollector(Collector):
    """Reads the figures of a store when it is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        store, blocks = self._store, self._store.blocks
        yield _counter("rows_appended", "Rows (scrapes of one target) taken in.", store.rows_appended)
        yield _counter("samples_appended", "Samples taken in, staleness markers included.", store.samples_appended)
        yield _counter("samples_out_of_order", "Samples refused because a newer one was there.", blocks.out_of_order)
        yield _counter(
            "samples_duplicate", "Samples refused because of another value at their time.", blocks.duplicates
        )
        yield GaugeMetricFamily("pagewatch_store_series", "Series in memory.", len(blocks.index))
        yield GaugeMetricFamily("pagewatch_store_bytes", "Bytes of samples in memory.", blocks.nbytes)
        targets = GaugeMetricFamily("pagewatch_store_targets", "Targets by health.", labels=["health"])
        statuses = store.statuses()
        for health in ("up", "down", "unknown"):
            targets.add_metric([health], sum(status.health == health for status in statuses))
        yield targets
        disk = store.disk
        if disk is not None:
            yield GaugeMetricFamily("pagewatch_store_disk_bytes", "Bytes in the data folder.", disk.disk_bytes())
            yield GaugeMetricFamily(
                "pagewatch_store_unwritten_bytes",
                "Bytes that wait for the disk to take writes again.",
                disk.pending_bytes,
            )
            yield _counter("write_failures", "Writes that the disk refused.", disk.write_failures)


def _counter(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"pagewatch_store_{name}", help_text, value)


def own_metrics_route(store: Store) -> Route:
    """GET /metrics in the form the client asks for."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(StoreCollector(store))

    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return Route("/metrics", metrics, methods=["GET"])
