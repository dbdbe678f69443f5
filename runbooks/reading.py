"""What one rank's metrics say at an instant: the quantities that causes reason with. Arithmetic only, no judgement.

All windows stay inside the process that runs now, so that no restart mixes two lives. Rates are plain differences
between scrapes. The formulas follow the V1 scheduler of vLLM 0.11.0 (what each metric counts, and when it moves).
"""

from __future__ import annotations

from runbooks.reading_cache import CacheReading
from runbooks.reading_progress import PROGRESS, ProgressReading

__all__ = ["PROGRESS", "Reading"]


class Reading(CacheReading, ProgressReading):
    """One rank at one instant: its windows, its queue, its cache, its progress."""
