"""The grammar of expositions, held to prometheus_client's parsers and to Prometheus's own rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from collectors.store.exposition import ACCEPT, ExpositionError, is_openmetrics
from collectors.store.line_memory import Exposition, LineMemory
from tests.shared_data import shared_files

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}(:[a-z]{1,3})?", fullmatch=True).filter(lambda name: not name.endswith("_"))
LABEL_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name not in ("le", "quantile"))
LABEL_VALUES = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
        st.sampled_from('\\"\n{},=# '),
    ),
    max_size=8,
)
VALUES = st.one_of(st.floats(allow_nan=False), st.just(math.nan), st.integers(-(2**53), 2**53).map(float))


class Families:
    """A registry's collector over ready families."""

    def __init__(self, families: list[object]) -> None:
        self._families = families

    def collect(self) -> list[object]:
        return self._families


@st.composite
def registries(draw: st.DrawFn) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    families: list[object] = []
    for number, name in enumerate(draw(st.lists(NAMES, min_size=1, max_size=5))):
        name = f"{name}_{number}"
        text = draw(LABEL_VALUES)
        labels = draw(st.lists(LABEL_NAMES, unique=True, max_size=3))
        rows = draw(st.lists(st.tuples(*[LABEL_VALUES for _ in labels]), min_size=1, max_size=3, unique=True))
        kind = draw(st.sampled_from(["counter", "gauge", "histogram", "summary", "info"]))
        for_kind = {
            "counter": CounterMetricFamily(name, text, labels=labels),
            "gauge": GaugeMetricFamily(name, text, labels=labels),
            "histogram": HistogramMetricFamily(name, text, labels=labels),
            "summary": SummaryMetricFamily(name, text, labels=labels),
            "info": InfoMetricFamily(name, text, labels=labels),
        }
        family = for_kind[kind]
        for row in rows:
            value = draw(VALUES)
            if kind == "histogram":
                counts = sorted(draw(st.lists(st.integers(0, 10**9), min_size=2, max_size=4)))
                edges = [str(float(edge)) for edge in range(len(counts) - 1)] + ["+Inf"]
                family.add_metric(
                    row, list(zip(edges, map(float, counts), strict=True)), abs(value) if value == value else 0.0
                )
            elif kind == "summary":
                family.add_metric(row, draw(st.integers(0, 10**9)), abs(value) if value == value else 0.0)
            elif kind == "info":
                family.add_metric(row, {"a": draw(LABEL_VALUES)})
            elif kind == "counter":
                family.add_metric(row, abs(value) if value == value else 1.0)
            else:
                family.add_metric(row, value)
        families.append(family)
    registry.register(Families(families))
    return registry


def same_value(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def assert_same(ours: Exposition, families: list[object], *, text_names: bool) -> None:
    theirs = [sample for family in families for sample in family.samples]
    assert [dict(labels) for labels in ours.layout.series] == [{"__name__": s.name} | s.labels for s in theirs]
    assert all(same_value(a, b.value) for a, b in zip(ours.values, theirs, strict=True))
    times = ours.times_ms or (None,) * len(theirs)
    for at_ms, sample in zip(times, theirs, strict=True):
        assert (at_ms is None) == (sample.timestamp is None)
        if at_ms is not None:
            assert abs(at_ms - float(sample.timestamp) * 1000) < 1.0
    for family in families:
        name = family.name
        if text_names and family.type == "counter" and name not in ours.metadata:
            name += "_total"  # the library names a text counter as OpenMetrics does
        meta = ours.metadata[name]
        assert meta.help.strip() == family.documentation.strip()  # the library strips it in the text format
        assert meta.type == ("unknown" if family.type in ("untyped", "unknown") else family.type) or text_names
        assert meta.unit == family.unit


@settings(deadline=None, max_examples=120)
@given(registries())
def test_text_format_reads_as_prometheus_client_does(registry: CollectorRegistry) -> None:
    body = generate_latest(registry)
    ours = LineMemory().parse(body, openmetrics=False)
    assert_same(ours, list(text_families(body.decode())), text_names=True)


@settings(deadline=None, max_examples=120)
@given(registries())
def test_openmetrics_reads_as_prometheus_client_does(registry: CollectorRegistry) -> None:
    body = generate_openmetrics(registry, "allow-utf-8", "1.0.0")
    ours = LineMemory().parse(body, openmetrics=True)
    note(body)
    assert_same(ours, list(openmetrics_families(body.decode())), text_names=False)


@pytest.mark.parametrize("path", shared_files("expositions", pattern="*.txt"), ids=lambda path: path.name)
def test_real_vllm_expositions_read_as_prometheus_client_does(path) -> None:
    body = path.read_bytes()
    assert_same(LineMemory().parse(body, openmetrics=False), list(text_families(body.decode())), text_names=True)


def test_what_we_accept_keeps_the_colons_of_vllm() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families([GaugeMetricFamily("vllm:num_requests_running", "x", 1.0)]))
    encode, content_type = choose_encoder(ACCEPT)
    assert is_openmetrics(content_type)
    ours = LineMemory().parse(encode(registry), openmetrics=True)
    assert ours.layout.series == ({"__name__": "vllm:num_requests_running"},)


TIMES = b"""\
# HELP a with timestamps
# TYPE a gauge
a{x="1"} 1 1796005557123
a{x="2"}   2.5e-3\t1796005557124
a 3
"""


def test_timestamps_of_the_text_format_are_milliseconds() -> None:
    ours = LineMemory().parse(TIMES, openmetrics=False)
    assert ours.times_ms == (1796005557123, 1796005557124, None)
    assert_same(ours, list(text_families(TIMES.decode())), text_names=True)


def test_openmetrics_timestamps_are_seconds_and_exemplars_are_dropped() -> None:
    body = (
        b"# TYPE a counter\n# UNIT a_seconds seconds\n"
        b'a_total{x="1"} 1 1796005557.123\n'
        b'a_total{x="2"} 2 # {trace_id="a # b"} 0.5 1796005557.1\n'
        b'a_total{x="3"} 3 1796005557 # {} 0.5\n# EOF\n'
    )
    ours = LineMemory().parse(body, openmetrics=True)
    assert ours.times_ms == (1796005557123, None, 1796005557000)
    assert list(ours.values) == [1, 2, 3]
    assert ours.metadata["a_seconds"].unit == "seconds"


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        (b'm{a="x\\\\y\\"z\\n"} 1', {"a": 'x\\y"z\n'}),
        (b'm{a="\\t"} 1', {"a": "\\t"}),
        (b'm { a = "b" , c="d", } 1', {"a": "b", "c": "d"}),
        (b'm{a="}"} 1', {"a": "}"}),
        (b'm{a="} 5"} 1', {"a": "} 5"}),
        (b"m{} 1", {}),
        (b'm{a="b"}1', {"a": "b"}),
        (b"m\t 1  ", {}),
        (b'{"m",a="b"} 1', {"a": "b"}),
        (b'{"m","a.b"="c"} 1', {"a.b": "c"}),
        ('m{a="\u00e9"} 1'.encode(), {"a": "\u00e9"}),
    ],
)
def test_labels_are_read_with_escapes_and_free_white_space(line: bytes, labels: dict[str, str]) -> None:
    ours = LineMemory().parse(line + b"\n", openmetrics=False)
    assert [dict(series) for series in ours.layout.series] == [{"__name__": "m"} | labels]
    assert list(ours.values) == [1.0]


ACCEPTED_TEXT = [
    b"",
    b"   ",
    b"m\t 1  ",
    b"  # comment",
    b"\t# HELP m x",
    b" # TYPE m gauge",
    b"#",
    b"# comment",
    b"#comment",
    b"# HELP m",
    b"# HELP m  two",
    b"# HELP m two ",
    b"# TYPE m gauge",
    b"#HELP",
    b"# HELP",
    b"# TYPE",
    b"m NaN",
    b"m nan",
    b"m +Inf",
    b"m -inf",
    b"m .5",
    b"m 5.",
    b"m +1",
    b"m 1 1796000000000",
    b'm{a="b" c="d"} 1',
    b'm{a="b"c="d"} 1',
    b'm{a="b",} 1',
]
REFUSED_TEXT = [
    b"  m 1",
    b"\tm 1",
    b"m",
    b"m 1_0",
    b"m +nan",
    b"m 1e999",
    b"m 0x10",
    b"m \xd9\xa1",
    b"m one",
    b"m 1 2 3",
    b"m 1 -5",
    b"m 1 1.5",
    b"m 1\r",
    b"m\x0b1",
    b'm{a="b} 1',
    b'm{a="b"',
    b'm{a="b",,c="d"} 1',
    b'm{,a="b"} 1',
    b"# TYPE m gauge ",
    b"# TYPE m  gauge",
    b'm{a="b",a="c"} 1',
    b'm{a="\xff"} 1',
    b'm{1a="b"} 1',
    b"m{a=b} 1",
    b"m{a} 1",
    b"1m 1",
    b"{} 1",
    b'{a="b"} 1',
    b"# HELP ",
    b"# TYPE m thing",
    b"# TYPE m",
    b"# HELP m \xff",
    b"<html>",
]


@pytest.mark.parametrize("line", REFUSED_TEXT)
def test_a_bad_line_refuses_the_exposition_and_names_its_line(line: bytes) -> None:
    memory = LineMemory()
    with pytest.raises(ExpositionError, match=r"^line 3: ") as refused:
        memory.parse(b"good 1\nbetter 2\n" + line + b"\nafter 3\n", openmetrics=False)
    wrong_labels = b'a="c"' in line or line[:1] in b" \t"  # found after the sample was counted
    assert refused.value.samples == 2 + wrong_labels


@pytest.mark.parametrize("line", ACCEPTED_TEXT)
def test_what_prometheus_accepts_is_accepted(line: bytes) -> None:
    assert LineMemory().parse(b"good 1\n" + line, openmetrics=False).values[0] == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a 1\n", "does not end with # EOF"),
        (b"", "does not end with # EOF"),
        (b"a 1\n# EOF\nb 2\n", "after # EOF"),
        (b"a 1\n# EOF\n\n", "after # EOF"),
        (b"a 1\n\n# EOF\n", "blank line"),
        (b"# comment\n# EOF\n", "only HELP"),
        (b"a  1\n# EOF\n", "one space"),
        (b"a 1 \n# EOF\n", "one space"),
        (b'a{x ="1"} 1\n# EOF\n', "expected '='"),
        (b"a 1 NaN\n# EOF\n", "timestamp"),
        (b"a 1 # {x=1} 1\n# EOF\n", "quoted value"),
        (b"# TYPE a untyped\n# EOF\n", "invalid metric type"),
        (b"# UNIT a bytes\n# EOF\n", "not a suffix"),
    ],
)
def test_openmetrics_is_strict(body: bytes, reason: str) -> None:
    with pytest.raises(ExpositionError, match=reason):
        LineMemory().parse(body, openmetrics=True)


def test_more_samples_than_the_limit_are_refused_with_their_number() -> None:
    body = b"".join(b"m%d 1\n" % number for number in range(20))
    memory = LineMemory()
    assert memory.parse(body, openmetrics=False, sample_limit=20).layout.samples == 20
    with pytest.raises(ExpositionError, match="20 samples are more than the limit of 19") as refused:
        memory.parse(body, openmetrics=False, sample_limit=19)
    assert refused.value.samples == 20


def test_a_series_that_stands_twice_keeps_its_first_value() -> None:
    ours = LineMemory().parse(b'm{a="1",b="2"} 1\nm{b="2",a="1"} 2\nn 3\n', openmetrics=False)
    assert list(ours.values) == [1, 3]
    assert ours.layout.samples == 3


def test_endless_labels_are_refused_and_endless_help_is_cut() -> None:
    with pytest.raises(ExpositionError, match="the value of label 'x' has 20000 bytes"):
        LineMemory().parse(b'm{x="%b"} 1\n' % (b"y" * 20_000), openmetrics=False)
    read = LineMemory().parse(b"# HELP m %b\nm 1\n" % (b"y" * 20_000), openmetrics=False)
    assert len(read.metadata["m"].help) == 4096
