"""A walk asks every automatic step, never takes missing data for good news, and ends where the diagnosis does."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from collectors.model import Frame, Labels, MetricMeta, Samples, SourceInfo, Vector, Window
from collectors.observations import observe
from collectors.scope import ScopedSource
from collectors.settings import Settings
from collectors.source import SourceError, SourceUnreachable
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from runbooks.diagnosis import diagnose
from runbooks.engine import Answer, RunbookError, _addressed, verify, walk
from runbooks.findings import Walk
from runbooks.library import runbook_ids
from runbooks.predicates import Facts
from runbooks.verdicts import Place, Verdict, Where
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared, shared_files

SETTINGS = Settings()
FINDINGS = {"yes", "no", "inconclusive", "error", "needs_answer"}


def real(name: str) -> Path:
    return shared("recordings", "vllm-0.11.0-cpu", f"{name}.json.gz")


def instant(wrapper: dict, seconds: float) -> int:
    return round((float(wrapper["start"]) + seconds) * 1000)


def named(walked, step: str):
    return next(finding for finding in walked.findings if finding.step_id == step)


@pytest.mark.parametrize("runbook_id", runbook_ids())
def test_a_walk_where_no_sample_is_never_ends_healthy(runbook_id: str) -> None:
    empty = EmbeddedSource(Blocks(), name="empty", clock=lambda: 1_700_000_000_000)
    walked = walk(runbook_id, empty, 1_700_000_000_000, SETTINGS)
    assert walked.outcome.cause != "healthy", walked.outcome.says
    assert walked.where.scope == "fleet"
    assert " on  at " not in walked.to_text()


def test_an_empty_source_is_not_taken_for_a_server_without_statistics() -> None:
    empty = EmbeddedSource(Blocks(), name="empty", clock=lambda: 1_700_000_000_000)
    walked = walk("metrics_missing", empty, 1_700_000_000_000, SETTINGS)
    assert walked.outcome.id == "nothing"
    assert "restart" not in walked.to_text().lower()
    assert named(walked, "held").finding == "no"


def test_a_real_queue_is_walked_to_its_cause() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    at_ms = instant(wrapper, 93)
    walked = walk("waiting_growth", source, at_ms, SETTINGS)
    assert [place.instance for place in walked.where.places] == ["127.0.0.1:8000"]
    assert walked.outcome.cause in ("seat_limited", "overload")
    assert walked.outcome.cause == diagnose(source, at_ms, SETTINGS).verdicts[0].cause
    assert walked.outcome.confidence == "likely"
    assert walked.outcome.steps_led_to is None
    assert named(walked, "waiting").finding == "yes"
    assert named(walked, "stalled").finding == "no"
    assert named(walked, "kv").finding == "no"
    assert named(walked, "seats").finding == "yes"
    assert named(walked, "gateway").finding == "needs_answer"
    numbers = {number.name: number.value for number in named(walked, "waiting").numbers}
    assert numbers["waiting_requests"] > 100
    assert numbers["wait_seconds"] > 20
    assert walked.outcome.change
    assert walked.outcome.risk
    assert walked.outcome.verify


def test_the_healthy_neighbour_is_healthy() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    walked = walk("waiting_growth", source, instant(wrapper, 93), SETTINGS, instance="127.0.0.1:8001")
    assert (walked.outcome.cause, walked.outcome.id) == ("healthy", "quiet")
    assert named(walked, "waiting").finding == "no"


@pytest.mark.parametrize("name", ["a_steady", "j_chunked_long_prompts"])
@pytest.mark.parametrize("share", [0.4, 0.65, 0.9])
def test_quiet_recordings_stay_quiet_in_every_runbook_of_an_incident(name: str, share: float) -> None:
    source, wrapper = recorded(real(name))
    at_ms = instant(wrapper, (float(wrapper["end"]) - float(wrapper["start"])) * share)
    seen = observe(source, at_ms, SETTINGS)
    judged = diagnose(source, at_ms, SETTINGS, seen)
    for runbook_id in runbook_ids():
        walked = walk(runbook_id, source, at_ms, SETTINGS, observations=seen, diagnosis=judged)
        assert walked.outcome.cause in ("healthy", None), (runbook_id, walked.outcome)
        assert all(finding.finding != "error" for finding in walked.findings)


def test_the_json_is_the_documented_one() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    answer = walk("waiting_growth", source, instant(wrapper, 93), SETTINGS, instance="127.0.0.1:8000").to_json()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert set(answer) == {"schema", "runbook", "at", "where", "steps", "outcome"}
    assert answer["schema"] == 1
    assert answer["where"] == {"scope": "replica", "replicas": [{"instance": "127.0.0.1:8000", "engine": None}]}
    assert set(answer["outcome"]) == {"cause", "confidence"}
    ids = [step["id"] for step in answer["steps"]]
    for step in answer["steps"]:
        assert set(step) == {"id", "question", "finding", "numbers", "evidence", "next"}
        assert step["finding"] in FINDINGS
        assert step["next"] is None or ids.index(step["next"]) > ids.index(step["id"])
        for evidence in step["evidence"]:
            assert set(evidence) == {"promql", "kind"}
            source.instant(evidence["promql"], instant(wrapper, 93))  # what is shown can be asked as it stands
    assert 'instance="127.0.0.1:8000"' in answer["steps"][0]["evidence"][0]["promql"]


def test_shown_promql_gives_the_shown_number() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    at_ms = instant(wrapper, 93)
    walked = walk("waiting_growth", source, at_ms, SETTINGS, instance="127.0.0.1:8000")
    compared = 0
    for finding in walked.findings:
        for number in finding.numbers:
            if number.promql and number.value is not None:
                assert number.value in list(source.instant(number.promql, at_ms).values)
                compared += 1
    assert compared > 15


CASES = shared_files("cases", "queue", pattern="*.json.gz")


@cache
def case_walks(path: Path) -> list[tuple[str, Verdict, Walk]]:
    """Every verdict at the instants of a case with the walk of its runbook at its place."""
    source, _ = recorded(path)
    expected = json.loads(path.with_name(path.name.replace(".json.gz", ".expect.json")).read_text())
    found = []
    for label, at in expected["at"].items():
        at_ms = round(at * 1000)
        seen = observe(source, at_ms, SETTINGS)
        judged = diagnose(source, at_ms, SETTINGS, seen)
        for verdict in judged.verdicts:
            if verdict.runbook and verdict is next(v for v in judged.verdicts if v.runbook == verdict.runbook):
                place = verdict.where.places[0]
                engine = place.engine if verdict.where.scope == "rank" else None
                walked = walk(
                    verdict.runbook,
                    source,
                    at_ms,
                    SETTINGS,
                    place.instance,
                    engine,
                    observations=seen,
                    diagnosis=judged,
                )
                found.append((label, verdict, walked))
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name[:-8])
def test_walk_and_diagnose_name_the_same_cause(path: Path) -> None:
    for _, verdict, walked in case_walks(path):
        assert (walked.outcome.cause, walked.outcome.confidence) == (verdict.cause, verdict.confidence)
        assert all(finding.finding != "error" for finding in walked.findings)


def test_the_steps_alone_nearly_always_lead_where_the_diagnosis_is() -> None:
    walks = [walked for path in CASES for label, _, walked in case_walks(path) if label.startswith("during")]
    agree = [walked.outcome.steps_led_to is None for walked in walks]
    assert sum(agree) >= 0.9 * len(agree), f"{sum(agree)} of {len(agree)}"


def no_data() -> EmbeddedSource:
    return EmbeddedSource(Blocks(), name="empty", clock=lambda: 1_000_000)


@pytest.mark.parametrize("runbook_id", runbook_ids())
def test_without_data_nothing_is_said_to_be_well(runbook_id: str) -> None:
    walked = walk(runbook_id, no_data(), 1_000_000, SETTINGS)
    for finding in walked.findings:
        if finding.kind == "automatic":
            assert finding.finding in ("inconclusive", "no"), (finding.step_id, finding.finding)
            if any(number.promql for number in finding.numbers):
                assert not (finding.finding == "no" and _reads_numbers_only(runbook_id, finding.step_id))


def _reads_numbers_only(runbook_id: str, step_id: str) -> bool:
    """Whether a step's judgement is about numbers alone, presence aside: those must be inconclusive without data."""
    from runbooks.library import load

    predicate = load(runbook_id).step_of(step_id).predicate
    return predicate is not None and predicate.name in ("above", "below", "at_least")


def test_no_judgement_of_any_step_is_yes_about_nothing() -> None:
    from runbooks.library import library

    for runbook in library().values():
        for step in runbook.steps:
            if step.predicate is not None:
                assert step.predicate.judge(Facts(numbers={})) != "yes", (runbook.id, step.id)


@pytest.mark.parametrize(
    "hostile",
    ['"} or vector(1) #', "a{b}", "line\nbreak", "x" * 10_000, "<script>alert(1)</script>", "`", "'", "\\", "", "\0"],
)
def test_hostile_places_are_one_line_with_what_there_is(hostile: str) -> None:
    source, wrapper = recorded(real("a_steady"))
    with pytest.raises(RunbookError) as caught:
        walk("waiting_growth", source, instant(wrapper, 90), SETTINGS, instance=hostile)
    assert "127.0.0.1:8000" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.raises(RunbookError, match="no rank"):
        walk("waiting_growth", source, instant(wrapper, 90), SETTINGS, instance="127.0.0.1:8000", engine=hostile)


@pytest.mark.parametrize(
    "name", ['in"stance', "a{b}", "two\nlines", "y" * 10_000, "<b>x</b>", "back\\slash", "tick`", "$w ${up}", "spa  ce"]
)
def test_hostile_label_values_are_walked_like_any_other(name: str) -> None:
    plain, wrapper = recorded(real("b_waiting_growth"))
    at_ms = instant(wrapper, 93)
    blocks = Blocks()
    blocks.load(
        Samples(
            {**series.labels, "instance": name if series.labels["instance"].endswith("8000") else "other"},
            series.times_ms,
            series.values,
        )
        for series in plain.samples('{__name__=~".+"}', at_ms - 120_000, at_ms)
    )
    source = EmbeddedSource(blocks, name="hostile", clock=lambda: at_ms)
    walked = walk("waiting_growth", source, at_ms, SETTINGS, instance=name)
    assert walked.outcome.cause in ("seat_limited", "overload")
    assert all(finding.finding != "error" for finding in walked.findings)
    assert {n.value for n in named(walked, "waiting").numbers if n.name == "waiting_requests"} == {261.0}
    for line in walked.to_text().splitlines():
        assert line.isprintable()
        assert len(line) <= 600


def relabelled(
    change: Callable[[dict[str, str]], dict[str, str] | None], *, twice: bool = False
) -> tuple[EmbeddedSource, int]:
    """The queue recording with other labels; `twice` keeps the original beside it."""
    plain, wrapper = recorded(real("b_waiting_growth"))
    at_ms = instant(wrapper, 93)
    found = plain.samples('{__name__=~".+"}', at_ms - 120_000, at_ms)
    changed = [(change(dict(series.labels)), series) for series in found]

    def shift(labels: dict[str, str]) -> float:
        """Another cluster's process has another start; both of the recording began within the same second."""
        return -500.0 if "cluster" in labels and labels["__name__"] == "process_start_time_seconds" else 0.0

    blocks = Blocks()
    blocks.load(
        [Samples(labels, s.times_ms, s.values + shift(labels)) for labels, s in changed if labels is not None]
        + (found if twice else [])
    )
    return EmbeddedSource(blocks, name="changed", clock=lambda: at_ms), at_ms


@pytest.mark.parametrize("prefix", ["ray_vllm_", "ray_vllm:", "kserve_vllm:", "vllm_"])
def test_other_spellings_of_the_metrics_are_walked_alike(prefix: str) -> None:
    source, at_ms = relabelled(lambda labels: {**labels, "__name__": labels["__name__"].replace("vllm:", prefix, 1)})
    walked = walk("waiting_growth", source, at_ms, SETTINGS)
    assert walked.outcome.cause in ("seat_limited", "overload")
    assert [place.instance for place in walked.where.places] == ["127.0.0.1:8000"]
    assert f"{prefix}num_requests_waiting{{" in named(walked, "waiting").numbers[0].promql
    assert named(walked, "waiting").numbers[0].value == 261.0


def test_one_address_in_two_clusters_is_two_replicas() -> None:
    def moved(labels: dict[str, str]) -> dict[str, str] | None:
        return {**labels, "cluster": "b", "instance": "127.0.0.1:8000"} if labels["instance"].endswith("8001") else None

    source, at_ms = relabelled(moved, twice=True)
    seen = observe(source, at_ms, SETTINGS)
    names = [replica.instance for replica in seen.replicas if replica.instance.startswith("127.0.0.1:8000")]
    assert len(names) == 2
    waiting = {}
    for name in names:
        walked = walk("waiting_growth", source, at_ms, SETTINGS, instance=name, observations=seen)
        (answer,) = source.instant(named(walked, "waiting").numbers[0].promql, at_ms).values  # one series each
        waiting["cluster=b" in name] = float(answer)
    assert waiting == {False: 261.0, True: 0.0}


class Failing:
    """A source whose instant queries fail while its samples are there."""

    def __init__(self, inner: EmbeddedSource, fails: str) -> None:
        self.inner, self.fails = inner, fails

    def instant(self, promql: str, at_ms: int) -> Vector:
        if self.fails in promql:
            raise SourceUnreachable("connection refused", "Look whether the server runs")
        return self.inner.instant(promql, at_ms)

    def info(self) -> SourceInfo:
        return self.inner.info()

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def extent_ms(self) -> tuple[int, int] | None:
        return self.inner.extent_ms()

    def range(self, promql: str, window: Window) -> Frame:
        return self.inner.range(promql, window)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        return self.inner.samples(selector, start_ms, end_ms)

    def series(self, matchers: list[str], start_ms: int, end_ms: int) -> list[Labels]:
        return self.inner.series(matchers, start_ms, end_ms)

    def metadata(self) -> dict[str, MetricMeta]:
        return dict(self.inner.metadata())


def test_one_failed_query_is_that_steps_error_and_no_other() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    walked = walk("waiting_growth", Failing(source, "http_requests_total"), instant(wrapper, 93), SETTINGS)
    assert named(walked, "rejected").finding == "error"
    assert "connection refused" in named(walked, "rejected").says
    assert [f.step_id for f in walked.findings if f.finding == "error"] == ["rejected"]
    assert walked.outcome.cause in ("seat_limited", "overload")


def test_a_source_that_cannot_be_asked_at_all_says_so() -> None:
    class Down(Failing):
        def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
            raise SourceUnreachable("connection refused")

    with pytest.raises(SourceError, match="connection refused"):
        walk("waiting_growth", Down(no_data(), ""), 1_000_000, SETTINGS)


def test_the_scope_is_in_the_promql_that_is_shown() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    scoped = ScopedSource(source, {"job": "vllm"})
    walked = walk("waiting_growth", scoped, instant(wrapper, 93), SETTINGS)
    assert all(
        'job="vllm"' in number.promql for finding in walked.findings for number in finding.numbers if number.promql
    )
    assert walked.outcome.cause in ("seat_limited", "overload")


def test_what_a_person_answers_changes_the_path() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    at_ms = instant(wrapper, 93)
    walked = walk("waiting_growth", source, at_ms, SETTINGS, answers={"gateway": Answer("yes")})
    assert (walked.outcome.id, walked.outcome.cause, walked.outcome.confidence) == ("unwanted", "overload", "possible")
    skipped = walk("waiting_growth", source, at_ms, SETTINGS, answers={"gateway": Answer("skip")})
    assert named(skipped, "gateway").finding == "inconclusive"
    assert skipped.outcome.id == "seats"


OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 960.00 MiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 300.00 MiB is free. Including non-PyTorch memory, this process has 23.30 GiB memory in use. Of the allocated "
    "memory 20.80 GiB is allocated by PyTorch, and 2.10 GiB is reserved by PyTorch but unallocated"
)


def test_a_pasted_log_answers_every_step_that_reads_one() -> None:
    source, wrapper = recorded(real("a_steady"))
    at_ms = instant(wrapper, 90)
    log = f'(EngineCore_DP0 pid=7) ERROR 11-30 10:00:00 [core.py:700] EngineCore encountered a fatal error.\n  File "gpu_model_runner.py", line 1, in execute_model\n{OUT_OF_MEMORY}'
    walked = walk("out_of_memory_run", source, at_ms, SETTINGS, answers={"log": Answer(log=log)})
    assert [named(walked, step).finding for step in ("log", "others", "fragments")] == ["yes", "no", "yes"]
    assert walked.outcome.id == "fragmented"
    assert any(number.name.endswith("_gib") for number in named(walked, "log").numbers)
    unread = walk("out_of_memory_run", source, at_ms, SETTINGS)
    assert named(unread, "log").finding == "needs_answer"
    assert unread.outcome.confidence == "undetermined"
    hostile = walk(
        "out_of_memory_run", source, at_ms, SETTINGS, answers={"log": Answer(log="<script>\x1b[31m\0" * 500)}
    )
    assert hostile.outcome.id in ("unknown", "other")


def test_a_change_is_verified_by_its_own_check() -> None:
    source, wrapper = recorded(real("b_waiting_growth"))
    during = verify("waiting_growth", "drained", source, instant(wrapper, 93), SETTINGS, instance="127.0.0.1:8000")
    after = verify("waiting_growth", "drained", source, instant(wrapper, 183), SETTINGS, instance="127.0.0.1:8000")
    assert (during.finding, after.finding) == ("no", "yes")
    with pytest.raises(RunbookError, match="no check 'nope'"):
        verify("waiting_growth", "nope", source, instant(wrapper, 93), SETTINGS)


@pytest.mark.parametrize(
    ("names", "address"),
    [
        (["vllm-0:8000"], "vllm-0:8000"),
        (["10.0.0.7:8000", "10.0.0.7:8000"], "10.0.0.7:8000"),
        (["a:1", "b:1"], "REPLICA"),
        (["prod/vllm-0"], "REPLICA"),
        (["x:1; reboot"], "REPLICA"),
        (["$(reboot):1"], "REPLICA"),
        ([], "REPLICA"),
    ],
)
def test_a_command_names_the_replica_that_is_walked(names: list[str], address: str) -> None:
    where = Where("rank", tuple(Place(name, str(rank)) for rank, name in enumerate(names)))
    given = ("$ curl http://REPLICA/health", "REPLICA is a word here")
    assert _addressed(given, where) == (f"$ curl http://{address}/health", "REPLICA is a word here")
