"""Writes docs/coverage.md: what the diagnosis says through simulated incidents, moment by moment, and which checks each fault breaks.

    python -m benchmarks.coverage [--seeds 5] [--only NAME,NAME] [--step SECONDS] [--keep FOLDER] [--no-doc]

Prints one JSON line with the score; exit code 1 when something is not as the scenario declares. `--keep` holds the incident files for the next
run, and what became of each: with `--only`, the other scenarios come into the document as they were last kept there.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the tests are no installed package

from sim_backend.scenario import scenario_names  # noqa: E402
from tests.proof.law_table import OWN, RELATED, Broken  # noqa: E402
from tests.proof.outcomes import Outcome, outcome, unrelated  # noqa: E402
from tests.proof.sightings import Claim  # noqa: E402

HEAD = """# Coverage of the simulated incidents

Made by `python -m benchmarks.coverage`. Every scenario of the simulator is run with several seeds ({seeds}), scraped every 5 s,
and diagnosed every {step:.0f} s from its beginning to its end. The truth is the simulator's; the diagnosis sees the metrics only.
What does not hold stands here as it is.

"""
FAULTS = """## Fault and diagnosis

One line for each thing that is really wrong. *Fired*: called likely, at the right place, within its budget; *late*: after it;
*silent*: never while it lasted. *Wrong*: runs in which anything untrue was called likely before or during it. A cause that is
over may be told while its traces last (*lingers*); another one named then is listed as *aftermath*. *Declared*: what the scenario says metrics can show. Where a
cause was only ever named as possible or undetermined, *mentioned* tells the slowest such mention.

| scenario | what is wrong | declared | fired | late | silent | wrong | slowest | mentioned | lingers |
|---|---|---|---|---|---|---|---|---|---|
"""
WALKS = """
## Runbook and remedy

In the middle of each incident its runbook is walked: the leaf it ends in; whether cause and steps agree on the true one;
what the leaf's check says then, and at the same moment of the same run with the declared remedy applied; what the
diagnosis calls likely in that mended fleet.

| scenario | leaf | reached | check | mended fleet |
|---|---|---|---|---|
"""
LAWS = """
## Law and fault

In how many of the moments asked during a metric fault a law was broken at its place. The fault's own law stands in bold;
what follows from it is named beneath the table. Where it is not broken it is *unknown*: a fault of a few scrapes' age does not contradict
the counters yet.

"""
OTHER_LAWS = """
Laws that broke in runs without a metric fault (moments, all seeds; before / during at its place / elsewhere / after):

| scenario | law | before | during | elsewhere | after |
|---|---|---|---|---|---|
"""


def fault_rows(found: Sequence[Outcome]) -> Iterable[str]:
    """The lines of one scenario over its seeds, its own cause first."""
    first = found[0]
    wrong = sum(bool(one.wrong) for one in found)
    causes = dict.fromkeys([first.cause, *(s.incident.cause for s in first.sightings)])
    for cause in causes:
        seen = [s for one in found for s in one.sightings if s.incident.cause == cause]
        words = Counter(s.word for s in seen)
        budget = f" of {seen[0].budget:.0f} s" if seen else ""
        declared = first.outcome if cause == first.cause else "also true"
        cells = [
            first.scenario,
            cause,
            declared if seen else "nothing",
            *(str(words[word]) if seen else "-" for word in ("fired", "late", "silent")),
            str(wrong) if cause == first.cause else "",
            _slowest((s.likely_after for s in seen), budget),
            _slowest(s.mentioned_after for s in seen if s.likely_after is None),
            _slowest(s.lingers or None for s in seen),
        ]
        yield _line(cells)


def walk_row(found: Sequence[Outcome]) -> str | None:
    """The line of one scenario over its seeds; None when nothing is wrong in it."""
    walks = [one.walked for one in found if one.walked is not None]
    if not walks:
        return None
    checks = [f"{w.check_broken} -> {w.check_mended or 'no remedy'}" if w.check_broken else "none" for w in walks]
    cells = [
        found[0].scenario,
        _tally([w.leaf for w in walks]),
        f"{sum(w.reaches(found[0].cause) for w in walks)} of {len(walks)}",
        _tally(checks),
        _tally([", ".join(w.mended_named) or "healthy" if w.mended_named is not None else "-" for w in walks]),
    ]
    return _line(cells)


def law_table(found: Mapping[str, Sequence[Outcome]]) -> Iterable[str]:
    """Law x metric fault, then what else broke in the fault's column, by reason."""
    faults = [name for name in found if name in OWN]
    if not faults:
        return
    laws = sorted({law for name in faults for one in found[name] for law in one.broken.during})
    yield _line(["law", *faults])
    yield "|---" * (len(faults) + 1) + "|"
    for law in laws:
        cells = [law]
        for name in faults:
            hits = sum(one.broken.during.get(law, 0) for one in found[name])
            asked = sum(one.broken.moments for one in found[name])
            text = f"{hits} of {asked}" if hits else "·"
            cells.append(f"**{text}**" if OWN.get(name) == law else text)
        yield _line(cells)
    yield ""
    for name in faults:
        for law, why in RELATED.get(name, {}).items():
            yield f"- {name} also breaks {law}: {why}."
        for law in sorted({law for one in found[name] for law in unrelated(one)}):
            yield f"- **{name} breaks {law}, which is unrelated.**"
        if name in OWN and not all(OWN[name] in one.broken.during for one in found[name]):
            yield f"- **{name} does not always break {OWN[name]}.**"


def other_laws(found: Mapping[str, Sequence[Outcome]]) -> Iterable[str]:
    """What broke where no metric fault was."""
    for name, outcomes in found.items():
        if name in OWN:
            continue
        phases = [
            sum((Counter(phase(one.broken)) for one in outcomes), Counter[str]())
            for phase in (_before, _during, _elsewhere, _after)
        ]
        for law in sorted(set().union(*phases)):
            yield _line([name, law, *(str(phase[law]) if phase[law] else "·" for phase in phases)])


def _before(broken: Broken) -> Mapping[str, int]:
    return broken.before


def _during(broken: Broken) -> Mapping[str, int]:
    return broken.during


def _elsewhere(broken: Broken) -> Mapping[str, int]:
    return broken.elsewhere


def _after(broken: Broken) -> Mapping[str, int]:
    return broken.after


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tally(words: Sequence[str]) -> str:
    counts = Counter(words)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{word} ({n})" for word, n in counts.items())


def _slowest(seconds: Iterable[float | None], after: str = "") -> str:
    known = [one for one in seconds if one is not None]
    return f"{max(known):.0f} s{after}" if known else "-"


def claim_lines(
    none: str, some: str, runs: Sequence[Outcome], claims: Callable[[Outcome], Sequence[Claim]]
) -> Iterable[str]:
    """The first of certain claims of each run."""
    having = [one for one in runs if claims(one)]
    yield from ("", some if having else none)
    yield from ("",) if having else ()
    yield from (f"- {one.scenario}, seed {one.seed}: {claims(one)[0]}" for one in having)


def document(found: Mapping[str, Sequence[Outcome]], seeds: int, step_seconds: float) -> str:
    """docs/coverage.md."""
    lines = [HEAD.format(seeds=seeds, step=step_seconds) + FAULTS.rstrip()]
    lines += [row for outcomes in found.values() for row in fault_rows(outcomes)]
    runs = [one for outcomes in found.values() for one in outcomes]
    lines += claim_lines("Wrong: none.", "Wrong, the first claim of each run:", runs, lambda one: one.wrong)
    lines += claim_lines("Aftermath: none.", "Aftermath, the first claim of each run:", runs, lambda one: one.aftermath)
    lines.append(WALKS.rstrip())
    lines += [row for outcomes in found.values() if (row := walk_row(outcomes))]
    lines.append(LAWS.rstrip("\n") + "\n")
    lines += law_table(found)
    lines.append(OTHER_LAWS.rstrip())
    lines += other_laws(found)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--step", type=float, default=15.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--no-doc", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        only = set(asked.only.split(",")) if asked.only else set(scenario_names())
        for name in scenario_names():
            kept = folder / f"{name}-{asked.seeds}-{asked.step:g}.outcomes"
            if name in only:
                found[name] = [outcome(name, seed, asked.step, folder) for seed in range(1, asked.seeds + 1)]
                kept.write_bytes(pickle.dumps(found[name]))
            elif kept.exists():
                found[name] = pickle.loads(kept.read_bytes())
            for row in fault_rows(found[name]) if name in only else ():
                print(row, file=sys.stderr, flush=True)
    runs = [one for outcomes in found.values() for one in outcomes]
    right = sum(one.holds and not unrelated(one) for one in runs)
    if not asked.no_doc:
        (ROOT / "docs" / "coverage.md").write_text(document(found, asked.seeds, asked.step), encoding="utf-8")
    wrong = sum(bool(one.wrong) for one in runs)
    print(
        json.dumps({"benchmark": "coverage", "right": right, "runs": len(runs), "wrong": wrong, "seeds": asked.seeds})
    )
    return 0 if right == len(runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
