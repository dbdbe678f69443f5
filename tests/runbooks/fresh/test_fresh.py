"""A bounded sample of the situations drawn at random: every instant right. The whole is `python -m benchmarks.fresh_cases`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.runbooks.fresh.calm import idle_night, jump, longer_prompts, scale_down
from tests.runbooks.fresh.judged import judged
from tests.runbooks.fresh.kinds import KINDS
from tests.runbooks.fresh.made import Situation, recorded
from tests.runbooks.fresh.mixed import pair
from tests.runbooks.fresh.troubles import all_frozen, giant_head, hot_rank, lost_scrapes, seats, slow, small_pool

SAMPLE = (
    idle_night, jump, longer_prompts, scale_down, pair, all_frozen, giant_head, hot_rank, lost_scrapes,
    seats, slow, small_pool,
)  # fmt: skip
SEED = 77
Kind = Callable[[Random, int], Situation]


def drawn(kind: Kind, seed: int) -> Situation:
    return kind(Random(f"{kind.__name__} {seed}"), seed)


@pytest.mark.parametrize("kind", SAMPLE, ids=lambda kind: kind.__name__)
def test_a_situation_that_nobody_tuned_for_is_judged_right(kind: Kind) -> None:
    answers = list(judged(recorded(drawn(kind, SEED)), step=75.0))
    assert len(answers) >= 3
    assert [str(one) for one in answers if one.faults] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SAMPLE], ids=lambda kind: kind.__name__)
def test_the_other_kinds_too(kind: Kind) -> None:
    assert [str(one) for one in judged(recorded(drawn(kind, SEED)), step=75.0) if one.faults] == []


def test_a_draw_is_the_same_in_every_process() -> None:
    first, again = recorded(drawn(idle_night, 3)), recorded(drawn(idle_night, 3))
    assert first.instances == again.instances
    one, other = first.source.all_samples(), again.source.all_samples()
    assert [s.labels for s in one] == [s.labels for s in other]
    assert all((a.values == b.values).all() for a, b in zip(one, other, strict=True) if a.labels["__name__"] == "up")
