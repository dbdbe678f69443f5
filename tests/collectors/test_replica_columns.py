"""Buckets by replica: one column each, whatever way a bound is written."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.histograms import replica_columns
from collectors.identity import FleetTree
from collectors.model import Vector
from collectors.quantiles import bucket_rows

TREE = FleetTree(("instance",), "engine", (), (), False, ())
BUCKET = st.tuples(st.sampled_from("abc"), st.sampled_from(["0.5", "1", "1.0", "2", "+Inf", "Inf", "", "x", "NaN"]))


@settings(deadline=None, max_examples=200)
@given(st.lists(BUCKET, unique=True, max_size=20))
def test_each_column_is_the_buckets_of_its_replica(buckets: list[tuple[str, str]]) -> None:
    labels = tuple({"instance": instance, "le": le} for instance, le in buckets)
    values = np.arange(1, len(labels) + 1, dtype=np.float64)
    keys, bounds, grid = replica_columns(Vector(0, labels, values), TREE)
    assert list(keys) == [(instance,) for instance in dict.fromkeys(instance for instance, _ in buckets)]
    for column, (instance,) in enumerate(keys):
        mine = [i for i, one in enumerate(labels) if one["instance"] == instance]
        own, counts = bucket_rows([labels[i] for i in mine], values[mine])
        held = ~np.isnan(grid[:, column])
        assert bounds[held].tolist() == own.tolist()
        assert grid[held, column].tolist() == counts[:, 0].tolist()
