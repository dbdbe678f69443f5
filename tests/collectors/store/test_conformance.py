"""Prometheus's own engine cases, read in place; see known_differences.toml for what a default server fails too."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.collectors.store.conformance_adapter import factory
from tests.shared_data import SHARED, shared

KNOWN = tomllib.loads((Path(__file__).parent / "known_differences.toml").read_text())
KNOWN_IDS = {one for entry in KNOWN["difference"] for one in entry["ids"]}
DATA = SHARED / "promql"


def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance", DATA / "conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files() -> list[Path]:
    return sorted(DATA.glob("*.jsonl.gz")) if DATA.is_dir() else []


def failures(path: Path) -> list[dict[str, Any]]:
    module = runner()
    datasets, cases = module.read_cases(str(path))
    engines: dict[str, Any] = {}
    out = []
    for case in cases:
        if case["dataset"] not in engines:
            engines[case["dataset"]] = factory(module.expand_dataset(datasets[case["dataset"]]))
        why = module.check(case, engines[case["dataset"]])
        if why is not None:
            out.append({"id": case["id"], "query": case["query"], "why": why, "tags": case["tags"]})
    assert cases, f"no cases in {path}"
    return out


@pytest.mark.parametrize("path", files() or [None], ids=lambda p: p.name if p else "none")
def test_prometheus_own_cases_pass_but_for_delayed_name_removal(path: Path | None) -> None:
    if path is None:
        shared("promql")
        pytest.fail(f"no case files in {DATA}")
    found = failures(path)
    unknown = [one for one in found if one["id"] not in KNOWN_IDS]
    assert not unknown, unknown
    assert all(KNOWN["tag"] in one["tags"] for one in found)


def test_the_list_of_known_differences_is_not_longer_than_it_must_be() -> None:
    if not files():
        shared("promql")
    failing = {one["id"] for path in files() for one in failures(path)}
    assert failing >= KNOWN_IDS, f"these pass now, take them off the list: {sorted(KNOWN_IDS - failing)}"
