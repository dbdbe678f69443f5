"""The ledger's and the decoder's answers as text for a terminal. Everything from the log has been made plain before."""

from __future__ import annotations

from typing import Any


def ledger_text(answer: dict[str, Any]) -> str:
    lines = [
        f"class     {answer['class']}"
        + (f"  (vLLM {answer['engine_version']})" if answer.get("engine_version") else "")
    ]
    if answer["ledger"]:
        lines.append("ledger")
        for entry in answer["ledger"]:
            figure = f"{entry['gib']:10.2f} GiB" if entry["gib"] is not None else f"{'?':>10}    "
            lines.append(
                f"  {entry['rank'] or '-':<16}{entry['name']:<30}{figure}  {entry['origin']}"
                + (f"  line {entry['line']}" if entry.get("line") else "")
            )
    if answer["numbers"]:
        lines.append("figures   " + ", ".join(f"{name} {value}" for name, value in answer["numbers"].items()))
    identity = answer["identity"]
    if identity["holds"] is not None:
        lines.append(f"adds up   {'yes' if identity['holds'] else 'NO'} (difference {identity['difference_gib']} GiB)")
    return "\n".join(lines + _tail(answer))


def admission_text(answer: dict[str, Any]) -> str:
    lines = [f"class     {answer['class']}"]
    if len(answer["requests"]) > 1:
        for request in answer["requests"]:
            lines.append(f"request at line {request['line']}: {request['class']}")
            lines += [f"  {said}" for said in request["says"]]
            lines += [f"  fix: {_change(fix['change'])}" for fix in request["fixes"]]
    return "\n".join(lines + _tail(answer))


def _change(change: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in change.items())


def _tail(answer: dict[str, Any]) -> list[str]:
    lines = [f"- {said}" for said in answer["says"]]
    for fix in answer["fixes"]:
        predicted = _change(fix.get("predicted", {}))
        price = fix.get("price", "")
        wanted = fix.get("recommended")
        lines.append(
            (
                f"fix: {_change(wanted)}  (bare limit: {_change(fix['change'])})"
                if wanted
                else f"fix: {_change(fix['change'])}"
            )
            + (f"  -> {predicted}" if predicted else "")
            + (f"  (price: {price})" if price else "")
        )
    lines += [f"missing: {name}" for name in answer["missing"]]
    return lines
