"""A scenario: fleet, load, faults and what must be seen, read from one small TOML file. Times are seconds from the start of the run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Cause = Literal[
    "healthy",
    "overload",
    "seat_limited",
    "kv_limited",
    "prefill_limited",
    "unadmittable_head",
    "sequence_hog",
    "engine_slow",
    "replica_imbalance",
    "rank_imbalance",
    "engine_stalled",
    "stale_gauges",
    "replica_down",
    "replica_restarted",
    "admission_rejects",
    "auth_rejects",
    "client_aborts",
    "cold_prefix_cache",
    "metrics_missing",
    "metrics_untrustworthy",
    "oom_at_start",
]


class ScenarioError(Exception):
    """A scenario that does not exist or is written wrongly; one line with the place and the next step."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lengths(_Part):
    """A distribution of token counts: fixed `mean`, uniform on `low`..`high`, or log-normal with `mean` and `cv`, cut to `low`..`high`."""

    kind: Literal["fixed", "uniform", "lognormal"] = "fixed"
    mean: float = Field(default=0, ge=0)
    cv: float = Field(default=0.5, gt=0)
    low: int = Field(default=1, ge=1)
    high: int = Field(default=1_000_000, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> Lengths:
        if self.kind != "uniform" and self.mean <= 0:
            raise ValueError("mean must be above 0")
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Arrivals(_Part):
    """When requests come. `rate` in requests per second, for all replicas that the stream goes to together."""

    kind: Literal["poisson", "gamma", "ramp", "diurnal", "steps", "closed", "trace", "burst"] = "poisson"
    rate: float = Field(default=1.0, ge=0)
    cv: float = Field(default=2.0, gt=0, description="gamma: coefficient of variation of the gaps")
    rate_to: float = Field(default=0.0, ge=0, description="ramp: rate at the end of the period")
    period_seconds: float = Field(default=3600.0, gt=0, description="ramp, diurnal: length")
    amplitude: float = Field(default=0.5, ge=0, le=1, description="diurnal: share of the rate that swings")
    steps: list[tuple[float, float]] = Field(default=[], description="steps: [seconds, rate], repeated from the start")
    clients: int = Field(default=1, ge=1, description="closed: how many wait for each other")
    think_seconds: float = Field(default=1.0, ge=0, description="closed: mean pause between answer and next request")
    count: int = Field(default=1, ge=1, description="burst: how many at once")
    file: str = Field(default="", description="trace: CSV with arrived_at_s, prompt_tokens, output_tokens")
    rescale_rate: float = Field(default=0.0, ge=0, description="trace: stretch time to this mean rate; 0 keeps it")
    limit: int = Field(default=0, ge=0, description="trace: only the first so many; 0 all")


class SharedPrefix(_Part):
    """Prompts begin with one of `families` common texts of `tokens` tokens."""

    families: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Chat(_Part):
    """Each arrival opens a conversation of `turns` requests that resend the history."""

    turns: int = Field(ge=1)
    think_seconds: float = Field(default=5.0, ge=0)


class Aborts(_Part):
    """A share of the clients hangs up after an exponential time, or after exactly `mean_seconds`."""

    ratio: float = Field(ge=0, le=1)
    mean_seconds: float = Field(gt=0)
    exactly: bool = False


class Load(_Part):
    """One stream of requests. Its figures are for the fleet as the scenario states it, all replicas together (`resize`)."""

    name: str = "load"
    arrivals: Arrivals = Arrivals()
    prompt: Lengths = Lengths(mean=256)
    output: Lengths = Lengths(mean=128)
    max_tokens: int | None = Field(default=None, ge=1, description="default: the output length itself (reason length)")
    start_seconds: float = Field(default=0.0, ge=0)
    stop_seconds: float | None = None
    replicas: list[int] | None = Field(default=None, description="only these; default: by the fleet's routing")
    not_replicas: list[int] = Field(default=[], description="every replica but these, through the fleet's routing")
    grows_with_fleet: bool = Field(
        default=True,
        description="on another number of replicas than stated, arrivals change in proportion; false: they stay what they are in all",
    )
    rank: int | None = Field(default=None, description="pin to one data-parallel rank")
    shared_prefix: SharedPrefix | None = None
    chat: Chat | None = None
    aborts: Aborts | None = None
    tenants: int = Field(default=0, ge=0, description="isolated from each other by a salt that the server chooses")
    priorities: list[int] = []
    n: int = Field(default=1, ge=1)
    oversized_ratio: float = Field(default=0.0, ge=0, le=1, description="prompts longer than max_model_len")
    bad_key_ratio: float = Field(default=0.0, ge=0, le=1)
    endpoint: Literal["/v1/completions", "/v1/chat/completions"] = "/v1/chat/completions"
    obeys_dial: bool = True


FaultKind = Literal[
    "slow",
    "halt",
    "crash",
    "cold_start",
    "engine_dead",
    "mass_abort",
    "reset_prefix_cache",
    "oom_at_start",
    "frozen_gauges",
    "missing_rank",
    "interleaved_servers",
    "flat_buckets",
    "hits_above_queries",
    "removed_metric",
    "missing_scrape",
]


COLD_START_SECONDS = 120.0


class Fault(_Part):
    """Something that goes wrong from `start_seconds` to `stop_seconds` (None: for good)."""

    kind: FaultKind
    start_seconds: float = Field(ge=0)
    stop_seconds: float | None = None
    replicas: list[int] | None = Field(default=None, description="default: all")
    rank: int | None = None
    factor: float = Field(default=3.0, gt=0, description="slow, cold_start: step times are multiplied by it")
    restart_after_seconds: float | None = Field(default=None, ge=0, description="crash: None stays down")
    warm_up_seconds: float = Field(default=0.0, ge=0, description="crash, cold_start: slow for so long after the start")
    metric: str = Field(default="", description="frozen_gauges, removed_metric: which one")
    ratio: float = Field(default=0.5, ge=0, le=1, description="missing_scrape: share of the scrapes lost")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """A fault that is only named does something: a cold start warms up for two minutes, the queue's metric is the one that disappears."""
        if isinstance(data, dict):
            if data.get("kind") == "cold_start" and not data.get("warm_up_seconds"):
                return {**data, "warm_up_seconds": COLD_START_SECONDS}
            if data.get("kind") == "removed_metric" and not data.get("metric"):
                return {**data, "metric": "vllm:num_requests_waiting"}
        return data


class Truth(_Part):
    """What is really wrong, where and when."""

    cause: Cause
    start_seconds: float = Field(ge=0)
    stop_seconds: float | None = None
    replicas: list[int] | None = None
    rank: int | None = None
    repeat_seconds: float | None = Field(default=None, gt=0, description="the same again after so long, and again")


class Remedy(_Part):
    """A change that ends the incident, so that it can be applied and the end be seen."""

    engine: dict[str, int | float | str | bool] = {}
    replicas: int | None = Field(default=None, ge=1)
    routing: Literal["round_robin", "least_waiting"] | None = None
    clear_faults: bool = False
    drop_loads: list[str] = Field(default=[], description="streams that stop")
    unpin_loads: bool = Field(default=False, description="pinned streams go through the balancer")


class Expect(_Part):
    """What a console that reads only metrics must make of it."""

    outcome: Literal["fires", "silent", "manual"]
    cause: Cause
    where: Literal["fleet", "replica", "rank"] = "fleet"
    may_stand_beside: list[Cause] = []
    detect_within_seconds: float = Field(default=120.0, gt=0)
    remedy: Remedy | None = Field(default=None, description="what mends it; None: nothing in the fleet does")


class Fleet(_Part):
    """The replicas and what is in front of them."""

    replicas: int = Field(default=2, ge=1, le=256)
    profile: str = "llama-3.1-8b-h100"
    ranks: int = Field(default=1, ge=1, le=64)
    routing: Literal["round_robin", "least_waiting"] = "round_robin"
    engine: dict[str, int | float | str | bool] = {}
    keys: dict[str, str] = Field(default={}, description="API keys and their tenants; empty: no key is asked for")
    per_replica: dict[str, dict[str, int | float | str | bool]] = Field(
        default={}, description="engine settings by replica index"
    )


class Scenario(_Part):
    """One named incident."""

    name: str = ""
    what: str
    duration_seconds: float = Field(default=900.0, gt=0)
    fleet: Fleet = Fleet()
    load: list[Load] = []
    fault: list[Fault] = []
    truth: list[Truth] = []
    expect: Expect


def with_remedy(scenario: Scenario) -> Scenario:
    """The same scenario with its remedy applied from the start. Raises ScenarioError when it has none."""
    remedy = scenario.expect.remedy
    if remedy is None:
        raise ScenarioError(
            f"scenario {scenario.name} declares no remedy. Nothing in the fleet mends {scenario.expect.cause}"
        )
    fleet: dict[str, Any] = {"engine": {**scenario.fleet.engine, **remedy.engine}}
    if remedy.replicas is not None:
        fleet["replicas"] = remedy.replicas
    if remedy.routing is not None:
        fleet["routing"] = remedy.routing
    loads = [load for load in scenario.load if load.name not in remedy.drop_loads]
    if remedy.unpin_loads or remedy.routing is not None:
        loads = [load.model_copy(update={"replicas": None, "not_replicas": [], "rank": None}) for load in loads]
    return scenario.model_copy(
        update={
            "fleet": scenario.fleet.model_copy(update=fleet),
            "load": loads,
            "fault": [] if remedy.clear_faults else scenario.fault,
            "truth": [],
        }
    )


def named_replicas(scenario: Scenario) -> Iterator[tuple[str, int]]:
    """(place, index) of every replica that the scenario names."""
    parts: tuple[tuple[str, Sequence[Fault | Load | Truth]], ...] = (
        ("fault", scenario.fault),
        ("load", scenario.load),
        ("truth", scenario.truth),
    )
    for part, entries in parts:
        for number, entry in enumerate(entries):
            for index in entry.replicas or ():
                yield f"{part}.{number}.replicas", index
    for number, load in enumerate(scenario.load):
        for index in load.not_replicas:
            yield f"load.{number}.not_replicas", index
    for key in scenario.fleet.per_replica:
        if key.isdigit():
            yield "fleet.per_replica", int(key)


def scenario_names() -> list[str]:
    """The bundled scenarios."""
    folder = files("sim_backend") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(name: str) -> Scenario:
    """A scenario by name (bundled) or by path to a TOML file. Raises ScenarioError."""
    path = Path(name)
    try:
        if path.suffix == ".toml":
            text, known = path.read_text("utf-8"), path.stem
        elif name in scenario_names():
            text, known = (files("sim_backend") / "scenarios" / f"{name}.toml").read_text("utf-8"), name
        else:
            raise ScenarioError(
                f"no scenario {name!r}. Choose one of: {', '.join(scenario_names())}, or give a .toml file"
            )
        return parse_scenario(known, tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"scenario {name}: {error}. Check the path") from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"scenario {name}: {error}") from error


def parse_scenario(name: str, data: dict[str, Any]) -> Scenario:
    """Validate; a fault in the file is named with its place. Raises ScenarioError."""
    try:
        scenario = Scenario(**{**data, "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ScenarioError(f"scenario {name}, {place}: {first['msg']}") from error
    for place, index in named_replicas(scenario):
        if not 0 <= index < scenario.fleet.replicas:
            raise ScenarioError(
                f"scenario {name}, {place}: there is no replica {index} of {scenario.fleet.replicas}. They are counted from 0"
            )
    return scenario
