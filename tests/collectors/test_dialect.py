"""The vLLM dialect is held to the metric tables and to real expositions."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

from collectors.dialect import UnknownSignal, load_dialect, metadata, parse_dialect, parse_version, split_dialect_name
from tests.shared_data import ROOT, shared_files

VLLM = load_dialect("vllm")
UNITS = {"ratio 0..1": "ratio", "info (constant 1)": "info", "flag 0/1": "flag", "unix seconds": "unix_seconds"}
DATA = ROOT / "tests" / "data"
TABLES = shared_files("facts", pattern="vllm-*-metrics.csv") or sorted((DATA / "facts").glob("*.csv"))
EXPOSITIONS = shared_files("expositions", pattern="vllm-*.txt") or sorted((DATA / "expositions").glob("vllm-*.txt"))


def version_in(path: Path) -> str:
    return re.search(r"vllm-(\d+\.\d+\.\d+)", path.name)[1]


def read_exposition(text):
    """name -> TYPE, name -> label names, name -> [le], (name, label) -> values; families as the TYPE lines name them."""
    types, labels, bounds, values = {}, defaultdict(set), defaultdict(list), defaultdict(set)
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, family, kind = line.split(" ", 3)
            types[family] = kind
        elif line and not line.startswith("#"):
            for key, value in re.findall(r'([a-zA-Z_]+)="([^"]*)"', line.partition("{")[2].rpartition("}")[0]):
                if key == "le":
                    bounds[family].append(value)
                else:
                    labels[family].add(key)
                    values[family, key].add(value)
    return types, labels, bounds, values


@pytest.mark.parametrize("table", TABLES, ids=lambda p: p.stem)
def test_every_metric_of_the_table_is_in_the_dialect(table):
    version = version_in(table)
    for row in csv.DictReader(table.read_text().splitlines()):
        if row["name"].startswith("("):
            continue
        name, where = row["name"], f"{row['name']} at {version}"
        assert VLLM.status(name, version) == row["status"], where
        if row["status"] == "removed":
            continue
        entry = VLLM.metric(name, version)
        assert entry.type == row["type"], where
        assert entry.unit == UNITS.get(row["unit"], row["unit"]), where
        assert set(entry.labels) == set(filter(None, row["labels"].split(";"))), where
        assert entry.buckets == tuple(float(bound) for bound in filter(None, row["buckets"].split(";"))), where


@pytest.mark.parametrize("table", TABLES, ids=lambda p: p.stem)
def test_the_dialect_claims_no_engine_metric_that_the_table_lacks(table):
    listed = {row["name"] for row in csv.DictReader(table.read_text().splitlines())}
    claimed = {name for name in VLLM.metrics(version_in(table)) if name.startswith("vllm:")}
    assert claimed - listed == set()


@pytest.mark.parametrize("path", EXPOSITIONS, ids=lambda p: p.stem)
def test_dialect_agrees_with_a_real_exposition(path):
    version = version_in(path)
    types, labels, bounds, values = read_exposition(path.read_text())
    for family, kind in types.items():
        if family.endswith("_created"):
            assert VLLM.canonical(family) is not None, family
            continue
        entry = VLLM.metric(family, version)
        assert entry is not None, family
        assert entry.status in ("active", "deprecated")
        assert entry.type == kind, family
        if labels[family]:
            assert labels[family] == set(entry.labels), family
        for label, known in entry.values.items():
            seen = values[family, label]
            assert seen == set(known) if entry.always else seen <= set(known), (family, label)
        if kind == "histogram" and bounds[family]:
            finite = [float(le) for le in dict.fromkeys(bounds[family]) if le != "+Inf"]
            expected = entry.buckets[: len(finite)] if entry.buckets_follow else entry.buckets
            assert tuple(finite) == expected, family
    always = {m.name for m in VLLM.metrics(version, hidden=False).values() if m.always} - {"up"}
    assert always - set(types) == set()


def test_a_signal_knows_its_names_by_version():
    def names(signal, version):
        return [entry.name for entry in VLLM.signal(signal, version)]

    assert names("kv_cache_usage", "0.11.0") == ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]
    assert names("kv_cache_usage", "0.8.5") == ["vllm:gpu_cache_usage_perc"]
    assert names("kv_cache_usage", "0.32.0") == ["vllm:kv_cache_usage_perc"]
    assert names("inter_token_latency", "0.6.6") == ["vllm:time_per_output_token_seconds"]
    assert names("inter_token_latency", "0.11.0")[0] == "vllm:inter_token_latency_seconds"
    assert names("requests_waiting_by_reason", "0.11.0") == []
    with pytest.raises(UnknownSignal, match="requests_waiting"):
        VLLM.signal("request_waiting", "0.11.0")


def test_status_tells_removed_from_not_yet_and_unknown():
    assert VLLM.status("vllm:num_requests_swapped", "0.6.6") == "active"
    assert VLLM.status("vllm:num_requests_swapped", "0.8.5") == "hidden"
    assert VLLM.status("vllm:num_requests_swapped", "0.11.0") == "removed"
    assert VLLM.status("vllm:gpu_cache_usage_perc", "0.11.2") == "hidden"
    assert VLLM.status("vllm:admission_rejections_total", "0.11.0") == "not_yet"
    assert VLLM.status("vllm:made_up", "0.11.0") == "unknown"
    assert VLLM.status("vllm:time_per_output_token_seconds", "0.99") == "removed"
    assert VLLM.replacement("vllm:gpu_cache_usage_perc", "0.11.0") == "vllm:kv_cache_usage_perc"


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "kserve_vllm:", "vllm:", "vllm_"])
def test_deployment_prefixes_resolve_to_the_same_metric(prefix):
    spelled = prefix + "time_to_first_token_seconds_bucket"
    assert VLLM.canonical(spelled) == ("vllm:time_to_first_token_seconds", prefix)
    assert VLLM.respell("vllm:time_to_first_token_seconds", prefix) + "_bucket" == spelled


def test_names_without_the_engines_prefix_keep_theirs():
    assert VLLM.canonical("http_requests_total") == ("http_requests_total", "")
    assert VLLM.canonical("http_requests_created") == ("http_requests_total", "")
    assert VLLM.respell("up", "ray_vllm_") == "up"
    assert VLLM.canonical("ray_node_cpu") is None


def test_every_entry_is_complete():
    for entry in VLLM.entries:
        assert entry.help.endswith("."), entry.name
        assert entry.allowed
        if entry.status == "hidden":
            assert entry.caveat


def test_metadata_names_families_as_type_lines_do():
    known = metadata()
    assert known["vllm:prompt_tokens_total"].type == "counter"
    assert known["vllm:iteration_tokens_total"].type == "histogram"
    assert known["up"].type == "gauge"
    assert all(meta.help for meta in known.values())


def test_versions_and_dialect_names_are_read():
    assert parse_version("v0.11.0.dev3+cpu") == (0, 11, 0)
    assert parse_version("0.11") == (0, 11, 0)
    assert split_dialect_name("vllm-0.11.0") == ("vllm", "0.11.0")
    assert split_dialect_name("vllm") == ("vllm", "")
    with pytest.raises(ValueError, match="latest"):
        parse_version("latest")
    with pytest.raises(ValueError, match="there are: vllm"):
        load_dialect("triton")


def test_a_wrong_dialect_file_names_the_metric_and_the_field():
    head = (
        'schema=1\nengine="x"\ntitle="X"\nprefix="x:"\nother_prefixes=[]\noldest="1.0"\nnewest="2.0"\ndefault="1.0"\n'
    )
    body = (
        '[labels]\n[buckets]\n[allowed]\ncounter=["rate"]\n[[metric]]\nsignal="a"\nname="x:a_total"\ntype="counter"\n'
    )
    rest = 'unit="tokens"\nlabels=[]\nuse="counter"\nhelp="A."\n'
    with pytest.raises(ValueError, match=r"x:a_total.*since"):
        parse_dialect(head + body + rest + 'ranges=[{until="2.0"}]\n')
    with pytest.raises(ValueError, match=r"x:a_total.*wrong"):
        parse_dialect(head + body + rest + 'wrong=1\nranges=[{since="1.0"}]\n')
    with pytest.raises(ValueError, match=r"x:a_total.*backwards"):
        parse_dialect(head + body + rest + 'ranges=[{since="1.0", until="1.0"}]\n')
