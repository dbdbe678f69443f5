"""label_replace, label_join and the natural order of labels."""

from __future__ import annotations

import re

from collectors.remembered import of_labels
from collectors.store.matchers import BadPattern, compile_pattern
from collectors.store.promql.errors import failed
from collectors.store.promql.grids import Grid, unique
from collectors.store.series import LabelSet

_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)


def valid_label_name(name: str, *, utf8: bool) -> bool:
    """Whether a label may have this name: any valid UTF-8 since 3.0, letters, digits and underscores before."""
    if not utf8:
        return re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) is not None
    return bool(name) and not any(0xD800 <= ord(c) <= 0xDFFF or c == "\ufffd" for c in name)


def label_replace(source: Grid, target: str, replacement: str, origin: str, pattern: str, *, utf8: bool) -> Grid:
    """Set `target` to the expanded replacement where `pattern` matches all of label `origin`."""
    try:
        compiled = compile_pattern(pattern)
    except BadPattern:
        raise failed(f"invalid regular expression in label_replace(): {pattern}") from None
    if not valid_label_name(target, utf8=utf8):
        raise failed(f"invalid destination label name in label_replace(): {target}")
    labels = source.labels

    def replaced() -> tuple[LabelSet, ...]:
        made = []
        for one in labels:
            match = compiled.fullmatch(one.get(origin))
            made.append(one if match is None else one.replace(target, _expanded(replacement, match)))
        return tuple(made)

    key = ("label_replace", target, replacement, origin, pattern)
    return unique(source.with_labels(of_labels(labels, key, replaced)))


def _expanded(template: str, match) -> str:  # type: ignore[no-untyped-def]
    groups, names = match.groups(), match.groupdict()

    def value(variable: re.Match[str]) -> str:
        name = variable.group(1) or variable.group(2)
        if name is None:
            return "$"
        if name.isdigit():
            number = int(name)
            found = match.group(0) if number == 0 else groups[number - 1] if number <= len(groups) else ""
        else:
            found = names.get(name, "")
        return found or ""

    return _VARIABLE.sub(value, template)


def label_join(source: Grid, target: str, separator: str, origins: tuple[str, ...], *, utf8: bool) -> Grid:
    """Set `target` to the values of the labels `origins`, joined."""
    for name in origins:
        if not valid_label_name(name, utf8=utf8):
            raise failed(f"invalid source label name in label_join(): {name}")
    if not valid_label_name(target, utf8=utf8):
        raise failed(f"invalid destination label name in label_join(): {target}")
    labels = tuple(one.replace(target, separator.join(one.get(name) for name in origins)) for one in source.labels)
    return unique(source.with_labels(labels))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which digits count as numbers: a2 before a10."""
    return [(0, int(part), part) if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", text)]


def sorted_by_labels(source: Grid, names: tuple[str, ...], *, descending: bool) -> Grid:
    """sort_by_label, sort_by_label_desc: by the named labels in natural order, then by all labels."""

    def key(i: int) -> tuple[list[list[tuple[int, int, str]]], tuple[tuple[str, str], ...]]:
        one: LabelSet = source.labels[i]
        return [natural_key(one.get(name)) for name in names], one.pairs

    order = sorted(range(len(source.labels)), key=key, reverse=descending)
    chosen = source.at(order)
    return Grid(chosen.labels, chosen.values, chosen.present, ordered=True)
