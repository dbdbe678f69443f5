"""The handed judge over answers made in this process: one start of Python for all cases instead of one each."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.shared_data import ROOT, shared


def judged(kind: str, files: Iterable[Path], answer: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The judge's summary of one kind of case, with its output under `output`. The command line's own answer is compared for the first file."""
    files = list(files)
    for file in files:
        (folder / f"{file.name}.json").write_text(json.dumps(answer(file)), encoding="utf-8")
    verb = {"memory": "ledger"}.get(kind, kind)
    pagewatch = str(Path(sys.executable).with_name("pagewatch"))
    told = subprocess.run(
        [pagewatch, verb, str(files[0]), "--json"], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert json.loads(told.stdout) == json.loads((folder / f"{files[0].name}.json").read_text(encoding="utf-8"))
    script = folder / "answers.sh"
    script.write_text(f'#!/bin/sh\nexec cat "{folder}/$(basename "$2").json"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(shared("cases", "score_cases.py")), str(shared("cases")), "--only", kind, "--pagewatch", f"sh {script}", "-v"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )  # fmt: skip
    return {
        **json.loads(done.stdout.strip().splitlines()[-1])[kind],
        "output": done.stdout[-4000:] + done.stderr[-500:],
    }
