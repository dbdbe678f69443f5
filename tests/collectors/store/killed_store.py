"""A store process for the kill test: scrapes the target it is given and says what it has acknowledged.

    python -m tests.collectors.store.killed_store ADDRESS FOLDER

Prints one line for every scrape *after* it has been appended: the value of `a` that a query could show from then on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from collectors.model import MetricMeta
from collectors.store.fetch import ScrapeLimits
from collectors.store.rows import Row
from collectors.store.scrape import ScrapeSettings
from collectors.store.store import Store

LIFETIME_SECONDS = 30.0


def main(address: str, folder: Path) -> None:
    store = Store.open(folder)
    append = store.append

    def append_and_say(rows: Sequence[Row], metadata: Mapping[str, MetricMeta]) -> None:
        append(rows, metadata)
        for row in rows:
            place = next((i for i, series in enumerate(row.series) if series["__name__"] == "a"), None)
            if place is not None:
                sys.stdout.write(f"{row.time_ms} {float(row.values[place])};\n")
                sys.stdout.flush()

    store.append = append_and_say  # type: ignore[method-assign]
    store.start([address], ScrapeSettings(0.02, ScrapeLimits(1.0)))
    time.sleep(LIFETIME_SECONDS)  # the parent kills it long before
    store.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
