"""From canonical signals to few PromQL queries: every name of a mixed fleet, each process once, rates over a window that the data allow.

Gauges come in one query by `{__name__=~"..."}`; counters in one `or` chain of labelled rates, since `rate` drops the name; a histogram
in one query that serves every quantile, the heat map and the count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collectors.dialect import Dialect, load_dialect
from collectors.identity import FleetTree
from collectors.promql_text import quote_label_value
from collectors.scraped import MODEL

SIGNAL = "signal"
"""Label that names the canonical signal in the answer of an `or` chain."""
AT = "at"
"""Label that tells how many milliseconds back a member of a chain looked."""

SCRAPES_PER_WINDOW = 4
"""A rate needs two samples; four scrapes still leave two when one is missed and one falls outside by jitter."""
FAST_SCRAPE_SECONDS = 3.0
FAST_WINDOW_MS = 30_000
"""At 2 s a minute would blur incidents that last a minute and a half; 30 s still hold fifteen scrapes."""
SHORTEST_WINDOW_MS = 60_000
USUAL_INTERVALS_SECONDS = (1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
JITTER = 0.02
"""How far a scrape interval may be off its nominal value over a minute."""


def rate_window_ms(scrape_interval_seconds: float | None) -> int:
    """The range to take rates over: 30 s up to 3 s scrapes, 1 m up to 15 s, else four scrapes (2 m at 30 s, 4 m at 60 s).

    An unknown interval is taken for the usual 15 s.
    """
    if scrape_interval_seconds is None:
        return SHORTEST_WINDOW_MS
    if scrape_interval_seconds <= FAST_SCRAPE_SECONDS:
        return FAST_WINDOW_MS
    return max(SHORTEST_WINDOW_MS, round(scrape_interval_seconds * SCRAPES_PER_WINDOW * 1000))


def panel_window_ms(scrape_interval_seconds: float | None, step_ms: int) -> int:
    """The range for rates on a grid: a multiple of the step, so that neighbouring points miss no sample and deltas line up."""
    needed = max(rate_window_ms(scrape_interval_seconds), step_ms)
    return -(-needed // step_ms) * step_ms


def scrape_interval_seconds(counts: Mapping[int, Sequence[float]]) -> float | None:
    """The scrape interval that counts of `up` over spans imply, as a usual one; None without samples. Keys are spans in seconds.

    Missed scrapes only lower a count, so the fullest target speaks for all. A span holds its whole number of intervals, or one sample more;
    each longer span narrows what the interval can be, until it leaves nothing because the data began inside it. Where they began inside
    the shortest, the counts tell how old the data are, not how far apart: None.
    """
    fullest = [max(counts[span], default=0.0) for span in sorted(counts)]
    if len(fullest) > 1 and fullest[0] == fullest[-1]:
        return None
    possible: tuple[int, ...] = ()
    estimate: float | None = None
    for span in sorted(counts):
        count = max(counts[span], default=0.0)
        if count < 2:
            continue
        low, high = span / count / (1 + JITTER), span / (count - 1) * (1 + JITTER)
        left = tuple(usual for usual in possible or USUAL_INTERVALS_SECONDS if low <= usual <= high)
        if estimate is not None and not left:
            break
        possible, estimate = left, span / (count - 0.5)
    if estimate is None or possible:
        return (
            float(max(possible)) if possible else None
        )  # of what is left the longest: its window holds enough scrapes for all
    raw = estimate
    return float(min(USUAL_INTERVALS_SECONDS, key=lambda usual: abs(math.log(usual / raw))))


def duration_text(milliseconds: int) -> str:
    """A PromQL duration: 60000 -> '1m', 90000 -> '90s', 1500 -> '1500ms'."""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


@dataclass(frozen=True)
class Part:
    """One member of an `or` chain: a canonical signal, which series of its metric, and its name in the answer."""

    name: str
    signal: str
    suffix: str = ""
    """'_count', '_sum' of a histogram; '' for counters and gauges."""
    keep: tuple[str, ...] = ()
    """Labels by which its series are added up, beyond those that make a rank (finished_reason)."""


@dataclass(frozen=True)
class Plan:
    """How to ask this fleet: its labels, its spellings, its doubles."""

    tree: FleetTree
    dialect: Dialect

    @property
    def rank_labels(self) -> tuple[str, ...]:
        return (*self.tree.replica_labels, self.tree.rank_label, MODEL)

    def spellings(self, signal: str) -> tuple[str, ...]:
        """Every metric name that a signal has somewhere in this fleet, preferred first; empty = in no version that is present.

        A fleet without any engine metric is asked by the names of the dialect's default version. Raises UnknownSignal.
        """
        engines = self.tree.engines
        if not engines:
            return tuple(metric.name for metric in self.dialect.signal(signal, self.dialect.default))
        order = {m.name: i for i, m in enumerate(e for e in self.dialect.entries if e.signal == signal)}
        found: dict[str, int] = {}
        for engine in engines:
            for metric in engine.dialect.signal(signal, engine.version):
                found.setdefault(engine.dialect.respell(metric.name, engine.prefix), order[metric.name])
                if metric.always and metric.status == "active":
                    break  # it is surely there, and an older name beside it would only repeat it
        return tuple(sorted(found, key=lambda name: found[name]))

    def selector(self, names: Sequence[str], suffix: str = "", *matchers: str) -> str:
        """A vector selector for these names, router echoes left out."""
        inside = [*self.tree.exclude, *matchers]
        if len(names) == 1 and re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", names[0]):
            return names[0] + suffix + (f"{{{','.join(inside)}}}" if inside else "")
        pattern = "|".join(re.escape(name) + suffix for name in names)
        return f"{{{','.join([f'__name__=~{quote_label_value(pattern)}', *inside])}}}"

    def gauges(self, signals: Iterable[str]) -> str:
        """All gauges of these signals in one query, as scraped.

        A process that is scraped twice answers twice: who reads the rows takes the highest of a rank. Aggregating here would cost the
        server more than the rows do.
        """
        names = [name for signal in signals for name in self.spellings(signal)]
        return self.selector(names) if names else ""

    def rates(self, signal: str, suffix: str, window: str, by: Sequence[str] = (), keep: Sequence[str] = ()) -> str:
        """`sum by (...)` of a signal's rates, each process once and each rank by one name; '' when no version here has it."""
        spellings = self.spellings(signal)
        if not spellings:
            return ""
        extra = ("le",) if suffix == "_bucket" else ()
        out = ", ".join(dict.fromkeys((*by, *extra)))
        rated = [f"rate({self.selector((name,), suffix)}[{window}])" for name in spellings]
        if len(rated) == 1 and not self.tree.duplicated:
            return f"sum by ({out}) ({rated[0]})"
        each = ", ".join(dict.fromkeys((*self.rank_labels, *extra, *keep)))
        once = " or ".join(f"max by ({each}) ({one})" for one in rated)
        return f"sum by ({out}) ({once})"

    def chain(self, parts: Sequence[Part], window: str, by: Sequence[str] = ()) -> str:
        """One query for many rates; each series carries its part's name in the label `signal`."""
        members = []
        for part in parts:
            rated = self.rates(part.signal, part.suffix, window, by, part.keep)
            if rated:
                members.append(f'label_replace({rated}, "{SIGNAL}", "{part.name}", "", "")')
        return " or ".join(members)

    def buckets(self, signal: str, window: str, by: Sequence[str] = ()) -> str:
        """Merged bucket rates of a histogram by `le` (and `by`)."""
        return self.rates(signal, "_bucket", window, by)

    def layouts(self, signals: Iterable[str], back_ms: Sequence[int] = (0,)) -> str:
        """How many series stand behind each bound, by metric name, now and a while back (`at` says when): an instant query.

        Tells whether replicas have different buckets. Looking at a few instants costs a twentieth of looking at every step.
        """
        names = [name for signal in signals for name in self.spellings(signal)]
        if not names:
            return ""
        selector = self.selector(names, "_bucket")
        members = []
        for back in back_ms:
            moved = f"{selector} offset {duration_text(back)}" if back else selector
            members.append(f'label_replace(count by (__name__, le) ({moved}), "{AT}", "{back}", "", "")')
        return " or ".join(members)


def plan_for(tree: FleetTree, dialect: Dialect | None = None) -> Plan:
    return Plan(tree, dialect or (tree.engines[0].dialect if tree.engines else load_dialect()))
