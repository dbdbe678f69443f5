"""What every verb shares: options, instants, settings and scope from the command line, and errors as one line."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from collectors.model import ApiAnswer
    from collectors.settings import Settings
    from collectors.source import Source

SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        help="A URL, a name from the config file, or a path to a capsule; default: the config file's first source.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help="pagewatch.toml (default: ./, then ~/.config/pagewatch/)."),
]
ScopeOption = Annotated[
    list[str] | None, typer.Option("--scope", help="label=value, put into every query; repeatable.")
]
AtOption = Annotated[str | None, typer.Option("--at", help="RFC 3339 or unix seconds; default: the source's now.")]
InputPath = Annotated[Path, typer.Argument(readable=False)]
"""A file that a room opens: what is wrong with it is said there, in one line."""
InputPaths = Annotated[list[Path], typer.Argument(readable=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Stable, versioned JSON instead of text.")]


def fail(message: str, code: int = 1) -> NoReturn:
    """One line on stderr, then exit."""
    print("pagewatch: " + " ".join(message.split()), file=sys.stderr)
    raise typer.Exit(code)


def instant_ms(text: str, option: str) -> int:
    """Epoch milliseconds of an RFC 3339 time or of unix seconds (fractions allowed)."""
    from collectors.instants import parse_instant_ms

    try:
        return parse_instant_ms(text)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


def load_settings(config: Path | None) -> Settings:
    from collectors.settings import Settings, SettingsError

    try:
        return Settings.load(config, os.environ)
    except SettingsError as error:
        fail(str(error), 2)


def scope_of(pairs: Iterable[str] | None) -> dict[str, str]:
    scope: dict[str, str] = {}
    for pair in pairs or ():
        label, separator, value = pair.partition("=")
        if not separator or not label:
            fail(f"--scope {pair!r} is not label=value", 2)
        scope[label] = value
    return scope


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Every failure that a domain names leaves as one line and exit code 1; a closed pipe ends quietly."""
    from collectors.progress import telling_progress
    from collectors.settings import SettingsError
    from collectors.source import SourceError

    try:
        with telling_progress(progress_line()):
            yield
    except SourceError as error:
        fail(str(error))
    except SettingsError as error:
        fail(str(error), 2)
    except EmptyInput as error:
        fail(str(error))
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the interpreter flushes it while it exits
        raise typer.Exit(1) from None
    except OSError as error:
        from collectors.file_trouble import file_trouble

        fail(". ".join(file_trouble(error.filename or "input or output", error)))


def source_or_first(spec: str | None, settings: Settings) -> str:
    """What `--source` says, else the first source of the config file; exit code 2 where there is neither."""
    if spec is not None:
        return spec
    if not settings.source:
        fail("no source: give --source URL_OR_CAPSULE, or name one as [[source]] in pagewatch.toml", 2)
    return settings.source[0].name


def opened(spec: str | None, config: Path | None, scope: list[str] | None) -> tuple[Source, Settings]:
    from collectors.sources import open_source

    settings = load_settings(config)
    return open_source(source_or_first(spec, settings), settings, scope_of(scope)), settings


def repeated_options(spec: str | None, config: Path | None, scope: list[str] | None, at: str | None) -> str:
    """The options of this call as a shell reads them, so that a command it names as the next step can be pasted.

    An address comes without its user and password, as everywhere it is shown.
    """
    from collectors.guarded_http import shown_address

    if spec is not None and spec.startswith(("http://", "https://")):
        spec = shown_address(spec)
    given = [("--source", spec), ("--config", config), *(("--scope", pair) for pair in scope or ()), ("--at", at)]
    return "".join(f" {option} {shlex.quote(str(value))}" for option, value in given if value is not None)


def progress_line(after_seconds: float = 1.0) -> Callable[[float, str], None]:
    """Shows on a terminal how far something is that takes longer than `after_seconds`; nothing when errors go to a file."""
    began: float | None = None
    shown = False

    def tell(share: float, words: str) -> None:
        nonlocal began, shown
        began = time.monotonic() if began is None else began
        if not sys.stderr.isatty() or (not shown and time.monotonic() - began < after_seconds):
            return
        shown = share < 1.0
        print(f"\r{share:4.0%} {words:<40}" if shown else "\r\x1b[K", end="", file=sys.stderr, flush=True)

    return tell


def when(source: Source, at: str | None) -> int:
    return instant_ms(at, "--at") if at is not None else source.now_ms()


def print_json(data: Any) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode() + "\n")


def print_answer(answer: ApiAnswer) -> None:
    """The whole answer of the Prometheus API: status, data, and warnings where there are any."""
    warned = {"warnings": list(answer.warnings)} if answer.warnings else {}
    print_json({"status": "success", "data": answer.data, **warned})


def text_lines(file: str) -> Iterator[str]:
    """The lines of a file, or of standard input for '-'; undecodable bytes are shown, never an error."""
    if file == "-":
        yield from (line.decode("utf-8", "replace") for line in sys.stdin.buffer)
        return
    with open(file, encoding="utf-8", errors="replace", newline="\n") as lines:
        yield from lines


class EmptyInput(Exception):
    """There was nothing to read; one line with the next step."""


def some_text(file: str, wanted: str) -> Iterator[str]:
    """`text_lines`, but a text without a single word is said: an account of nothing helps nobody. Raises EmptyInput."""
    empty = True
    for line in text_lines(file):
        empty = empty and not line.strip()
        yield line
    if empty:
        raise EmptyInput(f"{'standard input' if file == '-' else file} is empty. Give {wanted}")
