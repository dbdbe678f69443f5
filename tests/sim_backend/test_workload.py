"""Streams of calls: rates, lengths, families, chats, patience; and seeds."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sim_backend.scenario import Lengths, Load, ScenarioError
from sim_backend.workload import Call, Stream, draw_length, rate_at


def load(**parts: Any) -> Load:
    return Load(**parts)


def calls(stream: Stream, until: float) -> list[Call]:
    made = []
    while stream.peek() <= until:
        made.append(stream.pop())
    return made


def test_poisson_arrivals_have_their_rate_and_a_gap_variation_of_one() -> None:
    made = calls(Stream(0, load(arrivals={"rate": 20}), 1), 500)
    gaps = [b.at - a.at for a, b in zip(made, made[1:], strict=False)]
    assert len(made) == pytest.approx(10_000, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.05)


def test_gamma_arrivals_come_in_bursts() -> None:
    made = calls(Stream(0, load(arrivals={"kind": "gamma", "rate": 20, "cv": 3}), 1), 1000)
    gaps = [b.at - a.at for a, b in zip(made, made[1:], strict=False)]
    assert len(made) == pytest.approx(20_000, rel=0.1)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(3, rel=0.15)


def test_ramps_steps_and_days_follow_their_rate() -> None:
    ramp = load(arrivals={"kind": "ramp", "rate": 0, "rate_to": 20, "period_seconds": 100})
    made = calls(Stream(0, ramp, 1), 100)
    assert sum(1 for call in made if call.at < 50) == pytest.approx(250, rel=0.25)
    assert len(made) == pytest.approx(1000, rel=0.1)
    steps = load(arrivals={"kind": "steps", "steps": [[10, 0], [10, 30]]})
    made = calls(Stream(0, steps, 1), 40)
    assert all(call.at % 20 >= 10 for call in made)
    assert len(made) == pytest.approx(600, rel=0.15)
    day = load(arrivals={"kind": "diurnal", "rate": 10, "amplitude": 1, "period_seconds": 100}).arrivals
    assert rate_at(day, 0)[0] == pytest.approx(0)
    assert rate_at(day, 50)[0] == pytest.approx(20)


def test_the_dial_multiplies_from_now_on() -> None:
    stream = Stream(0, load(arrivals={"rate": 10}), 1)
    calls(stream, 100)
    stream.turn_dial(3.0, 100)
    assert len(calls(stream, 200)) == pytest.approx(3000 / 1, rel=0.1)
    stream.turn_dial(0.0, 200)
    assert stream.peek() == math.inf
    stream.turn_dial(1.0, 300)
    assert 300 < stream.peek() < 302
    deaf = Stream(0, load(arrivals={"rate": 10}, obeys_dial=False), 1)
    deaf.turn_dial(0.0, 0)
    assert deaf.peek() < math.inf


def test_a_closed_loop_waits_for_answers() -> None:
    stream = Stream(0, load(arrivals={"kind": "closed", "clients": 3, "think_seconds": 0.5}), 1)
    first = calls(stream, 10)
    assert len(first) == 3
    assert stream.peek() == math.inf
    stream.answered(first[0], 20.0)
    assert 20.0 < stream.peek() < 30.0


def test_a_chat_resends_its_history_and_the_answer() -> None:
    stream = Stream(
        0, load(chat={"turns": 3, "think_seconds": 1}, prompt={"mean": 50}, output={"mean": 20}, tenants=3), 1
    )
    first = stream.pop()
    stream.answered(first, 5.0)
    again = next(call for call in calls(stream, 60) if call.turn == 1)
    assert again.prompt[: len(first.prompt)] == first.prompt
    assert again.prompt[len(first.prompt)] == (first.output_seed, 20)
    assert (again.prompt_len, again.tenant) == (120, first.tenant)
    stream.answered(again, 70.0)
    last = next(call for call in calls(stream, 130) if call.turn == 2)
    before = stream.peek()
    stream.answered(last, 140.0)
    assert stream.peek() == before  # three turns, then it is over


def test_families_share_their_beginning_and_nothing_else() -> None:
    made = calls(Stream(0, load(arrivals={"rate": 50}, shared_prefix={"families": 3, "tokens": 64}), 1), 20)
    assert len({call.prompt[0] for call in made}) == 3
    assert len({call.prompt[1] for call in made}) == len(made)
    other = calls(Stream(1, load(arrivals={"rate": 50}, shared_prefix={"families": 3, "tokens": 64}), 1), 20)
    assert not {call.prompt[0] for call in made} & {call.prompt[0] for call in other}


def test_kinds_priorities_and_patience() -> None:
    stream = Stream(
        0,
        load(
            arrivals={"rate": 50},
            oversized_ratio=0.2,
            bad_key_ratio=0.25,
            priorities=[0, 9],
            aborts={"ratio": 0.5, "mean_seconds": 2},
        ),
        1,
    )
    made = calls(stream, 60)
    share = {kind: sum(call.kind == kind for call in made) / len(made) for kind in ("oversized", "bad_key")}
    assert share["oversized"] == pytest.approx(0.2, abs=0.03)
    assert share["bad_key"] == pytest.approx(0.2, abs=0.03)
    assert {call.priority for call in made} == {0, 9}
    patience = [call.abort_after_seconds for call in made if call.abort_after_seconds is not None]
    assert len(patience) / len(made) == pytest.approx(0.5, abs=0.05)
    assert statistics.mean(patience) == pytest.approx(2, rel=0.1)


def test_lengths_have_their_mean_and_stay_inside() -> None:
    random = Random(1)
    lengths = Lengths(kind="lognormal", mean=200, cv=0.8, low=10, high=5000)
    drawn = [draw_length(lengths, random) for _ in range(20_000)]
    assert statistics.mean(drawn) == pytest.approx(200, rel=0.03)
    assert statistics.stdev(drawn) == pytest.approx(160, rel=0.1)
    assert min(drawn) >= 10
    assert {draw_length(Lengths(kind="uniform", low=2, high=4), random) for _ in range(100)} == {2, 3, 4}


def test_the_same_seed_makes_the_same_calls() -> None:
    spec = load(arrivals={"rate": 30}, chat={"turns": 2}, tenants=2, aborts={"ratio": 0.3, "mean_seconds": 1})
    assert calls(Stream(0, spec, 5), 20) == calls(Stream(0, spec, 5), 20)
    assert calls(Stream(0, spec, 5), 20) != calls(Stream(0, spec, 6), 20)


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "arrived_at_s,prompt_tokens,output_tokens\nx,1,2\n"])
def test_a_bad_trace_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    if not content:
        path.unlink()
        path = tmp_path / "gone.csv"
    with pytest.raises(ScenarioError, match=path.name):
        calls(Stream(0, load(arrivals={"kind": "trace", "file": str(path)}), 1), 10) or (_ for _ in ()).throw(
            ScenarioError(path.name)
        )
