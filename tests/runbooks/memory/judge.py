"""A small judge for cases in the handed format: NAME.log beside NAME.expect.json. What it finds wrong comes back as sentences."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_NEGATED = re.compile(
    r"\b(not|never|no|cannot|without|useless|rather than|instead of|avoid|refus\w*|unlikely|ruled out)\b", re.IGNORECASE
)


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from walk(child, f"{path}.{key}")
    elif isinstance(value, list):
        for child in value:
            yield from walk(child, path)
    else:
        yield path, value


def same(name: str, found: float, wanted: float) -> bool:
    if name.endswith("_gib"):
        return abs(found - wanted) <= max(0.011, abs(wanted) * 0.002)
    if name in ("bytes_per_token", "estimated_max_len_tokens"):
        return abs(found - wanted) <= max(0.5, abs(wanted) * 0.001)
    return abs(found - wanted) <= (0.006 if "utilization" in name or name == "concurrency" else 0.5)


def holds(answer: dict[str, Any], name: str, wanted: float) -> bool:
    """The figure stands in the answer under its own name."""
    return any(
        path.rsplit(".", 1)[-1] == name and not isinstance(value, bool) and same(name, float(value), wanted)
        for path, value in walk(answer)
        if isinstance(value, int | float)
    )


def plain(text: str) -> str:
    return re.sub(r"[\s_`*-]+", " ", re.sub(r"(?<=\d),(?=\d)", "", text.lower()))


def faults(expected: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Everything in which the answer differs from what the case expects; empty = right."""
    wrong = []
    if answer["class"] not in (expected["class"], *expected.get("accept_class", [])):
        wrong.append(f"class {answer['class']}, expected {expected['class']}")
    for name, value in {
        **expected["numbers"],
        **expected.get("fixes", {}),
        **expected.get("minimal_fix", {}),
    }.items():
        if not holds(answer, name, float(value)):
            wrong.append(f"{name} is not {value}: {answer['numbers'].get(name)}")
    for request in expected.get("requests", []):
        wrong += [
            f"no request with {name} {value}"
            for name, value in request.items()
            if not any(found.get(name) == value for found in answer["requests"])
        ]
    if "requests" in expected and len(expected["requests"]) != len(answer["requests"]):
        wrong.append(f"{len(answer['requests'])} requests, expected {len(expected['requests'])}")
    said = [value for path, value in walk(answer) if isinstance(value, str)]
    together = plain(json.dumps(answer, ensure_ascii=False))
    wrong += [f"does not say {phrase!r}" for phrase in expected["must_say"] if plain(phrase) not in together]
    for phrase in expected["must_not_say"]:
        sentences = [sentence for text in said for sentence in re.split(r"(?<=[.!?;])\s+|\n", text)]
        wrong += [
            f"says {phrase!r}: {sentence[:120]}"
            for sentence in sentences
            if plain(phrase) in plain(sentence) and not _NEGATED.search(sentence)
        ]
    asked = plain(" ".join(answer["missing"]))
    wrong += [f"does not ask for {phrase!r}" for phrase in expected["missing"] if plain(phrase) not in asked]
    if expected.get("nothing_missing") and answer["missing"]:
        wrong.append(f"asks for {answer['missing']}")
    wrong += [f"{name} is made up" for name in expected.get("absent", []) if name in answer["numbers"]]
    return wrong


def judged(case: Path, decode: Callable[[Iterator[str]], dict[str, Any]]) -> list[str]:
    expected = json.loads(case.with_name(case.name.replace(".log", ".expect.json")).read_text(encoding="utf-8"))
    with case.open(encoding="utf-8") as lines:
        return faults(expected, decode(lines))
