"""A text that was given to the wrong reader is read by the right one, on the page and (as a next step) on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from pages.ui.memory_view import runbook_of
from runbooks.library import library
from runbooks.memory import admission, ledger, read_as
from runbooks.memory.report import CLASSES

REFUSAL = json.dumps({"error": {"message": "This model's maximum context length is 8192 tokens. However, you requested 8203 tokens (7691 in the messages, 512 in the completion). Please reduce the length of the messages or completion.", "type": "BadRequestError", "code": 400}})  # fmt: skip
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 524.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 137.12 MiB is free. Including non-PyTorch memory, this process has 15.63 GiB memory in use. Of the allocated memory 13.81 GiB is allocated by PyTorch, and 121.43 MiB is reserved by PyTorch but unallocated."  # fmt: skip


@pytest.mark.parametrize("asked", [False, True])
def test_each_text_is_read_by_its_reader_whatever_was_asked(asked: bool) -> None:
    assert read_as([REFUSAL], refused=asked) == (admission([REFUSAL]), True)
    assert read_as([OOM], refused=asked) == (ledger([OOM]), False)


@pytest.mark.parametrize("asked", [False, True])
def test_what_nobody_recognises_stays_with_the_reader_that_was_asked(asked: bool) -> None:
    answer, refused = read_as(["good morning"], refused=asked)
    assert (answer["class"], refused) == ("undetermined", asked)


def test_every_class_leads_to_a_runbook_or_to_none() -> None:
    known = {"", *library()}
    assert {runbook_of({"class": name}, refused) for name in (*CLASSES, "auth", "prompt_too_long") for refused in (False, True)} <= known  # fmt: skip
    assert runbook_of({"class": "runtime_oom_fragmentation"}, False) == "out_of_memory_run"
    assert runbook_of({"class": "no_kv_blocks"}, False) == "out_of_memory_start"
    assert runbook_of(admission([REFUSAL]), True) == "admission_failure"
    assert runbook_of({"class": "undetermined"}, False) == ""


@pytest.mark.parametrize(("verb", "text", "step"), [("ledger", REFUSAL, "admission"), ("admission", OOM, "ledger")])
def test_the_command_line_names_the_other_verb(verb: str, text: str, step: str, tmp_path: Path) -> None:
    file = tmp_path / "what was pasted.txt"
    file.write_text(text)
    said = CliRunner().invoke(app, [verb, str(file)])
    assert f"next: pagewatch {step} '{file}'" in said.output
    assert said.exit_code == 1
    assert "next:" not in CliRunner().invoke(app, [step, str(file)]).output
