"""Writes docs/fresh-cases.md: the diagnosis on situations drawn at random, which no rule was made from.

    python -m benchmarks.fresh_cases [--each 3] [--from-seed 1000] [--only KIND,KIND] [--step SECONDS] [--intervals S,S]
                                     [--answers FILE] [--no-doc]

`--answers` keeps every answer as a line of JSON. Prints one JSON line with the score, and every fault to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the tests are no installed package

from tests.runbooks.fresh import draws  # noqa: E402
from tests.runbooks.fresh.judged import Judged, judged  # noqa: E402
from tests.runbooks.fresh.kinds import KINDS  # noqa: E402
from tests.runbooks.fresh.made import recorded  # noqa: E402

HEAD = """# Situations drawn at random

Made by `python -m benchmarks.fresh_cases`. Fleets of one to six replicas and up to eight ranks, lengths, seats, pools, budgets, onsets,
severities, names and scrape intervals (2 to 60 s) are drawn, the simulator makes the samples, and the diagnosis is asked every
{step:.0f} s: before, in and after each incident, in healthy fleets that look busy, and with two things wrong at once. The seeds
are {seeds}; what other seeds showed to be wrong was mended in the rules before. Right = every cause that must be named is likely, at its place, and nothing untrue is likely.

"""


def document(found: Sequence[Judged], step: float) -> str:
    """The page: the score by scrape interval, the confusion matrix, and every fault."""
    lines = [
        HEAD.format(step=step, seeds=_seeds(found)).rstrip(),
        "",
        f"## {_score(found)}",
        "",
        "| scrape interval | right |",
        "|---|---|",
    ]
    for interval in sorted({one.interval_seconds for one in found}):
        lines.append(f"| {interval:g} s | {_score([one for one in found if one.interval_seconds == interval])} |")
    lines += ["", "## What is true against the first cause named", ""]
    pairs = Counter((one.wanted.replace("+", " and "), one.got.replace("+", " and ")) for one in found)
    lines += ["| true | named | instants |", "|---|---|---|"]
    lines += [
        f"| {wanted} | {'the same' if got == wanted else got} | {count} |"
        for (wanted, got), count in sorted(pairs.items())
    ]
    wrong = [one for one in found if one.faults]
    lines += ["", "## Faults", "", *(f"- {one}" for one in wrong)] if wrong else ["", "## Faults", "", "None."]
    return "\n".join(lines) + "\n"


def _seeds(found: Sequence[Judged]) -> str:
    seeds = sorted({one.seed for one in found})
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]) if seeds else "none"


def _score(found: Sequence[Judged]) -> str:
    return f"{sum(not one.faults for one in found)} of {len(found)} right"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--from-seed", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--step", type=float, default=30.0)
    parser.add_argument("--intervals", default="", help="seconds between scrapes, comma-separated; default: all")
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--no-doc", action="store_true")
    asked = parser.parse_args()
    if asked.intervals:
        draws.INTERVALS = tuple(float(each) for each in asked.intervals.split(","))
    only = set(asked.only.split(",")) if asked.only else set()
    found: list[Judged] = []
    for seed in range(asked.from_seed, asked.from_seed + asked.each):
        for kind in KINDS:
            if only and kind.__name__ not in only:
                continue
            situation = kind(Random(f"{kind.__name__} {seed}"), seed)
            answers = list(judged(recorded(situation), asked.step))
            found += answers
            wrong = [one for one in answers if one.faults]
            print(
                f"{situation.kind} {seed} {situation.interval_seconds:g}s x{situation.scenario.fleet.replicas}: "
                f"{len(answers) - len(wrong)} of {len(answers)}", file=sys.stderr, flush=True,
            )  # fmt: skip
            for one in wrong:
                print(f"    {one.at:.0f}: {'; '.join(one.faults)}", file=sys.stderr)
    if asked.answers:
        asked.answers.write_text("".join(json.dumps(asdict(one)) + "\n" for one in found), encoding="utf-8")
    if not asked.no_doc:
        (ROOT / "docs" / "fresh-cases.md").write_text(document(found, asked.step), encoding="utf-8")
    print(json.dumps({"benchmark": "fresh_cases", "right": sum(not one.faults for one in found), "asked": len(found)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
