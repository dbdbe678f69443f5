"""Each real engine once: data parallelism, doubles, routers, repeated addresses, replicas that come and go."""

from collectors.dialect import load_dialect
from collectors.identity import Rank, fleet_tree, vanished_ranks
from collectors.scraped import Series, Target
from collectors.settings import Identity, Settings

VLLM = load_dialect()
FAMILIES = [
    name for name, metric in VLLM.metrics("0.11.0", hidden=False).items() if metric.always and name.startswith("vllm:")
]


def engine(instance, *, rank="0", model="chat", job="vllm", family="vllm:num_requests_running", value=1.0, **more):
    labels = {"__name__": family, "instance": instance, "job": job, "model_name": model, "engine": rank, **more}
    return Series(family, "vllm:", labels, value)


def replica(instance, *, ranks=("0",), **more):
    return [engine(instance, rank=rank, family=family, **more) for rank in ranks for family in FAMILIES]


def target(instance, up=1.0, started=1000.0, job="vllm", sampled=2000.0, **more):
    return Target({"instance": instance, "job": job, **more}, up, started, sampled)


def tree(series, targets, settings=None, known_keys=()):
    return fleet_tree(series, targets, settings or Settings(), known_keys=known_keys, dialect=VLLM)


def ids(found):
    return [finding.id for finding in found.findings]


def test_replicas_and_ranks_make_a_tree():
    found = tree(
        [*replica("a:8000", ranks=("0", "1")), *replica("b:8000", model="code")], [target("a:8000"), target("b:8000")]
    )
    assert [r.text for r in found.replicas] == ["a:8000", "b:8000"]
    assert found.replicas[0].ranks == (Rank("0", "chat"), Rank("1", "chat"))
    assert found.replicas[0].up
    assert found.engine_text == "vLLM 0.11"
    assert list(found.branches()["vllm"]) == ["chat", "code"]
    assert not found.findings
    assert not found.duplicated
    assert found.exclude == ()


def test_an_ha_pair_counts_each_process_once():
    series = [s for scraper in ("0", "1") for s in replica("a:8000", prometheus_replica=scraper)]
    found = tree(series, [target("a:8000", prometheus_replica=scraper) for scraper in ("0", "1")])
    assert len(found.replicas) == 1
    assert ids(found) == ["counted_twice"]
    assert found.duplicated
    assert "prometheus_replica" in found.findings[0].text


def test_two_jobs_on_one_process_are_one_replica_even_without_a_start_time():
    series = [*replica("a:8000", job="vllm"), *replica("a:8000", job="pods")]
    found = tree(series, [target("a:8000", started=None), target("a:8000", job="pods", started=None)])
    assert (len(found.replicas), ids(found)) == (1, ["counted_twice"])


def test_an_address_that_repeats_across_clusters_is_two_replicas():
    series = [*replica("10.0.0.1:8000", cluster="east"), *replica("10.0.0.1:8000", cluster="west")]
    targets = [
        target("10.0.0.1:8000", cluster="east", started=1000.0),
        target("10.0.0.1:8000", cluster="west", started=5000.0),
    ]
    found = tree(series, targets)
    assert found.replica_labels == ("instance", "cluster")
    assert [r.text for r in found.replicas] == ["10.0.0.1:8000/east", "10.0.0.1:8000/west"]
    assert ids(found) == ["identity_ambiguous"]
    assert not found.duplicated


def test_a_router_that_repeats_its_backends_is_left_out():
    router = [engine("router:80", job="router", server=f"http://{backend}:8000") for backend in ("a", "b")]
    series = [*replica("a:8000"), *replica("b:8000"), *router]
    found = tree(series, [target("a:8000"), target("b:8000"), target("router:80", job="router")])
    assert [r.text for r in found.replicas] == ["a:8000", "b:8000"]
    assert found.exclude == ('server=""',)
    assert "router_echo" in ids(found)


def test_a_router_before_one_backend_is_left_out_too_and_by_address_when_the_label_is_common():
    series = [*replica("a:8000", server="rack-1"), engine("router:80", server="a:8000")]
    found = tree(series, [target("a:8000"), target("router:80")])
    assert [r.text for r in found.replicas] == ["a:8000"]
    assert found.exclude == ('instance!~"router:80"',)


def test_backends_seen_only_through_a_router_are_the_replicas():
    series = [engine("router:80", server=f"http://{backend}:8000") for backend in ("a", "b")]
    found = tree(series, [target("router:80")])
    assert [r.text for r in found.replicas] == ["router:80/http://a:8000", "router:80/http://b:8000"]


def test_several_api_servers_are_named_and_not_doubled():
    series = [*replica("a:8000"), *[engine("a:8000", family="vllm:kv_cache_usage_perc", pid=pid) for pid in ("7", "8")]]
    found = tree(series, [target("a:8000", started=None)])
    assert len(found.replicas) == 1
    assert ids(found) == ["several_api_servers"]


def test_a_hole_in_the_ranks_is_a_finding_and_so_is_one_that_left():
    found = tree(replica("a:8000", ranks=("0", "1", "3")), [target("a:8000")])
    assert ids(found) == ["rank_missing"]
    assert "Rank 2" in found.findings[0].text
    assert vanished_ranks(found.replicas[0], [Rank("0", "chat"), Rank("4", "chat")]) == [Rank("4", "chat")]


def test_a_replica_that_is_down_or_gone_is_still_named():
    targets = [target("a:8000"), target("b:8000", up=0.0, started=None, sampled=None)]
    found = tree(replica("a:8000"), targets, known_keys=[("a:8000",), ("c:8000",)])
    states = {r.text: r.up for r in found.replicas}
    assert states == {"a:8000": True, "b:8000": False, "c:8000": None}


def test_other_targets_of_a_mixed_job_are_no_replicas():
    others = [target(f"app-{i}:9000") for i in range(5)]
    found = tree(replica("a:8000"), [target("a:8000"), *others, target("app-9:9000", up=0.0)])
    assert [r.text for r in found.replicas] == ["a:8000"]


def test_a_target_without_engine_metrics_in_an_engine_job_is_named():
    found = tree([*replica("a:8000"), *replica("b:8000")], [target("a:8000"), target("b:8000"), target("c:8000")])
    assert ids(found) == ["no_engine_metrics"]
    assert found.findings[0].where == ("c:8000",)


def test_kubernetes_identity_survives_a_new_address():
    settings = Settings(identity=Identity(replica=("namespace", "pod")))
    series = replica("10.0.0.9:8000", namespace="prod", pod="vllm-2")
    found = tree(series, [target("10.0.0.9:8000", namespace="prod", pod="vllm-2")], settings)
    assert found.replicas[0].text == "prod/vllm-2"
    assert found.rank_label == "engine"


def test_mixed_versions_resolve_each_by_its_own():
    new = [n for n, m in VLLM.metrics("0.32.0", hidden=False).items() if m.always and n.startswith("vllm:")]
    series = [*replica("a:8000"), *[engine("b:8000", family=family) for family in new]]
    found = tree(series, [target("a:8000"), target("b:8000")])
    assert found.replicas[0].engine.names("admission_rejections") == ()
    assert found.replicas[1].engine.names("admission_rejections") == ("vllm:admission_rejections_total",)
    assert found.engine_text == "vLLM 0.11 (1), vLLM 0.32 or newer (1)"
