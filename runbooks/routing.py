"""The Alertmanager side of the rules: who mutes whom, pages apart from tickets, and the webhook that opens incidents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from collectors.settings import Settings
from runbooks.naming import place_labels

if TYPE_CHECKING:
    from runbooks.rules import Rule

MUTES: tuple[tuple[str, tuple[str, ...], Literal["replica", "rank"]], ...] = (
    ("engine_stalled", ("waiting_growth", "kv_pressure", "preemption", "sequence_hog", "engine_slow", "cold_prefix_cache", "client_aborts"), "rank"),
    ("unadmittable_head", ("engine_stalled", "waiting_growth", "kv_pressure", "sequence_hog", "cold_prefix_cache"), "rank"),
    ("kv_pressure", ("waiting_growth",), "rank"),
    ("sequence_hog", ("kv_pressure", "waiting_growth"), "rank"),
    ("replica_restarted", ("engine_slow", "cold_prefix_cache"), "replica"),
)  # fmt: skip
"""(runbook whose alert is the cause, runbooks whose alerts are its symptoms, at the same replica or rank)."""

TOKEN_FILE = "/etc/alertmanager/pagewatch.token"


def inhibit_rules(rules: list[Rule], settings: Settings) -> list[dict[str, Any]]:
    """A replica that is down mutes everything about it; a cause mutes its symptoms; a fast burn its slow twin."""
    from runbooks.rules import PREFIX, alert_name

    equal_labels = {"replica": place_labels(settings), "rank": [*place_labels(settings), settings.identity.rank]}

    down = alert_name("replica_down", "target_down")
    made: list[dict[str, Any]] = [
        {
            "source_matchers": [f'alertname="{down}"'],
            "target_matchers": [f'alertname=~"{PREFIX}.+"', f'alertname!="{down}"'],
            "equal": equal_labels["replica"],
        }
    ]
    present = {rule.runbook.id for rule in rules}
    for cause, symptoms, equal in MUTES:
        if cause in present:
            made.append(
                {
                    "source_matchers": [f'alertname=~"{PREFIX}.+"', f'runbook="{cause}"'],
                    "target_matchers": [f'alertname=~"{PREFIX}.+"', f'runbook=~"{"|".join(symptoms)}"'],
                    "equal": equal_labels[equal],
                }
            )
    for signal in ("first_token", "token_gap"):
        made.append(
            {
                "source_matchers": [f'alertname="{alert_name("latency_slo", f"{signal}_fast_burn")}"'],
                "target_matchers": [f'alertname="{alert_name("latency_slo", f"{signal}_slow_burn")}"'],
            }
        )
    made.append(
        {
            "source_matchers": [f'alertname="{alert_name("replica_restarted", "crash_loop")}"'],
            "target_matchers": [f'alertname="{alert_name("replica_restarted", "process_changed")}"'],
            "equal": equal_labels["replica"],
        }
    )
    return made


def _with_token(settings: Settings) -> bool:
    return bool(settings.server.api_token_env or settings.server.api_token_file)


def alertmanager_config(rules: list[Rule], settings: Settings) -> dict[str, Any]:
    """A complete small configuration to copy parts from; `amtool check-config` accepts it as it stands.

    The webhook gives a token only where the API has one: Alertmanager delivers nothing while its token file is missing.
    """
    from runbooks.rules import PREFIX

    ours = f'alertname=~"{PREFIX}.+"'
    webhook: dict[str, Any] = {"url": "http://127.0.0.1:8502/api/v1/alerts", "send_resolved": True}
    if _with_token(settings):
        webhook["http_config"] = {"authorization": {"type": "Bearer", "credentials_file": TOKEN_FILE}}
    return {
        "route": {
            "receiver": "nobody",
            "group_by": ["alertname", *place_labels(settings)],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "4h",
            "routes": [
                {"matchers": [ours], "receiver": "pagewatch", "continue": True},
                {"matchers": [ours, 'severity="page"'], "receiver": "on-call"},
                {"matchers": [ours, 'severity="ticket"'], "receiver": "tickets", "repeat_interval": "24h"},
            ],
        },
        "inhibit_rules": inhibit_rules(rules, settings),
        "receivers": [
            {"name": "nobody"},
            {"name": "pagewatch", "webhook_configs": [webhook]},
            {"name": "on-call"},
            {"name": "tickets"},
        ],
    }


def alertmanager_text(rules: list[Rule], settings: Settings) -> str:
    """The configuration as YAML with the reasons as comments."""
    from runbooks.rules import as_yaml

    head = (
        "# Parts for alertmanager.yml, made by `pagewatch rules --format alertmanager`.\n"
        "# - inhibit_rules: a replica that is down mutes its symptoms, a cause mutes its consequences.\n"
        "# - the pagewatch receiver opens an incident and stores the diagnosis of that instant (`pagewatch serve-api`).\n"
        "# - fill in the receivers on-call and tickets.\n"
    ) + (
        f"# - put the API's token into {TOKEN_FILE} on Alertmanager's machine.\n"
        if _with_token(settings)
        else "# - the webhook gives no token, which serves an Alertmanager on the API's own machine. For another one set\n"
        "#   [server] api_token_env or api_token_file, and make these parts again.\n"
    )
    return head + as_yaml(alertmanager_config(rules, settings))
