"""One panel that breaks stays one broken panel: whatever draws it may fail, and everything else on its page stands."""

from __future__ import annotations

from typing import Any

import pytest

from pages.ui import diagnose_page, fleet_page, latency_page, replica_page, runbook_page, simulator_page
from tests.pages.conftest import Bench
from tests.pages.test_four_states import ADDRESSES, CHARTS, FRAGMENTS, TABLES, Seen, shown, simulator, with_simulator

__all__ = ["simulator", "with_simulator"]

PARTS: dict[str, tuple[Any, dict[str, list[str]]]] = {
    "fleet": (fleet_page, {
        "_scope": [], "answers": ["pw-status"], "tiles": ["pw-tiles"], "panels": CHARTS["fleet"], "rows": ["replicas"], "fleet_line": [],
        "averaging_text": [], "columns": ["replicas"],
    }),
    "latency": (latency_page, {
        "quantile_charts": CHARTS["latency"][:6], "slo_text": [], "window_text": [], "heat_chart": ["Heat map"],
        "time_goes_chart": ["Where the time goes"], "ranking_rows": ["ranking"], "earlier_rows": ["earlier"], "averaging_text": [],
    }),
    "replica": (replica_page, {"_head": ["pw-card"], "_tiles": ["pw-tiles"], "_wrong": [], "_charts": CHARTS["replica"], "law_rows": []}),
    "diagnose": (diagnose_page, {"card": ["pw-card"], "anomaly_rows": ["anomalies"], "law_rows": ["laws_unknown", "laws_kept"], "state_rows": ["states"]}),
    "walk": (runbook_page, {
        "head_html": [], "conclusion_html": [], "step_items": [], "numbers_html": ["pw-numbers"], "evidence_chart": CHARTS["walk"],
        "outcome_html": [], "_after": [],
    }),
    "simulator": (simulator_page, {"_fleet": ["simulated"], "_truth": [], "_conclusion": [], "_faults": []}),
}  # fmt: skip
"""Page -> what draws its parts -> the panels that go with it."""


def there(seen: Seen, name: str) -> set[str]:
    fragments = {class_ for class_ in FRAGMENTS.get(name, []) if seen.fragment(class_)}
    return fragments | seen.charts.keys() | seen.tables.keys()


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, (_, parts) in PARTS.items() for part in parts])
def test_the_rest_of_the_page_stands(
    bench: Bench, with_simulator: Any, monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    module, parts = PARTS[name]

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError(f"{part} is broken")

    monkeypatch.setattr(module, part, broken)
    bench.live()
    seen = shown(name)
    assert not seen.at.exception
    if part != "law_rows" or name != "replica":  # no check is broken here, so there is nothing to draw
        assert f"{part} is broken" in seen.text
    wanted = {*CHARTS.get(name, []), *TABLES.get(name, []), *FRAGMENTS.get(name, [])}
    assert wanted - set(parts[part]) <= there(seen, name)


def test_every_page_with_panels_is_looked_at() -> None:
    assert {name for name in ADDRESSES if CHARTS.get(name) or FRAGMENTS.get(name)} - {"latency, gap"} == PARTS.keys()
