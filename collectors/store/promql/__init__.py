"""PromQL: `Engine(blocks).instant(promql, at_ms)`, `.range(promql, window)`, both giving a `Result` or a `PromQLError`."""

from collectors.store.promql.engine import Engine
from collectors.store.promql.errors import PromQLError
from collectors.store.promql.limits import Limits
from collectors.store.promql.parsing import parse, parse_selector
from collectors.store.promql.results import Result

__all__ = ["Engine", "Limits", "PromQLError", "Result", "parse", "parse_selector"]
