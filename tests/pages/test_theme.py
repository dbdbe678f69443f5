"""One replica, one colour."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pages.ui.theme import PALETTE_SIZE, SlotMemory, slots

NAMES = st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=20)


@settings(deadline=None, max_examples=100)
@given(NAMES)
def test_up_to_eight_replicas_have_colours_of_their_own(names: list[str]) -> None:
    given_slots = slots(names)
    taken = [slot for slot in given_slots.values() if slot is not None]
    assert len(taken) == len(set(taken)) == min(len(names), PALETTE_SIZE)


@settings(deadline=None, max_examples=100)
@given(NAMES.filter(lambda names: 2 <= len(names) <= PALETTE_SIZE))
def test_a_replica_keeps_its_colour_while_another_goes_and_comes_back(names: list[str]) -> None:
    memory = SlotMemory()
    before = memory.of(names)
    without = memory.of(names[1:])
    assert without == {name: before[name] for name in names[1:]}
    assert memory.of(names) == before


@settings(deadline=None, max_examples=100)
@given(NAMES.filter(lambda names: len(names) > PALETTE_SIZE))
def test_of_many_replicas_the_worst_three_have_colours_and_the_rest_is_grey(names: list[str]) -> None:
    coloured = {name for name, slot in SlotMemory().of(names, names).items() if slot is not None}
    assert coloured == set(names[:3])


def test_a_rollout_frees_the_colours_of_those_that_left() -> None:
    memory = SlotMemory()
    memory.of([f"old-{i}" for i in range(8)])
    new = memory.of([f"new-{i}" for i in range(8)])
    assert None not in new.values()
