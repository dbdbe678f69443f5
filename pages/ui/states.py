"""What a page says when there is nothing to draw, and how one broken panel stays one broken panel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from collectors.source import SourceError
from pages.ui.markup import Markup, icon, tag

LOG = logging.getLogger("pagewatch.pages")


def empty(word: str, why: str, next_step: str = "") -> None:
    """A whole section without data: the word, the cause, the next thing to try."""
    st.html(tag("div", tag("strong", word), tag("span", why), tag("span", next_step), class_="pw-empty"))


def line(level: str, *parts: str | Markup) -> None:
    """One quiet line with its level's shape."""
    st.html(tag("div", icon(level), *(p if isinstance(p, Markup) else tag("span", p) for p in parts), class_="pw-line", data_tone=level))  # fmt: skip


SOME_NUMBERS = "some numbers"


def mistrust(reasons: Sequence[str], key: str = "", what: str = "") -> tuple[Markup, ...]:
    """The mark of a number that is not trusted, which opens to the reasons; nothing when there are none. `key`: see `reason`.

    `what` is not trusted where the mark stands beside more than a number: beside a cause, a bare mark would be read as its denial.
    """
    if not reasons:
        return ()
    return (reason(f"! {what + ' ' if what else ''}not trusted", "; ".join(reasons), "pw-why pw-doubtful", key),)


def reason(word: str, why: str, class_: str, key: str = "") -> Markup:
    """A word that opens to its reason by touch, by keyboard and by mouse; `key` names it on its page, so that it stays open over a refresh."""
    return tag(
        "details", tag("summary", word), tag("div", why, class_="pw-fold-body"), class_=class_, data_fold=key or None
    )


def heading(text: str) -> None:
    """The title of a part of a page."""
    st.html(tag("h3", text, class_="pw-heading"))


def note(text: str) -> None:
    """A remark in small muted type."""
    st.html(tag("div", text, class_="pw-note"))


def trouble(what: str, cause: str, next_step: str = "") -> None:
    """A section that failed: what, why, what to try."""
    st.html(
        tag(
            "div",
            icon("bad"),
            tag("strong", what),
            tag("span", cause),
            tag("span", next_step) if next_step else None,
            class_="pw-trouble",
            role="alert",
        )
    )


@contextmanager
def section(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is shown in this place, and the rest of the page stands.

    Streamlit's own control flow is no Exception and passes through.
    """
    try:
        yield
    except SourceError as error:
        trouble(f"{what}: no answer.", error.cause, error.next_step)
    except Exception as error:
        LOG.exception("%s could not be drawn", what)
        trouble(
            f"{what} could not be drawn.", f"{type(error).__name__}: {error}"[:300], "The rest of the page is not affected; the log has the details."
        )  # fmt: skip
