"""Recordings as embedded sources, for tests of walks: the same PromQL as in a replay, no file in between."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from collectors.capsule.staleness import with_markers
from collectors.model import Samples
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource


@lru_cache(maxsize=2)
def recorded(path: Path) -> tuple[EmbeddedSource, dict[str, object]]:
    """The source of a recording and its wrapper (for the ground truth that tests judge by)."""
    with gzip.open(path) as file:
        recording = json.load(file)
    samples = [
        Samples(
            series["metric"],
            np.array([round(float(t) * 1000) for t, _ in series["values"]], dtype=np.int64),
            np.array([float(v) for _, v in series["values"]]),
        )
        for series in recording.pop("result")
    ]
    blocks = Blocks()
    blocks.load(with_markers(samples))
    end_ms = round(float(recording["end"]) * 1000)
    return EmbeddedSource(blocks, name=path.name, kind="capsule", clock=lambda: end_ms), recording
