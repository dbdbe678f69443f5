"""The simulator's own face, on one loopback port: what runs, what is wrong, and the handles to change it. Plain JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sim_backend.faults import CAUSE_OF, MOMENTARY, SAYS, SERVING
from sim_backend.kv.paged import fork_facts
from sim_backend.kv.paging import paged, paging_facts, reserved
from sim_backend.live import LiveFleet
from sim_backend.scenario import Fault, FaultKind, Truth

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
MAX_DIAL = 20.0
REPEATABLE: frozenset[FaultKind] = MOMENTARY | {"crash"}
"""Faults that begin at one instant, and may do so again while they are in the books."""


def _same(one: Fault, other: Fault) -> bool:
    """The same fault at the same place, whenever it begins and ends."""
    times = {"start_seconds", "stop_seconds"}
    return one.model_dump(exclude=times) == other.model_dump(exclude=times)


class DialOrder(BaseModel):
    """`POST /load {"dial": 1.5}`: multiply every stream that obeys."""

    model_config = ConfigDict(extra="forbid")
    dial: float = Field(ge=0, le=MAX_DIAL, allow_inf_nan=False)


class FaultOrder(BaseModel):
    """`POST /faults {"kind": ..., "replicas": [0], "seconds": 60, ...}`: begin now; without `seconds` until cleared."""

    model_config = ConfigDict(extra="forbid")
    kind: FaultKind
    replicas: list[int] | None = None
    rank: int | None = None
    seconds: float | None = Field(default=None, gt=0)
    factor: float = Field(default=3.0, gt=0, le=1000)
    restart_after_seconds: float | None = Field(default=None, ge=0)
    warm_up_seconds: float = Field(default=0.0, ge=0)
    metric: str = ""
    ratio: float = Field(default=0.5, ge=0, le=1)


class Control:
    """State and orders of one live fleet."""

    def __init__(self, live: LiveFleet) -> None:
        self._live = live
        self._numbered: dict[int, tuple[Fault, Truth]] = {}
        self._next = 1

    def state(self) -> dict[str, Any]:
        """Everything the Simulator page shows."""
        now = self._live.catch_up()
        cluster = self._live.cluster
        self._numbered = {key: pair for key, pair in self._numbered.items() if pair[0] in cluster.active}
        return {
            "schema": 1,
            "scenario": cluster.scenario.name,
            "what": cluster.scenario.what,
            "expect": cluster.scenario.expect.model_dump(),
            "running_seconds": now,
            "seed": cluster.seed,
            "dial": self._live.dial,
            "profile": cluster.replicas[0].profile.title,
            "replicas": [self._replica(index) for index in range(len(cluster.replicas))],
            "faults": [{"id": key, **fault.model_dump()} for key, (fault, _) in self._numbered.items()],
            "scenario_faults": [fault.model_dump() for fault in cluster.active if not self._is_ordered(fault)],
            "available_faults": [
                {
                    "kind": kind,
                    "says": says,
                    "cause": CAUSE_OF[kind],
                    "on": "serving" if kind in SERVING else "metrics",
                    "momentary": kind in MOMENTARY,
                }
                for kind, says in SAYS.items()
            ],
            "ground_truth": cluster.ground_truth()["incidents"],
        }

    def _is_ordered(self, fault: Fault) -> bool:
        return any(ordered is fault for ordered, _ in self._numbered.values())

    def _replica(self, index: int) -> dict[str, Any]:
        replica = self._live.cluster.replicas[index]
        return {
            "index": index,
            "instance": replica.instance,
            "state": replica.state,
            "in_flight": len(replica.in_flight()),
            "engines": [
                {
                    "engine": str(rank),
                    "running": len(engine.scheduler.running),
                    "waiting": len(engine.scheduler.waiting),
                    "kv_cache_usage_ratio": engine.scheduler.pool.usage_ratio,
                    "halted": engine.halted,
                    "slowdown": replica.costs[rank].slowdown,
                }
                for rank, engine in enumerate(replica.engines)
            ],
        }

    def set_dial(self, order: DialOrder) -> dict[str, Any]:
        self._live.turn_dial(order.dial)
        return {"dial": order.dial}

    def inject(self, order: FaultOrder) -> tuple[dict[str, Any], bool]:
        """Begin a fault now; its truth joins the ground truth. The fault, and whether it is new.

        One that is on already at the same place is not begun on top of itself; what happens in a moment happens again.
        """
        cluster = self._live.cluster
        now = self._live.catch_up()
        for index in order.replicas or ():
            if not 0 <= index < len(cluster.replicas):
                raise ValueError(f"replicas: there is no replica {index} of {len(cluster.replicas)}")
        details = order.model_dump(exclude={"seconds"})
        stop = now if order.kind in MOMENTARY else None if order.seconds is None else now + order.seconds
        fault = Fault(**details, start_seconds=now, stop_seconds=stop)
        for known, (ordered, _) in list(self._numbered.items()):
            if ordered in cluster.active and _same(ordered, fault):
                if fault.kind not in REPEATABLE:
                    return {"id": known, **ordered.model_dump()}, False
                self.clear(known)
        truth = cluster.inject_with_truth(fault, now)
        number, self._next = self._next, self._next + 1
        self._numbered[number] = (fault, truth)
        self._live.poke()
        return {"id": number, **fault.model_dump()}, True

    def clear(self, number: int) -> bool:
        """End an ordered fault now; False when there is none of that number."""
        pair = self._numbered.pop(number, None)
        if pair is None:
            return False
        now = self._live.catch_up()
        self._live.cluster.clear(pair[0], now)
        self._live.poke()
        return True

    def block_table(self, index: int, rank: int, request_id: str | None) -> dict[str, Any] | None:
        """The block table of a running request (the longest one by default) with who shares each block; None when nothing runs there."""
        self._live.catch_up()
        replica = self._live.cluster.replicas[index]
        replica.engines[rank].settle()
        scheduler = replica.engines[rank].scheduler
        running = [request for request in scheduler.running if request_id in (None, request.id)]
        if not running:
            return None
        request = max(running, key=lambda candidate: (len(candidate.blocks), candidate.id))
        pool, size = scheduler.pool, scheduler.config.block_size
        blocks = [
            {
                "position": position,
                "block": block,
                "owners": pool.refs[block],
                "shared": pool.refs[block] > 1,
                "cached": pool.hash_of[block] is not None,
                "used_slots": max(0, min(size, request.computed - position * size)),
            }
            for position, block in enumerate(request.blocks)
        ]
        return {
            "request": request.id,
            "requests": [candidate.id for candidate in scheduler.running][:200],
            "block_size": size,
            "prompt_tokens": request.prompt_len,
            "known_tokens": request.num_tokens,
            "computed_tokens": request.computed,
            "cached_tokens_at_admission": request.num_cached_tokens,
            "wasted_slots": len(request.blocks) * size - request.computed,
            "blocks": blocks,
            "pool": {
                "usable_blocks": pool.usable_blocks,
                "free_blocks": pool.num_free,
                "evictable_cached_blocks": sum(1 for block in pool.free_order() if pool.hash_of[block] is not None),
            },
            "free_queue_head": pool.free_order()[:16],
            "paging": paging_facts(request.computed, size),
        }


def learn(tokens: int, block_size: int, low: int, high: int, reservation: int) -> dict[str, Any]:
    """The paging arithmetic for the Learn section: one request, and a population of lengths uniform on low..high. Raises ValueError."""
    if max(tokens, high) > 1_000_000 or block_size > 4096:
        raise ValueError("lengths up to 1,000,000 and blocks up to 4,096 slots can be shown")
    return {
        "request": paging_facts(tokens, block_size),
        "fork": fork_facts(tokens, block_size),
        "paged": asdict(paged(low, high, block_size)),
        "reserved": asdict(reserved(low, high, reservation)),
        "ratios": {
            "aggregate": "ratio of expectations: tokens held over slots taken, by all requests together",
            "mean_of_ratios": "mean over requests of each one's own ratio",
        },
    }


def control_app(live: LiveFleet) -> Starlette:
    """GET /state, POST /load, POST /faults, DELETE /faults/{id}, GET /ground_truth, GET /blocks?replica=0&engine=0[&request=ID],
    GET /paging?tokens=50&block_size=16&low=200&high=2000&reservation=4096, GET /startup_log?replica=0, GET /check."""
    control = Control(live)

    async def state(request: Request) -> Response:
        return JSONResponse(control.state())

    async def truth(request: Request) -> Response:
        live.catch_up()
        return JSONResponse(live.cluster.ground_truth())

    async def load(request: Request) -> Response:
        return JSONResponse(control.set_dial(DialOrder.model_validate(await _json(request))))

    async def inject(request: Request) -> Response:
        fault, is_new = control.inject(FaultOrder.model_validate(await _json(request)))
        return JSONResponse(fault, status_code=201 if is_new else 200)

    async def clear(request: Request) -> Response:
        if not control.clear(int(request.path_params["number"])):
            return JSONResponse({"error": "no such fault. GET /state lists the active ones"}, status_code=404)
        return Response(status_code=204)

    async def blocks(request: Request) -> Response:
        query = request.query_params
        index, rank = _number(query.get("replica", "0")), _number(query.get("engine", "0"))
        replicas = live.cluster.replicas
        if not 0 <= index < len(replicas) or not 0 <= rank < len(replicas[index].engines):
            return JSONResponse({"error": "no such replica or engine. GET /state lists them"}, status_code=404)
        table = control.block_table(index, rank, query.get("request"))
        if table is None:
            return JSONResponse({"error": "no such request is running there now"}, status_code=404)
        return JSONResponse(table)

    async def paging(request: Request) -> Response:
        query = request.query_params
        defaults = {"tokens": 50, "block_size": 16, "low": 200, "high": 2000, "reservation": 4096}
        return JSONResponse(learn(**{name: _number(query.get(name, str(value))) for name, value in defaults.items()}))

    async def log(request: Request) -> Response:
        index = _number(request.query_params.get("replica", "0"))
        if not 0 <= index < len(live.cluster.replicas):
            return JSONResponse({"error": "no such replica. GET /state lists them"}, status_code=404)
        return PlainTextResponse("\n".join(live.cluster.startup_log(index)) + "\n")

    async def check(request: Request) -> Response:
        """The books of every pool, table and queue, checked now."""
        live.catch_up()
        for replica in live.cluster.replicas:
            for engine in replica.engines:
                if replica.state == "up":
                    engine.settle()
                    engine.scheduler.check()
        return JSONResponse({"kept": True})

    async def wrong(request: Request, error: Exception) -> Response:
        text = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            text = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        return JSONResponse({"error": text}, status_code=400)

    routes = [
        Route("/state", state),
        Route("/ground_truth", truth),
        Route("/load", load, methods=["POST"]),
        Route("/faults", inject, methods=["POST"]),
        Route("/faults/{number:int}", clear, methods=["DELETE"]),
        Route("/blocks", blocks),
        Route("/paging", paging),
        Route("/startup_log", log),
        Route("/check", check),
    ]
    return Starlette(routes=routes, exception_handlers={ValueError: wrong, ValidationError: wrong})


async def _json(request: Request) -> Any:
    """The body; only JSON content is taken, so that a foreign web page cannot send orders without asking first."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise ValueError("the body must be application/json")
    return json.loads(await request.body())


def _number(text: str) -> int:
    value = float(text) if text else math.nan
    return int(value) if value == value and abs(value) < 1 << 31 else -1
