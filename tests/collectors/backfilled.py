"""A real Prometheus on given samples: written as OpenMetrics, made into blocks by promtool, served on a free port."""

import contextlib
import gzip
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest


def require(*binaries):
    """Skip with the reason when a binary is missing; fail instead where everything must run (CI)."""
    missing = [binary for binary in binaries if shutil.which(binary) is None]
    if missing:
        message = f"not installed: {', '.join(missing)} (Debian package prometheus)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def read_recording(path):
    """(series, start seconds, end seconds, scrape interval): series are (labels, [ms], [value])."""
    raw = Path(path).read_bytes()
    recording = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    series = [
        (entry["metric"], [round(float(t) * 1000) for t, _ in entry["values"]], [float(v) for _, v in entry["values"]])
        for entry in recording["result"]
    ]
    return series, recording["start"], recording["end"], recording["scrape_interval_s"]


def thinned(series, every):
    """Each target scraped only every so many times: what a longer scrape interval would have kept."""
    scrapes = {}
    for labels, times, _ in series:
        if labels["__name__"] == "up":
            scrapes[labels.get("instance"), labels.get("job")] = times
    kept = {target: set(times[::every]) for target, times in scrapes.items()}
    thin = []
    for labels, times, values in series:
        chosen = kept[labels.get("instance"), labels.get("job")]
        pairs = [(t, v) for t, v in zip(times, values, strict=True) if t in chosen]
        if pairs:
            thin.append((labels, [t for t, _ in pairs], [v for _, v in pairs]))
    return thin


def number(value):
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, "NaN" if value != value else repr(value))


def write_openmetrics(series, path):
    def escaped(text):
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    with open(path, "w") as file:
        for labels, times, values in series:
            inside = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items() if k != "__name__")
            head = f"{labels['__name__']}{{{inside}}}"
            for t, v in zip(times, values, strict=True):
                file.write(f"{head} {number(v)} {t // 1000}.{t % 1000:03d}\n")
        file.write("# EOF\n")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def prometheus_on(series, folder):
    """Serve the samples; yields the URL. The process is ended by its own handle."""
    require("prometheus", "promtool")
    folder = Path(folder)
    text, data = folder / "samples.om", folder / "data"
    write_openmetrics(series, text)
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    text.unlink()
    (folder / "prometheus.yml").write_text("{}\n")
    port = free_port()
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={data}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
                if answer.status == 200:
                    break
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "Prometheus did not become ready within 30 s"
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(20)
