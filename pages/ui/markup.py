"""HTML for st.html. Whatever is not a tag made here is escaped here, once: label values and log lines are text."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, *children: str | Markup | None, **attributes: str | float | None) -> Markup:
    """One element; None children and attributes are left out, `class_` is `class`, underscores become dashes."""
    inner = "".join(str(c) if isinstance(c, Markup) else escape(str(c)) for c in children if c is not None)
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{pairs}>{inner}</{name}>")


def icon(level: str) -> Markup:
    """A shape for each level, so that colour is never alone: ok, warn, bad, unknown."""
    return tag("i", class_=f"pw-icon pw-icon-{level}", aria_hidden="true")
