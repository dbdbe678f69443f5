"""The Simulator page: break the bundled fleet and watch the console find it; the block table of a live request."""

from __future__ import annotations

from typing import Any

import streamlit as st

from collectors.instants import format_instant
from collectors.source import SourceError
from pages.ui import data, simulator_client, states
from pages.ui.console import console
from pages.ui.doubts import at_place, broken
from pages.ui.markup import icon, tag
from pages.ui.runbook_view import facts_html
from pages.ui.table import Cell, Column, Row, table
from pages.ui.view import View
from pages.ui.words import cause_text, clock, duration, name_text, opening, percent
from runbooks.verdicts import Where

REPLICA_COLUMNS = (Column("replica"), Column("process"), Column("in flight", "right"), Column("running", "right"), Column("waiting", "right"), Column("KV", "right"), Column("step time"))  # fmt: skip
MOST_BLOCKS = 256
MOST_OVER = 4


def draw(here: View) -> None:
    """The whole page; said plainly when this console does not look at a simulator."""
    if not console().simulator_url:
        states.empty(
            "No simulator here",
            "This console looks at something else than the bundled simulated fleet.",
            "Start one with: pagewatch demo",
        )
        return
    seen = data.simulator()
    if seen.value is None:
        error = seen.error
        states.empty("The simulator does not answer", error.cause if error else "", error.next_step if error else "")
        return
    told, dim = seen.value.told, seen.error is not None
    if seen.error is not None:
        states.trouble(
            f"The simulator does not answer; this is what it said at {clock(seen.value.at_ms)} UTC.",
            seen.error.cause,
            seen.error.next_step,
        )
    with states.section("The fleet"):
        _fleet(told, dim)
    left, right = st.columns(2, gap="small")
    with left, states.section("The truth"):
        _truth(told, here.at_ms)
    with right, states.section("The conclusion"):
        _conclusion(here)
    with states.section("The faults"):
        _faults(told)
    with (
        states.section("The blocks"),
        st.expander("Learn: the block table of a live request, and the arithmetic of paging", key="learn", on_change="rerun") as learn,
    ):  # fmt: skip
        if learn.open:
            _blocks(told)
            _arithmetic()


def _fleet(told: dict[str, Any], dim: bool = False) -> None:
    st.html(
        tag(
            "div",
            tag("div", tag("h2", f"Scenario {told['scenario']}"), tag("span", f"running for {duration(float(told['running_seconds']))}"), tag("span", str(told.get("profile", ""))), class_="pw-head"),
            tag("div", str(told.get("what", "")), class_="pw-muted"),
        )
    )  # fmt: skip
    rows = []
    for replica in told["replicas"]:
        engines = replica["engines"]
        slow = max((float(engine["slowdown"]) for engine in engines), default=1.0)
        halted = any(engine["halted"] for engine in engines)
        rows.append(
            Row(
                str(replica["instance"]),
                (
                    Cell(str(replica["state"])),
                    Cell(str(replica["in_flight"])),
                    Cell(str(sum(engine["running"] for engine in engines))),
                    Cell(str(sum(engine["waiting"] for engine in engines))),
                    Cell(percent(max((float(engine["kv_cache_usage_ratio"]) for engine in engines), default=0.0))),
                    Cell("halted" if halted else f"x {slow:.3g}" if slow != 1 else "as it should be", "bad" if halted else "warn" if slow > 1 else "muted"),
                ),
            )
        )  # fmt: skip
    table(REPLICA_COLUMNS, rows, key="simulated", dim=dim)
    dial = st.slider("Load, times the scenario's own", 0.0, 5.0, min(5.0, float(told["dial"])), 0.1, key="dial")
    if abs(dial - float(told["dial"])) > 1e-9 and st.session_state.get("dial_sent") != dial:
        st.session_state["dial_sent"] = dial
        simulator_client.set_dial(dial)


def standing(incidents: list[dict[str, Any]], at_ms: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(incidents of the ground truth that hold at `at_ms`, those that were over by then, the last one first)."""
    over = [incident for incident in incidents if incident["to_ms"] is not None and incident["to_ms"] <= at_ms]
    return [incident for incident in incidents if incident not in over], over[::-1]


def _truth(told: dict[str, Any], at_ms: int) -> None:
    active = [*told.get("faults", ()), *told.get("scenario_faults", ())]
    now, over = standing(list(told.get("ground_truth", ())), at_ms)
    st.html(
        tag(
            "div",
            tag("h4", "What is really going on"),
            tag("div", "Known only because this fleet is simulated; the console does not read it.", class_="pw-sub"),
            facts_html(
                [
                    ("Faults now", [_fault_text(fault, told) for fault in active] or "none"),
                    ("Truth now", [_incident_text(incident) for incident in now] or "nothing is wrong"),
                    ("Over", [_incident_text(incident) for incident in over[:MOST_OVER]]),
                ]
            ),
            class_="pw-card",
        )
    )  # fmt: skip


def _fault_text(fault: dict[str, Any], told: dict[str, Any]) -> str:
    names = [told["replicas"][i]["instance"] for i in fault.get("replicas") or () if i < len(told["replicas"])]
    return f"{name_text(str(fault['kind']))} on {', '.join(map(str, names)) or 'every replica'}"


def _incident_text(incident: dict[str, Any]) -> str:
    kind = str(incident.get("cause") or incident.get("kind") or "something")
    where = incident.get("where") or {}
    names = [str(place.get("instance", "")) for place in where.get("replicas", ())] if isinstance(where, dict) else []
    place = "the fleet" if isinstance(where, dict) and where.get("scope") == "fleet" else ", ".join(names)
    begin, end = incident.get("from_ms"), incident.get("to_ms")
    times = f", {clock(int(begin))} to {clock(int(end)) if end else 'now'} UTC" if begin else ""
    return cause_text(kind) + (f" on {place}" if place else "") + times


def _conclusion(here: View) -> None:
    seen = data.diagnosis(here)
    found = seen.value
    if found is None:
        states.empty(
            "Not concluded yet", seen.error.cause if seen.error else "", seen.error.next_step if seen.error else ""
        )
        return
    wrong = [verdict for verdict in found.verdicts if verdict.cause != "healthy"]
    reasons = at_place(broken(found), Where("fleet", ()))
    lines = [f"{cause_text(v.cause)} on {v.where} ({v.confidence})" for v in wrong]
    st.html(
        tag(
            "div",
            tag("h4", icon("warn" if wrong else "ok"), "What pagewatch concluded"),
            tag(
                "div",
                f"From the metrics alone, {'as last seen ' if seen.error is not None else ''}at {format_instant(found.at_ms)}.",
                *states.mistrust(reasons, "concluded"),
                class_="pw-sub",
            ),
            facts_html([("Causes", lines or "no incident now")]),
            class_="pw-card",
            data_tone="warn" if wrong else "ok",
        )
    )


def _faults(told: dict[str, Any]) -> None:
    for fault in told.get("faults", ()):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.html(tag("div", icon("warn"), tag("strong", _fault_text(fault, told)), class_="pw-line"))
            if st.button("End it", key=f"clear_{fault['id']}"):
                simulator_client.clear(int(fault["id"]))
                st.rerun(scope="fragment")
    states.heading("Break something")
    names = [str(replica["instance"]) for replica in told["replicas"]]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        which = st.selectbox("On", ["every replica", *names], index=min(1, len(names)), key="fault_where", width=240)
        lasting = st.selectbox("For", ["60 s", "180 s", "until I end it"], index=1, key="fault_length", width=160)
    replicas = [names.index(which)] if which in names else None
    running = {fault["kind"] for fault in told.get("faults", ()) if fault.get("replicas") == replicas}
    length = None if lasting == "until I end it" else float(str(lasting).split()[0])
    for on, title in (("serving", "The serving itself"), ("metrics", "Only what the metrics show")):
        st.html(tag("div", title, class_="pw-muted"))
        kinds = [fault for fault in told.get("available_faults", ()) if fault.get("on") == on]
        for first in range(0, len(kinds), 4):
            for column, fault in zip(st.columns(4, gap="small"), kinds[first : first + 4], strict=False):
                with column:
                    is_on = fault["kind"] in running and not fault.get("momentary")
                    word = opening(name_text(str(fault["kind"]))) + (" · is on" if is_on else "")
                    if st.button(word, key=f"begin_{fault['kind']}", width="stretch", disabled=is_on):
                        simulator_client.begin(str(fault["kind"]), replicas, length)
                        st.rerun(scope="fragment")
                    st.html(tag("div", str(fault["says"]), class_="pw-note"))


def _blocks(told: dict[str, Any]) -> None:
    names = [str(replica["instance"]) for replica in told["replicas"]]
    which = st.segmented_control(
        "Replica", range(len(names)), format_func=lambda i: names[i], default=0, required=True, key="blocks_of"
    )
    try:
        seen = simulator_client.blocks(int(which or 0))
    except SourceError as error:
        states.line("unknown", "No block table now.", error.cause)
        return
    size = int(seen["block_size"])
    cells = [
        tag(
            "i",
            title=f"block {block['block']}, {block['used_slots']} of {size} slots, {block['owners']} owners"
            + (", cached" if block["cached"] else ""),
            class_="pw-block" + (" pw-shared" if block["shared"] else "") + (" pw-cached" if block["cached"] else ""),
            style=f"--pw-used:{100 * int(block['used_slots']) / size:.0f}%",
        )
        for block in seen["blocks"][:MOST_BLOCKS]
    ]
    more = len(seen["blocks"]) - len(cells)
    pool = seen["pool"]
    st.html(
        tag(
            "div",
            tag("h4", f"Request {seen['request']}"),
            tag("div", *cells, class_="pw-blocks"),
            tag("div", f"{more} more blocks" if more > 0 else "Each square is a block; filled as far as its slots are used. Double border: shared. Dot: kept for the prefix cache.", class_="pw-sub"),
            facts_html(
                [
                    ("Blocks", f"{len(seen['blocks'])} of {size} slots each"),
                    ("Tokens", f"{seen['computed_tokens']} computed, of them {seen['cached_tokens_at_admission']} found in the prefix cache; prompt {seen['prompt_tokens']}"),
                    ("Shared", f"{sum(bool(block['shared']) for block in seen['blocks'])} blocks have another owner too, by the prefix cache; {sum(bool(block['cached']) for block in seen['blocks'])} could be hit by the next request"),
                    ("Copied", "none: only full blocks are shared here, and a full block is never written again"),
                    ("Wasted slots", f"{seen['wasted_slots']}: only the last block can be part empty"),
                    ("Pool", f"{pool['free_blocks']} of {pool['usable_blocks']} blocks free, {pool['evictable_cached_blocks']} of them still hold cached prefixes"),
                    ("Arithmetic", [f"{name.replace('_', ' ')}: {_plain(value)}" for name, value in dict(seen.get("paging") or {}).items()]),
                ]
            ),
            class_="pw-card",
        )
    )  # fmt: skip


def _arithmetic() -> None:
    """The figures of paging for a request and for a population, to play with."""
    states.heading("The arithmetic of paging")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        tokens = st.number_input("Tokens of one request", 0, 1_000_000, 50, key="paging_tokens", width=170)
        block_size = st.number_input("Slots of a block", 1, 4096, 16, key="paging_block", width=150)
        low = st.number_input("Lengths from", 1, 1_000_000, 200, key="paging_low", width=150)
        high = st.number_input("to", 1, 1_000_000, 2000, key="paging_high", width=150)
        reservation = st.number_input("Reserved slots", 1, 1_000_000, 4096, key="paging_reserved", width=150)
    try:
        told = simulator_client.paging(tokens, block_size, low, high, reservation)
    except SourceError as error:
        states.line("unknown", "These figures do not go together.", error.cause)
        return
    one, fork, paged, reserved = told["request"], told["fork"], told["paged"], told["reserved"]
    st.html(
        tag(
            "div",
            facts_html(
                [
                    ("One request", f"{one['tokens']} tokens take {one['blocks']} blocks, {one['slots']} slots, {one['free_slots']} of them free; the next token goes to offset {one['next_token_offset']} of block {one['next_token_block'] + 1}"),
                    ("A fork", f"shares {fork['shared_by_the_fork']} blocks and takes none; the first token that one branch adds copies {fork['copied_by_the_write']} and takes {fork['taken_by_the_write']}, {fork['shared_after_the_write']} stay shared"),
                    ("All lengths alike", f"{low} to {high} tokens, mean {_plain(paged['mean_tokens'])}"),
                    ("Paged", f"{percent(paged['aggregate'])} of the slots hold tokens, {_plain(paged['mean_waste_slots'])} slots are wasted per request"),
                    ("Reserved", f"{percent(reserved['aggregate'])} of {reservation} slots each hold tokens, {_plain(reserved['mean_waste_slots'])} slots are wasted per request"),
                    ("Which ratio", f"{told['ratios']['aggregate']}. The mean of each request's own ratio is {percent(paged['mean_of_ratios'])} paged"),
                ]
            ),
            class_="pw-card",
        )
    )  # fmt: skip


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
