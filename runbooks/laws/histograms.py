"""Laws inside one histogram: its buckets, its count and its sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.model import Floats
from collectors.observed import Counter, Histogram, Rank
from runbooks.laws.model import KEPT, Check, Outcome, Subject, unknown
from runbooks.reading import Reading
from runbooks.reading_windows import once


def _with_buckets(rank: Rank) -> Iterator[tuple[str, Histogram]]:
    for signal, histogram in rank.histograms.items():
        if len(histogram.edges) >= 2 and len(histogram.bucket_times_ms):
            yield signal, histogram


def _newest(histogram: Histogram, scrapes: int, since_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """(times, cumulative counts) of the newest scrapes with all buckets, of the running process."""
    if histogram.always_complete and histogram.bucket_times_ms[0] >= since_ms:
        return histogram.bucket_times_ms[-scrapes:], histogram.buckets[-scrapes:]
    whole = histogram.complete & (histogram.bucket_times_ms >= since_ms)
    return histogram.bucket_times_ms[whole][-scrapes:], histogram.buckets[whole][-scrapes:]


def _epoch(subject: Subject) -> int:
    return subject.reading.epoch_ms if subject.reading is not None else 0


def _judge(subject: Subject, broken: list[tuple[str, str]], seen: int) -> Outcome:
    if broken:
        signals = tuple(signal for signal, _ in broken)
        return Outcome("broken", "; ".join(f"{signal}: {words}" for signal, words in broken), signals)
    return KEPT if seen else unknown("no buckets in the window")


@dataclass(frozen=True)
class _Joined:
    """The newest scrapes of all histograms of a rank side by side, each bucket of them there: laws that nothing breaks are judged at once.

    counts (scrapes, edges of all); starts, ends: the first and last edge of each histogram.
    """

    histograms: tuple[Histogram, ...]
    times_ms: list[int]
    counts: Floats
    edges: Floats
    starts: npt.NDArray[np.intp]
    ends: npt.NDArray[np.intp]

    def counters(self, of: Callable[[Histogram], Counter]) -> Floats:
        """The raw values of a counter of each histogram at those scrapes: (scrapes, histograms)."""
        found = [of(histogram) for histogram in self.histograms]
        return np.array([[counter.values[counter.at(t)] for counter in found] for t in self.times_ms])


@once
def _joined(reading: Reading) -> _Joined | None:
    """None where the histograms of the rank do not lie side by side."""
    histograms = tuple(histogram for _, histogram in _with_buckets(reading.rank))
    if not histograms or any(not h.gapless or h.bucket_times_ms[0] < reading.epoch_ms for h in histograms):
        return None
    times_ms = histograms[0].bucket_times_ms
    if any(h.bucket_times_ms is not times_ms for h in histograms):
        return None
    scrapes = int(reading.limits("metrics_untrustworthy", "scrapes"))
    behind = np.cumsum([len(h.edges) for h in histograms])
    return _Joined(
        histograms,
        times_ms[-scrapes:].tolist(),
        np.concatenate([h.buckets[-scrapes:] for h in histograms], axis=1),
        np.concatenate([h.edges for h in histograms]),
        np.concatenate(([0], behind[:-1])),
        behind - 1,
    )


def _none_falls(joined: _Joined) -> bool:
    """Whether every bucket holds at least what the one below it holds."""
    falls = joined.counts[:, 1:] < joined.counts[:, :-1]
    falls[:, joined.ends[:-1]] = False  # from one histogram to the next
    return not falls.any()


def _all_fit(joined: _Joined) -> bool:
    """Whether every sum lies well between what the buckets of the newest scrape allow, one of them with observations."""
    counts, edges = joined.counts[-1], joined.edges
    inside, lower, upper = counts.copy(), np.zeros(len(edges)), edges.copy()
    inside[1:] -= counts[:-1]
    inside[joined.starts] = counts[joined.starts]
    lower[1:] = edges[:-1]
    lower[joined.starts] = upper[joined.ends] = 0.0
    sums = joined.counters(lambda histogram: histogram.sum)[-1]
    least, most = (np.add.reduceat(inside * bound, joined.starts) for bound in (lower, upper))
    most[inside[joined.ends] != 0] = np.inf
    slack = 0.9e-6  # less than below: these sums are added up in another order
    fits = (sums >= least * (1 - slack) - slack) & (sums <= most * (1 + slack) + slack)
    return bool(fits.all() and inside.min() >= 0 and counts[joined.ends].any())


def buckets_cumulative(subject: Subject) -> Outcome:
    """Counts may not fall from a bucket to the next higher one."""
    assert subject.rank is not None
    assert subject.reading is not None
    joined = _joined(subject.reading)
    if joined is not None and _none_falls(joined):
        return KEPT
    broken, seen = [], 0
    for signal, histogram in _with_buckets(subject.rank):
        _, counts = _newest(histogram, subject.scrapes, _epoch(subject))
        if not len(counts):
            continue
        seen += 1
        falls = counts[:, 1:] < counts[:, :-1]
        if falls.any(axis=1).all():
            place = int(np.flatnonzero(falls[-1])[0])
            upper, lower = counts[-1][place + 1], counts[-1][place]
            broken.append(
                (
                    signal,
                    f"le={histogram.edges[place + 1]:g} holds {upper:.0f}, le={histogram.edges[place]:g} holds {lower:.0f}",
                )
            )
    return _judge(subject, broken, seen)


def inf_bucket_is_count(subject: Subject) -> Outcome:
    """+Inf and count are one number."""
    assert subject.rank is not None
    assert subject.reading is not None
    joined = _joined(subject.reading)
    if joined is not None and np.isinf(joined.edges[joined.ends]).all():
        equal = joined.counts[:, joined.ends] == joined.counters(lambda histogram: histogram.count)
        if equal.all():
            return KEPT
    broken, seen = [], 0
    for signal, histogram in _with_buckets(subject.rank):
        times, counts = _newest(histogram, subject.scrapes, _epoch(subject))
        if not len(counts) or not np.isinf(histogram.edges[-1]):
            continue
        count = [float(histogram.count.values[histogram.count.at(t)]) for t in times.tolist()]
        if any(value != value for value in count):
            continue
        seen += 1
        if all(abs(value - most) > 0 for value, most in zip(count, counts[:, -1].tolist(), strict=True)):
            broken.append((signal, f"+Inf holds {counts[-1][-1]:.0f}, the count is {count[-1]:.0f}"))
    return _judge(subject, broken, seen)


def sum_fits_buckets(subject: Subject) -> Outcome:
    """Between the buckets' lower and upper bounds; all bounds of these families are positive."""
    assert subject.rank is not None
    assert subject.reading is not None
    joined = _joined(subject.reading)
    if joined is not None and _all_fit(joined):
        return KEPT
    broken, seen = [], 0
    for signal, histogram in _with_buckets(subject.rank):
        times, counts = _newest(histogram, 1, _epoch(subject))
        if not len(counts) or counts[0][-1] <= 0 or (counts[0][1:] < counts[0][:-1]).any():
            continue
        total = float(histogram.sum.values[histogram.sum.at(int(times[0]))])
        if np.isnan(total):
            continue
        seen += 1
        inside, lower = counts[0].copy(), np.zeros(len(histogram.edges))
        inside[1:] -= counts[0][:-1]
        lower[1:] = histogram.edges[:-1]
        least = float((inside * lower).sum())
        most = float((inside[:-1] * histogram.edges[:-1]).sum()) if inside[-1] == 0 else np.inf
        if total < least * (1 - 1e-6) - 1e-6 or total > most * (1 + 1e-6) + 1e-6:
            broken.append((signal, f"the sum is {total:.4g}, the buckets allow {least:.4g} to {most:.4g}"))
    return _judge(subject, broken, seen)


def buckets_not_all_equal(subject: Subject) -> Outcome:
    """All first tokens in the first bucket although prefill takes longer than its edge."""
    assert subject.rank is not None
    histogram = subject.rank.histograms.get("time_to_first_token")
    prefill = subject.rank.histograms.get("request_prefill_time")
    if histogram is None or prefill is None or len(histogram.edges) < 2:
        return unknown("no first-token or prefill histogram")
    _, counts = _newest(histogram, 1, _epoch(subject))
    finished = prefill.count.values[~np.isnan(prefill.count.values)]
    summed = prefill.sum.values[~np.isnan(prefill.sum.values)]
    if not len(counts) or counts[0][-1] < 10 or not len(finished) or finished[-1] < 10:
        return unknown("too few first tokens to judge")
    mean = float(summed[-1] / finished[-1])
    edge = float(histogram.edges[0])
    if counts[0][0] == counts[0][-1] and mean > 3 * edge:
        return Outcome(
            "broken",
            f"all {counts[0][-1]:.0f} first tokens within {edge:g} s, while prefill takes {mean:.3f} s on average",
        )
    return KEPT


def quantiles_inside_buckets(subject: Subject) -> Outcome:
    """Share of observations beyond the last finite edge, since the window's first buckets."""
    assert subject.rank is not None
    broken, seen = [], 0
    for signal in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        histogram = subject.rank.histograms.get(signal)
        if histogram is None or len(histogram.edges) < 2:
            continue
        _, counts = _newest(histogram, 10**6, _epoch(subject))
        if len(counts) < 2 or counts[-1][-1] - counts[0][-1] < 20:
            continue
        seen += 1
        observed = counts[-1] - counts[0]
        beyond = 1 - observed[-2] / observed[-1]
        if beyond > 0.01:
            broken.append((signal, f"{beyond:.1%} of {observed[-1]:.0f} lie beyond {histogram.edges[-2]:g}"))
    return _judge(subject, broken, seen) if seen else unknown("fewer than 20 observations in the window")


CHECKS: dict[str, Check] = {
    "buckets_cumulative": buckets_cumulative,
    "inf_bucket_is_count": inf_bucket_is_count,
    "sum_fits_buckets": sum_fits_buckets,
    "buckets_not_all_equal": buckets_not_all_equal,
    "quantiles_inside_buckets": quantiles_inside_buckets,
}
