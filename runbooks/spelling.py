"""How the engines at a place spell their metrics: version and prefix, detected once per walk with two small queries."""

from __future__ import annotations

from collections import Counter

from collectors.asking import Answers
from collectors.discovery import discover
from collectors.settings import Settings
from collectors.source import QueryRejected, Source
from runbooks.naming import DialectNames, default_names, names_of, settings_dialect
from runbooks.verdicts import Where


def names_at(source: Source, at_ms: int, settings: Settings, where: Where) -> tuple[DialectNames, tuple[str, ...]]:
    """Names of the commonest engine at a place, and the matchers that keep a router's echoes out of every selector.

    Without engine metrics, or where the backend refuses the discovery queries, the configured or default dialect.
    Raises SourceError when the source cannot be asked.
    """
    try:
        tree = discover(Answers(source), settings, at_ms).tree()
    except QueryRejected:
        return names_of(settings_dialect(settings), settings.identity.rank), ()
    here = {place.instance for place in where.places} if where.scope != "fleet" else set()
    found = [replica.engine for replica in tree.replicas if replica.engine is not None]
    own = [r.engine for r in tree.replicas if r.engine is not None and r.labels.get("instance", "") in here]
    if not found:
        base = (
            names_of(settings_dialect(settings), settings.identity.rank) if settings.engine.dialect else default_names()
        )
        return base, tree.exclude
    engine = Counter(own or found).most_common(1)[0][0]
    version = ".".join(map(str, engine.version))
    return DialectNames(engine.dialect, version, settings.identity.rank, engine.prefix), tree.exclude
