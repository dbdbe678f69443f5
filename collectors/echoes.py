"""Targets as a diagnosis may count them: what a router repeats is left out, what a router alone shows has the router's own `up`."""

from __future__ import annotations

from collections.abc import Mapping

from collectors.doubles import router_echoes
from collectors.observed_target import Target
from collectors.scraped import Series
from collectors.scraped import Target as Scraped
from collectors.settings import Settings
from collectors.sheets import TargetKey


def without_echoes(targets: Mapping[TargetKey, Target], settings: Settings) -> dict[TargetKey, Target]:
    """The targets without a router's copies of others that are scraped themselves, and without the router.

    Series that carry more labels than their target's `up` (a router's backends, labels that a relabelling adds to some series)
    have no `up` of their own: they are given that of their address.
    """
    homeless = [key for key, target in targets.items() if target.engine and not target.own]
    if not homeless:
        return dict(targets)
    labels = {key: target.labels for key, target in targets.items()}
    gauges = {key: Series("", "", labels[key], 0.0) for key, target in targets.items() if target.engine}
    found, _ = router_echoes(list(gauges.values()), [Scraped(one) for one in labels.values()], settings)
    echoes = {id(series) for series in found}
    dropped = {key for key, series in gauges.items() if id(series) in echoes}
    routers = {_place(labels[key]) for key in dropped}
    dropped |= {key for key, target in targets.items() if not target.engine and _place(labels[key]) in routers}
    adopted: set[TargetKey] = set()
    for key in homeless:
        if key not in dropped:
            parents = [
                other
                for other, parent in targets.items()
                if parent.own and not parent.engine and other not in dropped and set(other) <= set(key)
            ]
            adopted.update(parents)
            targets[key].own += [sheet for parent in parents for sheet in targets[parent].own]
    return {key: target for key, target in targets.items() if key not in dropped | adopted}


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")
