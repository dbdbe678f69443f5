"""The Memory page: a pasted or dropped log becomes an account of the device, a verdict and fixes; a planner beside it."""

from __future__ import annotations

import json

import streamlit as st

from pages.ui import nav, states
from pages.ui.memory_view import (
    LEDGER_COLUMNS,
    NUMBER_COLUMNS,
    REQUEST_COLUMNS,
    device_bar,
    ledger_rows,
    number_rows,
    plan_card,
    request_rows,
    runbook_of,
    verdict_card,
)  # fmt: skip
from pages.ui.table import table
from runbooks.memory import read_as
from runbooks.memory.predict import ConfigError, Flags, ModelShape, plan

LOG, REFUSED = "start or out-of-memory log", "refused request"
LIMIT = 20_000_000
CONFIG_LIMIT = 1_000_000


def draw() -> None:
    """The whole page; nothing leaves this machine."""
    read, planned = st.tabs(["Read a log", "Plan a start"], key="memory_tab", on_change="rerun")
    if planned.open:
        with planned, states.section("The planner"):
            _planner()
        return
    with read:
        _read()


def _read() -> None:
    left, right = st.columns([5, 6], gap="small")
    with left:
        kind = st.segmented_control(
            "What is it", [LOG, REFUSED], default=LOG, required=True, key="memory_kind"
        )  # fmt: skip
        text = st.text_area(
            "Paste it here. Nothing leaves this machine.", height=260, key="memory_text", max_chars=LIMIT
        )
        dropped = st.file_uploader("or drop a file", key="memory_file", max_upload_size=20)
        if dropped is not None:
            text = dropped.getvalue().decode("utf-8", "replace")
    if not text.strip():
        with right:
            states.empty("No log yet", "A start-up log, the end of one, a traceback, or the body of a refused request.", "The same on the command line: pagewatch ledger FILE, pagewatch admission FILE")  # fmt: skip
        return
    with states.section("The log"):
        lines = text.splitlines()
        answer, refused = read_as(lines, refused=kind == REFUSED)
        with right:
            if refused != (kind == REFUSED):
                states.note(f"Nothing of a {kind} is in it: read as a {REFUSED if refused else LOG}.")
            st.html(verdict_card(answer))
            runbook = runbook_of(answer, refused)
            if runbook:
                st.page_link(
                    nav.FILES["runbook"], label="Open runbook", icon=":material/arrow_forward:", icon_position="right",
                    query_params=nav.merged({}, id=runbook, source=nav.given("source")),
                )  # fmt: skip
            if answer.get("requests"):
                table(REQUEST_COLUMNS, request_rows(answer["requests"]), key="requests")
        bar = device_bar(answer)
        if bar is not None:
            st.html(bar)
        accounts, figures = st.columns(2, gap="small")
        if answer.get("ledger"):
            with accounts:
                table(LEDGER_COLUMNS, ledger_rows(answer), key="ledger")
                _identity(answer)
        if answer.get("numbers"):
            with figures:
                table(NUMBER_COLUMNS, number_rows(answer), key="numbers")


def _identity(answer: dict[str, object]) -> None:
    identity = answer.get("identity")
    if not isinstance(identity, dict) or identity.get("holds") is None:
        states.note("Whether the account adds up cannot be told: a part of it is unknown.")
    elif identity["holds"]:
        states.line("ok", "The account adds up.")
    else:
        states.line("warn", f"The account is off by {identity['difference_gib']} GiB.")


def _planner() -> None:
    left, right = st.columns([5, 6], gap="small")
    with left:
        text = st.text_area("config.json of the model", height=160, key="plan_config", max_chars=CONFIG_LIMIT, placeholder='{"num_hidden_layers": 32, "hidden_size": 4096, ...}')  # fmt: skip
        total = st.number_input("Device memory, GiB", 1.0, 1024.0, 80.0, key="plan_total")
        utilization = st.slider("gpu_memory_utilization", 0.1, 0.99, 0.9, 0.01, key="plan_utilization")
        window = st.number_input("max_model_len, tokens", 16, 10_000_000, 8192, step=1024, key="plan_window")
        seats = st.number_input("max_num_seqs", 1, 8192, 256, key="plan_seats")
        budget = st.number_input("max_num_batched_tokens", 64, 1_000_000, 8192, step=1024, key="plan_budget")
        dtype = st.segmented_control("KV cache dtype", ["auto", "fp8"], default="auto", required=True, key="plan_dtype")
        parallel = st.segmented_control("Tensor parallel", [1, 2, 4, 8], default=1, required=True, key="plan_parallel")
    with right:
        if not text.strip():
            states.empty(
                "No model yet",
                "Paste the config.json that lies beside the weights.",
                "Weights, KV bytes per token, blocks and concurrency follow.",
            )
            return
        try:
            shape = ModelShape.from_config(json.loads(text))
            flags = Flags(total, utilization, int(window), int(seats), int(budget), str(dtype), int(parallel or 1))
            st.html(plan_card(plan(shape, flags)))
            states.note(
                "The activation peak is an estimate, and non-torch memory an ordinary figure; a measured start (debug log) replaces both."
            )
        except (ValueError, AttributeError, ConfigError) as error:
            states.trouble("This config.json cannot be used.", str(error)[:300], "Paste the whole file as it is.")
