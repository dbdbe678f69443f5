"""Where tests find the data handed beside the checkout: $PAGEWATCH_SHARED, by default ../shared."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("PAGEWATCH_SHARED") or ROOT.parent / "shared").resolve()


def shared(*parts: str) -> Path:
    """The path of a shared file or folder; skips the test with the reason when it is not there."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared data not found: {path} (set PAGEWATCH_SHARED)", allow_module_level=True)
    return path


def shared_files(*parts: str, pattern: str) -> list[Path]:
    """Every file of a kind in a shared folder, sorted; empty when the folder is missing (parametrised tests then say so)."""
    folder = SHARED.joinpath(*parts)
    return sorted(folder.glob(pattern)) if folder.is_dir() else []
