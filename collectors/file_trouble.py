"""Why a file cannot be read, and what to do about it: the same words in every room and for every verb."""

from __future__ import annotations

import os
from pathlib import Path


def file_trouble(path: str | os.PathLike[str], error: OSError) -> tuple[str, str]:
    """(cause, next step) of a failed access, one line each; the cause names the path, or the folder that is missing."""
    named = os.fspath(path)
    if isinstance(error, FileNotFoundError):
        folder = Path(named).parent  # what is written first has a name that nobody gave
        return (f"no such file: {named}" if folder.is_dir() else f"no such folder: {folder}"), "Check the path"
    if isinstance(error, IsADirectoryError):
        return f"{named} is a folder, a file is needed", "Name a file in it"
    if isinstance(error, NotADirectoryError):
        return f"{named}: a part of this path is a file, not a folder", "Check the path"
    if isinstance(error, PermissionError):
        return f"{named}: permission denied", "Check whose file it is, or run as that user"
    return f"{named}: {error.strerror or error}", "Check the path and the disk"
