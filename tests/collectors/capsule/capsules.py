"""Small made-up recordings for tests of incident files."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from collectors.capsule.facts import facts_of
from collectors.capsule.file import write_capsule
from collectors.capsule.lines import TABLE_LINE
from collectors.capsule.manifest import Manifest
from collectors.model import STALE, Samples

START_MS = 1_796_000_000_123
STEP_MS = 5_000


def fleet(replicas: int = 2, scrapes: int = 60, *, gone_at: int | None = None) -> list[Samples]:
    """`up`, two gauges, a counter and a histogram per replica; the last replica ends with markers at scrape `gone_at`."""
    random = np.random.default_rng(7)
    series: list[Samples] = []
    for number in range(replicas):
        target = {"job": "vllm", "instance": f"vllm-{number}:8000"}
        own = {**target, "engine": "0", "model_name": "m"}
        times = START_MS + 137 * number + STEP_MS * np.arange(scrapes, dtype=np.int64)
        cut = gone_at if gone_at is not None and number == replicas - 1 else None
        up = np.ones(scrapes)
        if cut is not None:
            up[cut:] = 0
        series.append(Samples({"__name__": "up", **target}, times, up))

        def add(name: str, labels: dict[str, str], values: Any, cut: int | None = cut, times: Any = times) -> None:
            values = np.asarray(values, dtype=np.float64)
            if cut is not None:
                values = np.append(values[:cut], STALE)
                times = times[: cut + 1]
            series.append(Samples({"__name__": name, **labels}, times, values))

        arrivals = random.poisson(5, scrapes)
        add("vllm:num_requests_waiting", own, random.integers(0, 9, scrapes))
        add("vllm:kv_cache_usage_perc", own, random.random(scrapes))
        add("vllm:prompt_tokens_total", own, np.cumsum(arrivals * 100))
        add("process_start_time_seconds", target, np.full(scrapes, 1.7959e9))
        counts = np.cumsum(arrivals)
        for edge, share in (("0.1", 0.5), ("1.0", 0.9), ("+Inf", 1.0)):
            add("vllm:time_to_first_token_seconds_bucket", {**own, "le": edge}, np.floor(counts * share))
        add("vllm:time_to_first_token_seconds_count", own, counts)
        add("vllm:time_to_first_token_seconds_sum", own, counts * 0.31)
    return series


def written(path: Path, series: list[Samples] | None = None, **fields: Any) -> Manifest:
    """Write an incident file of the series (default: `fleet()`)."""
    series = fleet() if series is None else series
    return write_capsule(path, Manifest(**{"title": "made up", **facts_of(series), **fields}), series)


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Manifest and unpacked body of an incident file."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json")), gzip.decompress(archive.read("series.jsonl.gz"))


def rebuilt(
    path: Path, manifest: dict[str, Any], raw: bytes, *, members: bool = False, packed: bytes | None = None
) -> Path:
    """Write a zip of a changed manifest and body, with a hash and sizes that fit (as a careful forger would)."""
    lines = raw.splitlines(keepends=True)
    table = b"".join(line for line in lines if line.startswith(TABLE_LINE))
    series = b"".join(line for line in lines if not line.startswith(TABLE_LINE))
    pieces = [gzip.compress(piece, mtime=0) for piece in (series, table)] if packed is None else [packed]
    body = b"".join(pieces)
    account: dict[str, Any] = {
        **manifest["body"],
        "sha256": hashlib.sha256(body).hexdigest(),
        "bytes": len(body),
        "raw_bytes": len(raw),
        "series": series.count(b"\n"),
        "members": [],
        "times": None,
    }
    if members:
        names = sorted({json.loads(line)["metric"]["__name__"] for line in series.splitlines()})
        account["members"] = [
            {"offset": 0, "bytes": len(pieces[0]), "raw_bytes": len(series), "series": account["series"],
             "samples": account["samples"], "metrics": names}
        ]  # fmt: skip
        account["times"] = {
            "offset": len(pieces[0]),
            "bytes": len(pieces[1]),
            "raw_bytes": len(table),
            "vectors": table.count(b"\n"),
        }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("series.jsonl.gz", body)
        archive.writestr("manifest.json", json.dumps({**manifest, "body": account}))
    return path
