"""Forward-progress state of every rank: what it is doing and since when. `/health` answering 200 is not evidence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collectors.observed import Observations, Replica, index_at
from runbooks.episodes import holding_since
from runbooks.frozen import frozen_gauges
from runbooks.reading import Reading
from runbooks.stillness import stillness
from runbooks.thresholds import Pace
from runbooks.verdicts import Place, RankState

SILENT_SCRAPES = 5
"""A target without any sample for this many intervals is no longer being scraped (Prometheus marks series stale after one)."""


def rank_states(observations: Observations, readings: Mapping[Place, Reading], pace: Pace) -> dict[Place, RankState]:
    """State by place; a replica without ranks has one state for the whole of it."""
    states: dict[Place, RankState] = {}
    for replica in observations.replicas:
        outside = unreachable(replica, observations.at_ms, pace)
        places = [Place(replica.instance, rank.engine) for rank in replica.ranks] or [Place(replica.instance)]
        for place in places:
            if outside is not None:
                state, since_ms, why = outside
                states[place] = RankState(place, "down" if state == "down" else "unknown", since_ms, why)
            else:
                states[place] = _inside(place, readings.get(place), replica, pace)
    return states


def unreachable(replica: Replica, at_ms: int, pace: Pace) -> tuple[str, int, str] | None:
    """('down' | 'unscraped', since, why) when the target does not answer; None when it does.

    One or two failed scrapes are no outage; a target that nobody scrapes any more is unknown, not down.
    """
    last = index_at(replica.times_ms, at_ms)
    if last < 0 or at_ms - int(replica.times_ms[last]) > SILENT_SCRAPES * pace.interval_ms:
        newest = int(replica.times_ms[last]) if last >= 0 else at_ms
        return "unscraped", newest, f"no sample for {(at_ms - newest) / 1000:.0f} s"
    if replica.up[last] > 0:
        return None
    known = ~np.isnan(replica.up[: last + 1])
    since = holding_since(replica.times_ms[: last + 1][known], replica.up[: last + 1][known] == 0, forgiven=0)
    if since is not None:
        failed = int(np.sum((replica.times_ms[: last + 1] >= since) & known))
        if failed >= 3 and int(replica.times_ms[last]) - since >= pace.hold_ms - pace.interval_ms:
            return "down", since, f"{failed} scrapes in a row failed"
    return None


def _inside(place: Place, reading: Reading | None, replica: Replica, pace: Pace) -> RankState:
    if reading is None or not reading.seen_ms:
        return RankState(place, "unknown", None, "answers, but shows no engine metrics")
    newest_answer = replica.times_ms[np.flatnonzero(replica.answered)]
    if len(newest_answer) and int(newest_answer[-1]) - reading.seen_ms > SILENT_SCRAPES * pace.interval_ms:
        return RankState(place, "unknown", reading.seen_ms, "answers, but its engine metrics are gone")
    still = stillness(reading)
    if still.kind == "stale":
        return RankState(place, "stale", still.since_ms, still.evidence[0])
    if still.kind in ("stopped", "blocked", "blocked_perhaps", "deaf"):
        return RankState(place, "stalled", still.since_ms, still.evidence[0])
    frozen = frozen_gauges(reading)
    if frozen is not None and frozen.contradicted:
        return RankState(place, "stale", frozen.since_ms, frozen.evidence)
    if reading.work == 0 and reading.silent_ms >= pace.hold_ms:
        return RankState(place, "idle", reading.silent_since_ms)
    if not reading.measures_progress or reading.running != reading.running:
        return RankState(place, "unknown", reading.seen_ms, "the metrics that show progress are missing")
    state = "prefill_only" if _prefill_only(reading, still.kind == "unclear") else "serving"
    return RankState(place, "prefill_only" if state == "prefill_only" else "serving", reading.busy_since_ms)


def _prefill_only(reading: Reading, unclear: bool) -> bool:
    """No token after the first one: a prefill worker, or a long prompt on its way in."""
    if unclear:
        return True
    first, gaps = reading.increase("time_to_first_token"), reading.increase("inter_token_latency")
    return first > 0 and gaps == 0
