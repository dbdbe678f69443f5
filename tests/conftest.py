"""Property tests draw the same examples in every checked run, and new ones on a developer's machine."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("checked", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("checked")
