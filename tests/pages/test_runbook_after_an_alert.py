"""A link out of an alert that is opened when the trouble is over: the runbook offers the instant at which it fired."""

from __future__ import annotations

from typing import Any

from collectors.instants import parse_instant_ms
from pages.ui.records import records
from runbooks.incidents import Incidents
from runbooks.webhook import Message
from tests.pages.conftest import BEFORE, END, INSIDE, Bench, html
from tests.pages.test_pages import opened


def alert_of(runbook: str, starts_at: str, name: str = "WaitingGrowth", **labels: str) -> Message:
    return Message.model_validate(
        {
            "version": "4",
            "status": "resolved",
            "alerts": [
                {
                    "status": "resolved",
                    "labels": {"alertname": name, "runbook": runbook, **labels},
                    "startsAt": starts_at,
                    "endsAt": "2026-11-30T02:39:00Z",
                    "fingerprint": f"{runbook}{starts_at}",
                }
            ],
        }
    )


def ways_back(at: Any) -> list[Any]:
    return [e.proto for e in at.get("page_link") if "walk it as it was then" in e.proto.label]


def test_a_walk_that_finds_nothing_wrong_leads_to_when_the_alert_fired(bench: Bench) -> None:
    incidents = Incidents(records(), lambda: parse_instant_ms(END))
    incidents.receive(alert_of("preemption", INSIDE))
    incidents.receive(alert_of("waiting_growth", "2026-11-28T02:38:20Z"))
    assert not ways_back(opened("runbook.py", at=BEFORE, id="waiting_growth"))

    hostile = '"><script>alert(1)</script> [x](javascript:alert(1))'
    new = incidents.receive(alert_of("waiting_growth", "2026-11-30T02:36:00Z", hostile, instance="127.0.0.1:8000"))
    incidents.diagnose(new, lambda at_ms: {"verdicts": [{"cause": "seat_limited"}]})
    at = opened("runbook.py", at=BEFORE, id="waiting_growth")
    assert "Nothing wrong here" in html(at)
    [back] = ways_back(at)
    assert back.label == "An alert fired 2026-11-30 02:36:00 to 02:39:00 UTC, seats full: walk it as it was then"
    assert "at=2026-11-30T02%3A36%3A00" in back.query_string
    assert "instance=127.0.0.1%3A8000" in back.query_string
    assert "id=waiting_growth" in back.query_string


def test_where_something_is_wrong_nothing_leads_away(bench: Bench) -> None:
    Incidents(records(), lambda: parse_instant_ms(END)).receive(alert_of("waiting_growth", "2026-11-30T02:36:00Z"))
    at = opened("runbook.py", at=INSIDE, id="waiting_growth")
    assert "Nothing wrong here" not in html(at)
    assert not ways_back(at)
