"""One fleet as different scrapers and gateways would show it: the same figures, the same judgement, whatever the disguise."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from collectors.fleet import fleet_picture
from collectors.model import Samples, Window
from collectors.observations import observe
from collectors.settings import Settings
from runbooks.diagnosis import judge
from tests.collectors.fleet_data import START_MS, PretendReplica, embedded, read_recording
from tests.shared_data import shared

Recording = list[Samples]
Change = Callable[[dict[str, str]], dict[str, str]]


def relabelled(recording: Recording, change: Change, late_ms: int = 0) -> Recording:
    return [Samples(change(dict(s.labels)), s.times_ms + late_ms, s.values) for s in recording]


def prefixed(prefix: str, instance: str = "") -> Callable[[Recording], Recording]:
    def change(labels: dict[str, str]) -> dict[str, str]:
        name = labels["__name__"]
        if name.startswith("vllm:") and labels["instance"].startswith(instance):
            labels["__name__"] = prefix + name.removeprefix("vllm:")
        return labels

    return lambda recording: relabelled(recording, change)


def ha_pair(recording: Recording) -> Recording:
    first, second = (lambda labels, which=which: {**labels, "prometheus_replica": which} for which in "ab")
    return relabelled(recording, first) + relabelled(recording, second, 1300)


def late_ha_pair(recording: Recording) -> Recording:
    """The second scraper of the pair was started three minutes ago."""
    since = max(int(s.times_ms[-1]) for s in recording) - 180_000
    late = [
        Samples({**s.labels, "prometheus": "mon/b"}, s.times_ms[s.times_ms > since], s.values[s.times_ms > since])
        for s in recording
    ]
    return relabelled(recording, lambda labels: {**labels, "prometheus": "mon/a"}) + [
        s for s in late if len(s.times_ms)
    ]


def two_jobs(recording: Recording) -> Recording:
    """A pod monitor finds what a static list scrapes too, and adds what Kubernetes knows."""
    more = {"job": "podmonitor/llm/vllm", "namespace": "llm", "container": "vllm"}
    return recording + relabelled(recording, lambda labels: {**labels, **more, "pod": "p-" + labels["instance"]}, 900)


def without_start_times(recording: Recording) -> Recording:
    return [s for s in recording if s.labels["__name__"] != "process_start_time_seconds"]


def router(recording: Recording, names: str = "vllm:num_requests_", job: str = "router") -> Recording:
    """A router in front that repeats metrics of its backends under a label of its own."""
    up = next(s for s in recording if s.labels["__name__"] == "up")
    place = {"job": job, "instance": "router:8001"}
    echoes = [
        Samples({**s.labels, **place, "server": f"http://{s.labels['instance']}"}, s.times_ms + 300, s.values)
        for s in recording
        if s.labels["__name__"].startswith(names)
    ]
    return [*recording, *echoes, Samples({"__name__": "up", **place}, up.times_ms + 300, up.values * 0 + 1)]


def only_the_router(recording: Recording) -> Recording:
    known = {id(s) for s in recording}
    return [s for s in router(recording, "vllm:") if id(s) not in known]


def in_kubernetes(recording: Recording) -> Recording:
    def change(labels: dict[str, str]) -> dict[str, str]:
        number = labels["instance"].split(":")[0].rpartition("-")[2]
        pod = {"namespace": "llm", "pod": f"vllm-{number}", "node": f"n{number}", "endpoint": "http", "service": "vllm"}
        return {**labels, **pod, "instance": f"10.1.0.{number}:8000"}

    return relabelled(recording, change)


DISGUISES: dict[str, Callable[[Recording], Recording]] = {
    "ray": prefixed("ray_vllm_"),
    "ray with a colon": prefixed("ray_vllm:"),
    "underscore": prefixed("vllm_"),
    "kserve beside plain": prefixed("kserve_vllm:", "vllm-0"),
    "kserve beside ray": lambda r: prefixed("kserve_vllm:", "vllm-0")(prefixed("ray_vllm_", "vllm-1")(r)),
    "ha pair": ha_pair,
    "ha pair, one late": late_ha_pair,
    "two jobs": two_jobs,
    "two jobs, ha pair": lambda r: ha_pair(two_jobs(r)),
    "no start times": without_start_times,
    "no start times, ha pair": lambda r: ha_pair(without_start_times(r)),
    "no start times, two jobs": lambda r: two_jobs(without_start_times(r)),
    "router": router,
    "router of the same job": lambda r: router(r, job="vllm"),
    "router that repeats all": lambda r: router(r, "vllm:"),
    "router, ray": lambda r: prefixed("ray_vllm_")(router(r)),
    "router, ha pair": lambda r: ha_pair(router(r, "vllm:")),
    "only the router": only_the_router,
    "kubernetes": in_kubernetes,
    "kubernetes, router, ha pair": lambda r: ha_pair(router(in_kubernetes(r))),
}
EXPECTED_LAWS = {"scraped_once"}
"""What may be broken: that a process is scraped twice."""


@lru_cache(maxsize=4)
def recorded(name: str) -> tuple[Recording, int]:
    samples, _, end_ms = read_recording(shared("cases", "queue") / f"{name}.json.gz")
    return samples, end_ms


def seen(recording: Recording, at_ms: int) -> tuple[dict[str, Any], set[str], dict[str, Any]]:
    """(figures of the fleet, broken laws, the headline)."""
    source, settings = embedded(recording, at_ms), Settings()
    picture = fleet_picture(source, Window(at_ms - 300_000, at_ms, 5000), settings)
    totals = picture.totals
    figures = {
        name: getattr(totals, name).value
        for name in (
            "running",
            "waiting",
            "first_tokens",
            "generation_tokens",
            "prompt_tokens",
            "finished",
            "preemptions",
        )
    }
    answer = judge(observe(source, at_ms, settings), settings).to_json()
    broken = {law["id"] for law in answer["laws"] if law["status"] == "broken"}
    headline = answer["verdicts"][0]
    told = {
        "cause": headline["cause"],
        "confidence": headline["confidence"],
        "places": len(headline["where"]["replicas"]),
    }
    return figures | {"replicas": len(picture.replicas), "ranks": len(answer["replicas"])}, broken, told


@pytest.mark.parametrize("name", ["healthy_steady_two_replicas", "rank_imbalance_dp4", "seat_limited_16"])
@pytest.mark.parametrize("disguise", sorted(DISGUISES))
def test_a_disguise_changes_neither_figures_nor_judgement(name: str, disguise: str) -> None:
    recording, end_ms = recorded(name)
    plain, _, headline = plainly(name)
    figures, broken, told = seen(DISGUISES[disguise](recording), end_ms)
    assert figures == pytest.approx(plain, rel=0.1)  # another scraper reads at other moments
    assert told == headline
    assert broken <= EXPECTED_LAWS | plainly(name)[1]
    assert ("scraped_once" in broken) == any(word in disguise for word in ("ha pair", "two jobs"))


@lru_cache(maxsize=4)
def plainly(name: str) -> tuple[dict[str, Any], set[str], dict[str, Any]]:
    return seen(*recorded(name))


def test_the_same_addresses_in_two_clusters_are_two_fleets_also_behind_ha_pairs() -> None:
    recording, end_ms = recorded("healthy_steady_two_replicas")
    west = relabelled(recording, lambda labels: {**labels, "cluster": "west"})
    east = [
        Samples({**s.labels, "cluster": "east"}, s.times_ms + 800, s.values - (900.0 if s.labels["__name__"].startswith("process_start") else 0.0))
        for s in recording
    ]  # fmt: skip
    plain, _, headline = plainly("healthy_steady_two_replicas")
    for both in (west + east, ha_pair(west + east)):
        figures, broken, told = seen(both, end_ms)
        assert figures == pytest.approx({name: 2 * value for name, value in plain.items()}, rel=0.05)
        assert told["cause"] == headline["cause"]
        assert broken <= EXPECTED_LAWS


def test_a_rollout_of_many_versions_in_one_job_misses_nothing_and_names_each_by_its_own() -> None:
    """What a newer peer exports is not missing on an older replica, and the other way round."""
    at_ms = START_MS + 1_200_000
    fleet = [
        PretendReplica("a:1", version="0.6.6"),
        PretendReplica("b:1", version="0.8.5"),
        PretendReplica("c:1", version="0.11.0", ranks=("0", "1")),
        PretendReplica("d:1", version="0.16.0"),
        PretendReplica("e:1", version="0.32.0", prefix="ray_vllm_"),
        PretendReplica("f:1", version="0.32.0", prefix="kserve_vllm:", up_until=900),
    ]
    source = embedded([series for replica in fleet for series in replica.samples()], at_ms)
    picture = fleet_picture(source, Window(at_ms - 300_000, at_ms, 5000), Settings())
    assert {row.key[0] if isinstance(row.key, tuple) else row.key: row.engine_text for row in picture.replicas} == {
        "a:1": "vLLM 0.6.6 to 0.8.4",
        "b:1": "vLLM 0.8.5",
        "c:1": "vLLM 0.11",
        "d:1": "vLLM 0.16 to 0.19",
        "e:1": "vLLM 0.32 or newer",
        "f:1": "",
    }
    laws = judge(observe(source, at_ms, Settings()), Settings()).to_json()["laws"]
    statuses = {
        (replica["instance"], replica["engine"]): law["status"]
        for law in laws
        if law["id"] == "always_exported_is_there"
        for replica in law["where"]["replicas"]
    }
    down = {place for place in statuses if place[0] == "f:1"}
    assert {statuses[place] for place in statuses.keys() - down} == {"kept"}
    assert len(statuses.keys() - down) == 6
    assert {statuses[place] for place in down} <= {"unknown", "kept"}
