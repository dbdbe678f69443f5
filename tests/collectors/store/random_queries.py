"""PromQL that a random fleet can be asked: every function and operator of Prometheus 2.42, in random company."""

from __future__ import annotations

import random

GAUGES = ("waiting", "usage", "drift", "flaky")
COUNTERS = ("tokens_total", "lat_sum", "lat_count")
MATCHERS = (
    "",
    '{job="vllm"}',
    '{zone=~"a|b"}',
    '{zone!="a"}',
    '{instance!~"r[12].*"}',
    '{kind=""}',
    '{instance=~"r3.+"}',
)
RANGES = ("30s", "1m", "97s", "2m", "5m", "10m")
OVER_TIME = (*("avg", "min", "max", "sum", "count", "last", "present", "stddev", "stdvar"),)
MATH = (
    *("abs", "ceil", "floor", "sqrt", "exp", "ln", "log2", "log10", "sgn", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "deg", "rad"),
)
DATES = ("minute", "hour", "day_of_week", "day_of_month", "day_of_year", "days_in_month", "month", "year")


class Queries:
    """A seeded source of queries."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def some(self, count: int) -> list[str]:
        """`count` different queries."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.query()] = None
        return list(found)

    def query(self) -> str:
        """One instant-vector or scalar expression."""
        r = self._random
        kinds = [self._aggregate] * 4 + [self._binary] * 4 + [self._of_range] * 4 + [self._of_vector] * 3
        kinds += [self._quantile] * 3 + [self._subquery] * 2 + [self._labels, self._absent, self._scalar, self.selector]
        return r.choice(kinds)()

    def selector(self) -> str:
        r = self._random
        return r.choice(GAUGES + COUNTERS + ("lat_bucket",)) + r.choice(MATCHERS) + self._shift()

    def _shift(self) -> str:
        return self._random.choice(
            ["", "", "", "", " offset 1m", " offset -90s", " @ end()", " @ start()", " @ 1700000900 offset 30s"]
        )

    def _range(self, names: tuple[str, ...]) -> str:
        r = self._random
        return f"{r.choice(names)}{r.choice(MATCHERS)}[{r.choice(RANGES)}]{self._shift()}"

    def _of_range(self) -> str:
        r = self._random
        kind = r.randrange(5)
        if kind == 0:
            return f"{r.choice(OVER_TIME)}_over_time({self._range(GAUGES + COUNTERS)})"
        if kind == 1:
            return f"{r.choice(('rate', 'increase', 'irate', 'resets', 'changes'))}({self._range(COUNTERS)})"
        if kind == 2:
            return f"{r.choice(('delta', 'idelta', 'deriv', 'changes'))}({self._range(GAUGES)})"
        if kind == 3:
            return f"quantile_over_time({r.choice(('0.9', '0.5', '0', '1', '1.2', '-1'))}, {self._range(GAUGES)})"
        return r.choice(
            [
                # Without @: 2.42 moves the pinned window on from step to step, which later versions mended.
                f"predict_linear({self._range(GAUGES).split(' @')[0]}, {r.choice(('60', '3600', '-30'))})",
                f"holt_winters({self._range(('usage', 'drift'))}, 0.{r.randint(1, 9)}, 0.{r.randint(1, 9)})",
            ]
        )

    def _vector(self) -> str:
        return self._random.choice([self.selector, self._of_range])()

    def _of_vector(self) -> str:
        r = self._random
        inner = self._vector()
        return r.choice(
            [
                f"{r.choice(MATH)}({inner})",
                f"{r.choice(DATES)}(({self._range_free()}) * 1e6)",
                f"clamp({inner}, {r.choice(('0', '-1', '2'))}, {r.choice(('1', '10', '1e3'))})",
                f"clamp_{r.choice(('min', 'max'))}({inner}, {r.choice(('0', '2', '100'))})",
                f"round({inner}, {r.choice(('1', '0.1', '5', '0.3'))})",
                f"timestamp({self.selector()})",
                f"timestamp({inner})",
                f"sort({inner})",
                f"-{inner}" if not inner.startswith("lat_bucket") else f"-({inner})",
                f"absent({inner})",
                "minute()",
            ]
        )

    def _grouping(self) -> str:
        r = self._random
        return r.choice(
            [
                "",
                " by (job)",
                " by (zone, job)",
                " without (instance)",
                " without (instance, zone)",
                " by (instance)",
                " by ()",
            ]
        )

    def _aggregate(self) -> str:
        r = self._random
        inner = self._vector()
        kind = r.randrange(8)
        if kind == 0:
            return f"{r.choice(('topk', 'bottomk'))}{self._grouping()} ({r.choice(('1', '2', '3', '100', '0'))}, {self._range_free()})"
        if kind == 1:
            return f"quantile{self._grouping()} ({r.choice(('0.5', '0.95', '0', '2'))}, {inner})"
        if kind == 2:
            return f'count_values{self._grouping()} ("v", round({inner}, 10))'
        op = r.choice(("sum", "avg", "min", "max", "count", "stddev", "stdvar", "group"))
        return f"{op}{self._grouping()} ({inner})"

    def _range_free(self) -> str:
        """An instant vector without equal values, whose ties no order would decide."""
        return self._random.choice(["drift", "usage", "avg_over_time(usage[2m])", "lat_sum", "rate(lat_sum[2m])"])

    def _binary(self) -> str:
        r = self._random
        kind = r.randrange(7)
        left, right = self._vector(), self._vector()
        arithmetic = r.choice(("+", "-", "*", "/", "%", "^"))
        compare = r.choice(("==", "!=", ">", "<", ">=", "<="))
        if kind == 0:
            return f"({left}) {arithmetic} {r.choice(('2', '0.5', '-1', '1e3'))}"
        if kind == 1:
            return f"{r.choice(('2', '0', '10'))} {compare} {r.choice(('', 'bool '))}({left})"
        if kind == 2:
            return f"({left}) {compare} {r.choice(('', 'bool '))}({right})"
        if kind == 3:
            return f"({left}) {arithmetic} ({right})"
        if kind == 4:
            op = r.choice(("and", "or", "unless"))
            return f"({left}) {op} {r.choice(('', 'on(instance) ', 'on(zone) ', 'ignoring(zone) '))}({right})"
        if kind == 5:
            return f"sum by (instance, le) (lat_bucket) {arithmetic} on(instance) group_left {r.choice(('', '(zone) '))}({self._range_free()})"
        return f"({self._range_free()}) {r.choice((arithmetic, compare))} on(zone) group_left sum by (zone) ({left})"

    def _quantile(self) -> str:
        r = self._random
        rates = f"rate(lat_bucket{r.choice(MATCHERS)}[{r.choice(RANGES)}]{self._shift()})"
        inner = r.choice(
            [
                rates,
                f"sum by (le) ({rates})",
                f"sum by (le, zone) ({rates})",
                f"lat_bucket{self._shift()}",
                f"avg without (instance) ({rates})",
            ]
        )
        return f"histogram_quantile({r.choice(('0.5', '0.9', '0.99', '0', '1', '1.1', '-0.1'))}, {inner})"

    def _subquery(self) -> str:
        r = self._random
        step = r.choice(("15s", "30s", "7s", ""))
        inner = self._vector() if r.random() < 0.6 else f"sum by (zone) ({self._vector()})"
        function = r.choice(("max", "min", "avg", "sum", "count", "last", "stddev"))
        return f"{function}_over_time(({inner})[{r.choice(('1m', '100s', '3m'))}:{step}]{self._shift()})"

    def _labels(self) -> str:
        r = self._random
        return r.choice(
            [
                f'label_replace({self._vector()}, "short", "$1-${{2}}", "instance", "(r.)(.*):.*")',
                f'label_join({self._vector()}, "both", "/", "job", "zone", "nothing")',
                f'label_replace({self._vector()}, "zone", "", "zone", ".*")',
            ]
        )

    def _absent(self) -> str:
        r = self._random
        return r.choice(
            [
                'absent(nothing{a="b",c=~"d"})',
                f"absent_over_time({self._range(GAUGES)})",
                'absent(usage{instance="r2:8000"})',
            ]
        )

    def _scalar(self) -> str:
        r = self._random
        return r.choice(
            [
                f"scalar({self._vector()})",
                "time() % 100",
                "vector(time())",
                f"vector(scalar(sum({self._vector()})))",
                "pi() * 2",
                "1 == bool 2",
            ]
        )
