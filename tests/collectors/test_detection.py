"""Versions are told by which names are there; what cannot be told is not claimed."""

import re

import pytest

from collectors.detection import detect, engines_text, telling_families, telling_samples
from collectors.dialect import load_dialect
from collectors.settings import Engine
from tests.shared_data import ROOT, shared_files

VLLM = load_dialect()
EXPOSITIONS = shared_files("expositions", pattern="vllm-*.txt") or sorted(
    (ROOT / "tests" / "data" / "expositions").glob("vllm-*.txt")
)


def families_at(version, *, flag=False):
    return {
        name
        for name, metric in VLLM.metrics(version, hidden=flag).items()
        if metric.always or metric.status == "hidden"
    }


@pytest.mark.parametrize("path", EXPOSITIONS, ids=lambda p: p.stem)
def test_real_expositions_are_recognised(path):
    version = re.search(r"vllm-(\d+)\.(\d+)", path.name)
    names = {line.split("{")[0].split(" ")[0] for line in path.read_text().splitlines() if line and line[0] != "#"}
    families = {known[0] for name in names if (known := VLLM.canonical(name))}
    found = detect(families, Engine(), ranked=True)
    assert found.how == "detected"
    assert found.since[:2] == (int(version[1]), int(version[2]))
    assert found.text.startswith(f"vLLM {version[1]}.{version[2]}")


@pytest.mark.parametrize("version", [".".join(map(str, v)) for v in VLLM.milestones])
@pytest.mark.parametrize("flag", [False, True])
def test_every_known_stretch_is_told_from_what_it_exports(version, flag):
    found = detect(families_at(version, flag=flag), Engine(), ranked=not version.startswith(("0.6", "0.8")))
    at = tuple(map(int, version.split(".")))
    assert found.since <= at, found
    assert found.until is None or at < found.until
    assert found.how == "detected"


def test_names_dropped_on_the_way_do_not_mislead():
    kept = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds"}  # fmt: skip
    assert detect(kept, Engine()).text == "vLLM 0.11"
    only_gauges = {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"}
    found = detect(only_gauges, Engine())
    assert found.since <= (0, 11, 0)
    assert found.names("kv_cache_usage")[0] == "vllm:kv_cache_usage_perc"


def test_the_configuration_wins_and_nothing_is_assumed_for_sure():
    assert detect(families_at("0.32.0"), Engine(version="0.11.0")).text == "vLLM 0.11.0"
    assert detect(families_at("0.32.0"), Engine(dialect="vllm-0.11.2")).version == (0, 11, 2)
    assert detect(set(), Engine()).how == "assumed"
    assert detect(set(), Engine()).text == "vLLM 0.11?"


def test_texts_name_the_stretch():
    assert detect(families_at("0.14.0"), Engine()).text == "vLLM 0.14 to 0.15"
    assert detect(families_at("0.32.0"), Engine()).text == "vLLM 0.32 or newer"
    assert engines_text({"vLLM 0.11": 3, "vLLM 0.32 or newer": 1}) == "vLLM 0.11 (3), vLLM 0.32 or newer (1)"


def test_a_replica_spells_names_with_its_own_prefix():
    found = detect(families_at("0.11.0"), Engine(), prefix="ray_vllm_")
    assert found.names("requests_waiting") == ("ray_vllm_num_requests_waiting",)
    assert found.names("admission_rejections") == ()


def test_discovery_asks_for_few_names():
    assert len(telling_samples(VLLM)) == len(telling_families(VLLM)) < 40
    assert telling_samples(VLLM)[0] == "num_requests_running"
