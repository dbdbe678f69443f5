"""Writes docs/alert-coverage.md: every simulated incident against diagnosis, runbook, remedy and exported rules.

    python -m benchmarks.alert_coverage [--seeds 5] [--only NAME,NAME] [--keep FOLDER] [--no-doc]

Prints one JSON line with the score; exit code 1 when something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the tests are no installed package

from collectors.settings import Settings  # noqa: E402
from runbooks.rules import rules  # noqa: E402
from runbooks.verdicts import RUNBOOK_OF_CAUSE  # noqa: E402
from sim_backend.scenario import load_scenario, scenario_names  # noqa: E402
from tests.runbooks.simulated_proof import Proof, prove  # noqa: E402


def row(proofs: list[Proof]) -> str:
    """One line of the table: a scenario over its seeds."""
    first = proofs[0]

    def tally(words: list[str]) -> str:
        return ", ".join(f"{word} {words.count(word)}" for word in dict.fromkeys(words) if word)

    seconds = [p.detected_seconds for p in proofs if p.detected_seconds is not None]
    runbook = RUNBOOK_OF_CAUSE.get(first.expected, "")
    cells = [
        first.scenario,
        first.expected,
        tally([p.word for p in proofs]),
        f"{max(seconds):.0f} of {first.budget_seconds:.0f} s" if seconds else "-",
        tally([p.leaf for p in proofs]),
        f"{sum(p.steps_led_to is None for p in proofs)} of {len(proofs)}",
        tally([f"{p.verify_before} -> {p.verify_after}" if p.verify_after else "" for p in proofs]) or "-",
        f"{sum(runbook in p.rules for p in proofs)} of {len(proofs)}" if runbook else "-",
        ", ".join(sorted({rule for p in proofs for rule in p.rules} - {runbook})) or "-",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = """# Alert coverage

Made by `python -m benchmarks.alert_coverage`. Every scenario of the simulator that has an incident, over several seeds: is it
named within its budget, does the walk reach the right leaf (and do the steps alone lead there), does the verifying check say
no during the incident and yes with the remedy applied, and which exported Prometheus rules fire.

| scenario | cause | diagnosis | slowest | leaf | steps agree | verify | its rule | other rules |
|---|---|---|---|---|---|---|---|---|
"""

TAIL = """
Rules on slowness and uneven load leave a process out for its first ten minutes; the simulated incidents begin after five, so
those rules stay silent here while the diagnosis speaks. Buckets out of order and single frozen gauges have no rule: PromQL
cannot compare a series with its own history of neighbours; the diagnosis does.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, help="folder of incident files, shared with benchmarks.coverage")
    parser.add_argument("--no-doc", action="store_true")
    asked = parser.parse_args()
    made = rules(Settings())
    lines, right, total = [], 0, 0
    for name in asked.only.split(",") if asked.only else scenario_names():
        if load_scenario(name).expect.cause == "healthy":
            continue
        proofs = [prove(name, seed, made, asked.keep) for seed in range(1, asked.seeds + 1)]
        lines.append(row(proofs))
        print(lines[-1], file=sys.stderr, flush=True)
        for proof in proofs:
            wanted = "fired" if proof.outcome == "fires" else "silent"
            right += proof.word == wanted and (wanted == "silent" or proof.walked_to == proof.expected)
            total += 1
    if not asked.no_doc:
        (ROOT / "docs" / "alert-coverage.md").write_text(HEAD + "\n".join(lines) + "\n" + TAIL, encoding="utf-8")
    print(json.dumps({"benchmark": "alert_coverage", "right": right, "total": total, "seeds": asked.seeds}))
    return 0 if right == total else 1


if __name__ == "__main__":
    raise SystemExit(main())
