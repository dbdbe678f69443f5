"""From what an operator writes - an address, a name of the config file, a path - to a source that can be asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from collectors.scope import ScopedSource
from collectors.settings import Settings, SettingsError, SourceSettings
from collectors.source import Source, SourceBroken, SourceRefused

if TYPE_CHECKING:
    from collectors.capsule import Capsule

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def open_source(spec: str, settings: Settings, scope: Mapping[str, str] | None = None) -> Source:
    """The source that `spec` names: a URL, the name of a `[[source]]`, or a path to an incident file or folder.

    The configured scope and `scope` (which wins) stand in every query. An incident file is opened and checked here; a server is first
    asked when a question is. Raises SourceError.
    """
    source = _opened(spec, settings)
    both = {**settings.scope, **(scope or {})}
    return ScopedSource(source, both) if both else source


def _opened(spec: str, settings: Settings) -> Source:
    if not spec.strip():
        raise SourceBroken(
            "the source is empty", "Give a URL, a name from the config file or a path to an incident file"
        )
    configured = settings.named_source(spec)
    if configured is not None and not _ADDRESS.match(configured.url):
        base = settings.path.parent if settings.path is not None else Path()
        return _opened_capsule(base / Path(configured.url).expanduser())
    if configured is None and not _ADDRESS.match(spec):
        path = Path(spec).expanduser()
        if path.exists():
            return _opened_capsule(path)
        names = ", ".join(source.name for source in settings.source)
        raise SourceBroken(
            f"{spec}: no such file, and no source of that name is configured",
            f"Configured sources: {names}" if names else "Give a URL such as http://localhost:9090, or a path",
        )
    from collectors.prometheus import RemoteSource

    try:
        return RemoteSource.from_settings(configured or SourceSettings.for_address(spec))
    except SettingsError as error:
        raise SourceRefused(str(error)) from None


def _opened_capsule(path: Path) -> Source:
    from collectors.capsule import CapsuleSource, read_capsule

    return CapsuleSource(read_capsule(path))


def capsule_of(source: Source) -> Capsule | None:
    """The capsule behind a source, through any scope; None when it is not a recording."""
    from collectors.capsule import CapsuleSource

    while isinstance(source, ScopedSource):
        source = source.inner
    return source.capsule if isinstance(source, CapsuleSource) else None
