"""Writes docs/confusion-matrix.md and docs/law-faults.md: what the diagnosis says where the truth is known.

    python -m benchmarks.confusion_matrix [--step SECONDS]

Reads the queue cases and recordings of $PAGEWATCH_SHARED (default ../shared). Prints one JSON line with the score.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the tests are no installed package

from runbooks.laws import all_laws  # noqa: E402
from tests.runbooks.law_faults import FAULTS, broken_by, settings_for  # noqa: E402
from tests.runbooks.queue_cases import CALM, Case, cases, diagnosed, faults, healthy, thinned  # noqa: E402
from tests.runbooks.recorded_source import RecordedSource  # noqa: E402

Answers = Counter[tuple[str, str]]


def headline(case: Case, answer: dict, incident: dict | None) -> str:  # type: ignore[type-arg]
    """The first cause named, as the expected one where the case accepts it instead."""
    named = [v["cause"] for v in answer["verdicts"] if v["cause"] not in CALM and v["confidence"] != "undetermined"]
    got = named[0] if named else "healthy"
    if incident is not None and got in {incident["cause"], *incident.get("accept", ())}:
        return str(incident["cause"])
    if got in case.expected.get("allowed", ()):
        return "healthy" if incident is None else str(incident["cause"])
    return str(got)


def asked(found: Iterable[Case], keep_every: int, step: float) -> tuple[Answers, int, int]:
    """(confusions, right, asked) over every case at one scrape interval; step 0 = the named instants only."""
    confusions: Answers = Counter()
    right = total = 0
    for case in found:
        source = RecordedSource.read(case.path)
        if keep_every > 1:
            source = thinned(source, keep_every)
        lead = max(75.0, 7 * 5.0 * keep_every)
        instants = [(at, i) for _, at, i in case.instants()] if not step else list(case.dense(source, step, lead))
        for at, incident in instants:
            answer = diagnosed(source, at)
            total += 1
            right += not faults(case.expected, answer, incident)
            wanted = incident["cause"] if incident else "healthy"
            confusions[wanted, headline(case, answer, incident)] += 1
    return confusions, right, total


def matrix(confusions: Answers) -> list[str]:
    """A Markdown table, expected causes down, headlines across; only what occurs."""
    rows = sorted({wanted for wanted, _ in confusions})
    columns = sorted({got for _, got in confusions})
    lines = ["| expected | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| **{row}** | " + " | ".join(str(confusions[row, column] or "·") for column in columns) + " |" for row in rows
    ]
    return lines


def law_table(found: list[Case]) -> list[str]:
    """Law x fault: which laws each fault breaks in an otherwise healthy recording."""
    case = next(c for c in healthy(found) if c.name == "healthy_steady_two_replicas")
    source = RecordedSource.read(case.path)
    lines = ["| fault (breaks the law of its name) | laws broken | headline |", "|---|---|---|"]
    for law in all_laws():
        if law not in FAULTS:
            continue
        answer = diagnosed(broken_by(source, law), case.expected["at"]["late"], settings_for(law))
        broken = sorted(
            {f["id"] for f in answer["laws"] if f["status"] == "broken"}, key=lambda name: (name != law, name)
        )
        lines.append(f"| {law} | {', '.join(broken)} | {answer['verdicts'][0]['cause']} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, default=30.0, help="seconds between the instants of the dense passes")
    step = parser.parse_args().step
    found = cases()
    if not found:
        sys.exit("no cases found; set PAGEWATCH_SHARED to the folder that holds cases/queue")
    scores = {}
    text = [
        "# Confusion matrix of the diagnosis",
        "",
        "Made by `python -m benchmarks.confusion_matrix` from the recorded queue cases. Rows: what is true; columns: the first",
        "cause named. An accepted or allowed alternative counts as the expected cause. Right = cause, confidence and place by the",
        "cases' own rules. The dense passes ask many more instants than the cases name, and at slower scrapes.",
    ]
    for title, keep_every, every in (
        ("Named instants, 5 s scrapes", 1, 0.0),
        (f"Every {step:g} s, 5 s scrapes", 1, step),
        (f"Every {step:g} s, 15 s scrapes", 3, step),
        (f"Every {step:g} s, 30 s scrapes", 6, step),
    ):
        confusions, right, total = asked(found, keep_every, every)
        scores[title] = [right, total]
        text += ["", f"## {title}: {right} of {total} right", "", *matrix(confusions)]
    (ROOT / "docs" / "confusion-matrix.md").write_text("\n".join(text) + "\n")
    laws = [
        "# Laws and the faults that break them",
        "",
        "Made by `python -m benchmarks.confusion_matrix`: one fault at a time in a healthy recording of two replicas. A fault of one",
        "counter also breaks the laws that compare with it.",
        "",
        *law_table(found),
        "",
        "## Every law",
        "",
        "| law | statement | why |",
        "|---|---|---|",
        *(
            f"| {law.id}{' (grave)' if law.grave else ''} | {law.statement} | {law.why} |"
            for law in all_laws().values()
        ),
    ]
    (ROOT / "docs" / "law-faults.md").write_text("\n".join(laws) + "\n")
    print(json.dumps({"benchmark": "confusion_matrix", "right_of_asked": scores}))


if __name__ == "__main__":
    main()
