"""From a ledger or an admission answer (plain JSON) to what the Memory page draws. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pages.ui.markup import Markup, icon, tag
from pages.ui.runbook_view import facts_html
from pages.ui.table import Cell, Column, Row
from pages.ui.words import digits, name_text, opening
from runbooks.evidence import OPTIONS

PARTS = ("weights", "activation_peak", "non_torch", "graphs", "kv_cache", "other_processes")
"""What lies on the device, in the order of the bar; the rest of it is unknown."""
WORDS = {
    "weights": "weights",
    "activation_peak": "activation peak",
    "non_torch": "non-torch",
    "graphs": "graphs",
    "kv_cache": "KV cache",
    "other_processes": "other processes",
    "total": "device",
    "requested": "requested share",
}
UNITS = (
    ("_gib", "GiB"),
    ("_mib", "MiB"),
    ("_tokens", "tokens"),
    ("_seconds", "s"),
    ("_ratio", ""),
    ("_bytes", "bytes"),
)
LEDGER_COLUMNS = (
    Column("part of the device"),
    Column("rank"),
    Column("GiB", "right"),
    Column("how it is known"),
    Column("line", "right"),
)
NUMBER_COLUMNS = (Column("figure"), Column("value", "right"), Column("unit"))


def word_of(name: str) -> str:
    return WORDS.get(name, name_text(name))


def gib_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def ledger_rows(answer: Mapping[str, Any]) -> list[Row]:
    """The account, part by part."""
    return [
        Row(
            word_of(str(part["name"])),
            (
                Cell(str(part.get("rank") or "-"), "muted"),
                Cell(gib_text(part["gib"]), "muted" if part["gib"] is None else ""),
                Cell(str(part["origin"]), "muted"),
                Cell(str(part.get("line") or ""), "muted"),
            ),
        )
        for part in answer.get("ledger", ())
    ]  # fmt: skip


def number_rows(answer: Mapping[str, Any]) -> list[Row]:
    """Every figure that was read or derived."""
    rows = []
    for name, value in answer.get("numbers", {}).items():
        unit = next((word for suffix, word in UNITS if name.endswith(suffix)), "")
        stem = next((name.removesuffix(suffix) for suffix, _ in UNITS if name.endswith(suffix)), name)
        label = name if name in OPTIONS else name_text(stem)  # without its unit `max_tokens` would be a mere "max"
        text = value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        rows.append(Row(label, (Cell(str(text)), Cell(unit, "muted"))))
    return rows


def device_bar(answer: Mapping[str, Any]) -> Markup | None:
    """One bar per rank with a known total: what lies on the device, the rest hatched as unknown, the requested share as a line.

    Where the message tells how much was free, the rest is in use: it is not called free then.
    """
    by_rank: dict[str, dict[str, float]] = {}
    for part in answer.get("ledger", ()):
        if part["gib"] is not None:
            by_rank.setdefault(str(part.get("rank") or ""), {})[str(part["name"])] = float(part["gib"])
    shared = by_rank.pop("", {})
    ranks = by_rank or {"": shared}
    told_free = answer.get("numbers", {}).get("free_gib")  # of the device that the message is about
    free = float(told_free) if told_free is not None and len(ranks) == 1 else None
    bars = [_bar(rank, {**shared, **parts}, free) for rank, parts in ranks.items()]
    shown = [bar for bar in bars if bar is not None]
    return tag("div", *shown) if shown else None


def _bar(rank: str, parts: Mapping[str, float], free: float | None) -> Markup | None:
    total = parts.get("total")
    known = [(name, parts[name]) for name in PARTS if parts.get(name, 0.0) > 0]
    if not total or not known:
        return None
    used = sum(gib for _, gib in known)
    scale = max(total, used)
    pieces = [
        tag("div", f"{word_of(name)} {gib:.2f}", style=f"width:{100 * gib / scale:.2f}%;background:{_colour(name)}", title=f"{word_of(name)}: {gib:.2f} GiB")
        for name, gib in known
    ]  # fmt: skip
    if total > used:
        pieces.append(
            tag(
                "div",
                f"unknown or free {total - used:.2f}"
                if free is None
                else f"in use, not told by what {max(total - used - free, 0):.2f}, free {free:.2f}",
                class_="pw-hatched",
                style=f"width:{100 * (total - used) / scale:.2f}%",
            )
        )
    requested = parts.get("requested")
    if requested:
        pieces.append(
            tag(
                "i",
                class_="pw-requested",
                style=f"left:{100 * min(requested, scale) / scale:.2f}%",
                title=f"requested share: {requested:.2f} GiB",
            )
        )
    legend = (
        [f"device {total:.2f} GiB"]
        + ([f"requested share {requested:.2f} GiB (line)"] if requested else [])
        + ([f"more than the device holds by {used - total:.2f} GiB"] if used > total else [])
    )
    return tag(
        "div",
        tag("div", rank, class_="pw-muted") if rank else None,
        tag("div", *pieces, class_="pw-device"),
        tag("div", *(tag("span", text) for text in legend), class_="pw-device-legend"),
    )  # fmt: skip


def _colour(name: str) -> str:
    slots = {"weights": 4, "activation_peak": 2, "non_torch": 5, "graphs": 7, "kv_cache": 0, "other_processes": 3}
    light = ("#5396d8", "#106370", "#664da5", "#e557b3", "#35406e", "#794328", "#999166", "#6d777d")
    return light[slots[name]]


def verdict_card(answer: Mapping[str, Any]) -> Markup:
    """The class of the log, what it says, what would solve it at which price, what is missing."""
    kind = str(answer.get("class") or "undetermined")
    level = "ok" if kind in ("not_memory", "ok") else "unknown" if kind == "undetermined" else "warn"
    return tag(
        "div",
        tag("h4", icon(level), opening(name_text(kind))),
        facts_html(
            [
                ("What it says", [str(line) for line in answer.get("says", ())]),
                ("Would solve it", [fix_text(fix) for fix in answer.get("fixes", ())]),
                ("Missing", [str(line) for line in answer.get("missing", ())]),
            ]
        ),
        class_="pw-card",
        data_tone=level if level in ("warn", "ok") else None,
    )  # fmt: skip


def fix_text(fix: Mapping[str, Any]) -> str:
    """'max_model_len 16368 -> usable KV tokens 16368. Price: ...'"""
    limit = ", ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in fix.get("change", {}).items())
    wanted = ", ".join(
        f"{name.replace('_', ' ')}: {_value(value)}" for name, value in fix.get("recommended", {}).items()
    )
    change = f"{wanted} (bare limit: {limit})" if wanted else limit
    predicted = ", ".join(_with_unit(name, value) for name, value in (fix.get("predicted") or {}).items())
    price = fix.get("price")
    return change + (f". Predicted: {predicted}" if predicted else "") + (f". Price: {price}" if price else "")


def _with_unit(name: str, value: Any) -> str:
    """'frees_gib', 0.63 -> 'frees 0.63 GiB'"""
    suffix, unit = next(((suffix, unit) for suffix, unit in UNITS if name.endswith(suffix)), ("", ""))
    return f"{name_text(name.removesuffix(suffix))} {_value(value)} {unit}".rstrip()


def runbook_of(answer: Mapping[str, Any], refused: bool) -> str:
    """The runbook that goes on from what was read; '' where nothing was, or where it is not about memory."""
    kind = str(answer.get("class") or "undetermined")
    if kind in ("undetermined", "not_memory", "not_vllm"):
        return ""
    if refused:
        return "auth_abuse" if kind == "auth" else "admission_failure"
    return "out_of_memory_run" if kind.startswith("runtime_oom") else "out_of_memory_start"


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def request_rows(requests: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row per refused request."""
    return [
        Row(
            f"line {request.get('line') or '?'}",
            (Cell(name_text(str(request.get("class", "")))), Cell(str(request.get("route") or "")), Cell("; ".join(map(str, request.get("says", ()))))),
        )
        for request in requests
    ]  # fmt: skip


REQUEST_COLUMNS = (Column("request"), Column("refused as"), Column("route"), Column("what it says", "wrap"))


def plan_card(plan: Any) -> Markup:
    """A predicted start: what lies where, blocks, tokens, how many full windows fit."""
    level = "ok" if plan.fits else "bad"
    word = "Would start" if plan.fits else "Would not start: the window does not fit"
    return tag(
        "div",
        tag("h4", icon(level), word),
        facts_html(
            [
                ("Requested share", f"{plan.requested_gib:.2f} GiB"),
                ("Weights", f"{plan.weights_gib:.2f} GiB per device"),
                ("Activation peak", f"{plan.activation_peak_gib:.2f} GiB"),
                ("Non-torch", f"{plan.non_torch_gib:.2f} GiB"),
                ("KV cache", f"{plan.kv_gib:.2f} GiB, {plan.bytes_per_token:,} bytes per token"),
                ("Blocks", f"{plan.num_gpu_blocks:,}, {plan.usable_kv_tokens:,} usable tokens"),
                ("Full windows at once", digits(plan.concurrency)),
                ("Longest window", f"{plan.longest_window:,} tokens"),
                ("Left outside", f"{plan.slack_gib:.2f} GiB for graphs and others"),
            ]
        ),
        class_="pw-card",
        data_tone=level,
    )  # fmt: skip
