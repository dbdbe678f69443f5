"""What reaches the browser."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pages.ui.charts import Band, Heat, Limit, Line, Mark, Panel, Quantile, pack, unpack
from pages.ui.markup import tag
from pages.ui.tiles import spark


def row(*values: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, dtype=float)


def panel(*series: Line | Band | Quantile | Heat, **more: object) -> Panel:
    return Panel("T", "s", 1_796_006_300_000, 2000, 3, series, **more)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=3, max_size=3),
    st.text(max_size=60),
)
def test_numbers_gaps_and_texts_arrive_as_they_are(values: list[float], name: str) -> None:
    payload = pack(panel(Line(name, row(*values), 3)))
    header, rows = unpack(payload)
    assert header["series"][0]["name"] == name
    assert header["series"][0]["tone"] == 3
    np.testing.assert_array_equal(rows[0], np.array(values, dtype="<f4"))


def test_bands_quantiles_and_heat_maps_take_their_rows_in_order() -> None:
    payload = pack(
        panel(
            Band("gap", row(1, 2, 3), row(2, 3, 4), "warn"),
            Quantile("p95", row(1, 1, 1), row(2, 2, float("inf")), row(1.5, 1.5, 1), "accent"),
            Heat("h", np.arange(6.0).reshape(2, 3), ("a", "b"), ("1", "2")),
        )
    )
    header, rows = unpack(payload)
    assert [s["row"] for s in header["series"]] == [0, 2, 5]
    assert rows.shape == (7, 3)
    assert np.isinf(rows[3][2])
    assert header["series"][2]["buckets"] == ["a", "b"]


def test_rows_that_do_not_fit_the_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="grid of 3"):
        pack(panel(Line("a", row(1, 2), 0)))


def test_a_limit_without_a_value_is_left_out_and_marks_are_kept() -> None:
    header, _ = unpack(pack(panel(Line("a", row(1, 2, 3), 0), limits=(Limit("SLO", float("nan")), Limit("x", 2.0)), marks=(Mark("<b>m</b>", 5, href="runbook?id=a"),))))  # fmt: skip
    assert [limit["label"] for limit in header["limits"]] == ["x"]
    assert header["marks"][0]["label"] == "<b>m</b>"


def test_an_empty_panel_still_has_its_window() -> None:
    header, rows = unpack(pack(panel(notice="no data")))
    assert header["axis"] == [1_796_006_300_000, 1_796_006_304_000]
    assert rows.shape == (0, 3)


def test_a_refresh_of_eight_series_is_small() -> None:
    series = tuple(Line(f"replica-{i}", np.random.default_rng(i).random(300), i) for i in range(8))
    assert len(pack(Panel("T", "", 0, 3000, 300, series))) < 12_000


def test_markup_is_escaped_once() -> None:
    assert tag("b", "<i>&", title='"x"') == '<b title="&quot;x&quot;">&lt;i&gt;&amp;</b>'
    assert tag("p", tag("b", "<")) == "<p><b>&lt;</b></p>"


def test_a_sparkline_breaks_at_a_gap() -> None:
    assert str(spark(row(1, 2, float("nan"), 3, 4))).count("M") == 2
    assert "none" in spark(row(float("nan"), 1))
