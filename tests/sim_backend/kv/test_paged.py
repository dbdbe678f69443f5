"""The teaching allocator under thousands of random steps: nothing leaks, nothing is owned twice, everybody reads what they wrote."""

from random import Random

import pytest

from sim_backend.kv.lease import Dispatch, Leases, NotDispatchable, Refusal
from sim_backend.kv.paged import OutOfBlocks, PagedCache, UnknownSequence, fork_facts
from sim_backend.kv.table import BadBlockTable, TableClaim, validate_table


def test_a_fork_shares_and_the_writer_of_a_shared_tail_copies_it() -> None:
    cache = PagedCache.with_blocks(10, 4)
    cache.allocate("a", [1, 2, 3, 4, 5])
    cache.fork("a", "b")
    assert cache.table("a") == cache.table("b")
    cache.append("b", 60)
    assert cache.copies == 1
    assert cache.table("a")[0] == cache.table("b")[0]
    assert cache.table("a")[1] != cache.table("b")[1]
    cache.append("a", 6)  # the tail is its own again
    assert cache.copies == 1
    assert (cache.tokens("a"), cache.tokens("b")) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 60])
    cache.check()


def test_a_copy_that_finds_no_block_leaves_both_branches_alone() -> None:
    cache = PagedCache.with_blocks(3, 4)
    cache.allocate("a", [1, 2, 3, 4, 5])
    cache.fork("a", "b")
    before = [(cache.table(name), cache.tokens(name)) for name in "ab"]
    for name in "ab":
        with pytest.raises(OutOfBlocks):
            cache.append(name, 9)
    assert [(cache.table(name), cache.tokens(name)) for name in "ab"] == before
    cache.check()


def test_unknown_and_live_names_are_refused() -> None:
    cache = PagedCache.with_blocks(4, 4)
    cache.allocate("a", [1])
    with pytest.raises(ValueError, match="alive"):
        cache.allocate("a", [1])
    with pytest.raises(ValueError, match="alive"):
        cache.fork("a", "a")
    with pytest.raises(UnknownSequence, match="no sequence 'b'"):
        cache.append("b", 1)


@pytest.mark.parametrize("seed", range(6))
def test_thousands_of_random_steps_keep_the_books(seed: int) -> None:
    random = Random(seed)
    cache = PagedCache.with_blocks(random.randrange(8, 60), random.choice([1, 2, 4, 16]))
    said: dict[str, list[int]] = {}
    for step in range(3000):
        names = list(said)
        action = random.choice(["allocate", "append", "append", "append", "fork", "free"])
        name = f"s{step}"
        try:
            if action == "allocate":
                prompt = [random.randrange(1000) for _ in range(random.randrange(0, 30))]
                cache.allocate(name, prompt)
                said[name] = prompt
            elif not names:
                continue
            elif action == "append":
                chosen = random.choice(names)
                cache.append(chosen, step)
                said[chosen] = [*said[chosen], step]
            elif action == "fork":
                chosen = random.choice(names)
                cache.fork(chosen, name)
                said[name] = list(said[chosen])
            else:
                chosen = random.choice(names)
                cache.free(chosen)
                del said[chosen]
        except OutOfBlocks:
            for victim in names[:1]:
                cache.free(victim)
                del said[victim]
        if step % 20 == 0:
            cache.check()
            assert {known: cache.tokens(known) for known in said} == said
    for known in said:
        cache.free(known)
    cache.check()
    assert cache.pool.num_free == cache.pool.usable_blocks


def test_a_cancelled_request_keeps_its_blocks_until_the_workers_are_done() -> None:
    leases = Leases(PagedCache.with_blocks(6, 4))
    leases.admit("a", [1, 2, 3, 4, 5])
    first, second = leases.dispatch("a"), leases.dispatch("a")
    assert leases.cancel("a")
    with pytest.raises(NotDispatchable):
        leases.dispatch("a")
    assert leases.held_for_retired == 2
    assert leases.cache.pool.num_free == 3
    assert leases.acknowledge(first, 6) is Refusal.RETIRED
    assert leases.cache.pool.num_free == 3
    assert leases.acknowledge(second, 6) is Refusal.RETIRED
    assert leases.cache.pool.num_free == 5
    assert leases.acknowledge(second, 6) is Refusal.DUPLICATE
    assert not leases.cancel("a")


def test_a_result_for_an_earlier_life_of_the_name_is_rejected() -> None:
    leases = Leases(PagedCache.with_blocks(6, 4))
    leases.admit("a", [1])
    old = leases.dispatch("a")
    leases.cancel("a")
    assert leases.admit("a", [7]) == 2
    new = leases.dispatch("a")
    assert leases.acknowledge(old, 99) is Refusal.STALE_EPOCH
    forged = Dispatch(new.ticket, "a", 1, new.blocks)
    assert leases.acknowledge(forged, 99) is Refusal.STALE_EPOCH
    assert leases.acknowledge(new, 8) is None
    assert leases.cache.tokens("a@2") == [7, 8]
    assert leases.acknowledge(Dispatch(999, "a", 2, ()), 1) is Refusal.UNKNOWN_TICKET


@pytest.mark.parametrize("seed", range(4))
def test_leases_under_random_cancels_and_late_results(seed: int) -> None:
    random = Random(seed)
    leases = Leases(PagedCache.with_blocks(40, 4))
    open_: list[Dispatch] = []
    done: list[Dispatch] = []
    alive: dict[str, int] = {}
    for step in range(3000):
        name = f"r{random.randrange(6)}"
        action = random.choice(["admit", "dispatch", "acknowledge", "acknowledge", "cancel", "late"])
        try:
            if action == "admit" and name not in alive:
                alive[name] = leases.admit(name, [step] * random.randrange(1, 12))
            elif action == "dispatch" and name in alive:
                open_.append(leases.dispatch(name))
            elif action == "acknowledge" and open_:
                dispatch = open_[random.randrange(len(open_))]
                refusal = leases.acknowledge(dispatch, step)
                open_.remove(dispatch)
                done.append(dispatch)
                assert (refusal is None) == (alive.get(dispatch.request) == dispatch.epoch)
            elif action == "cancel" and name in alive:
                leases.cancel(name)
                del alive[name]
            elif action == "late" and done:
                assert leases.acknowledge(random.choice(done), step) is Refusal.DUPLICATE
        except OutOfBlocks:
            for victim in list(alive):
                leases.cancel(victim)
            alive.clear()
        leases.cache.check()
        assert leases.outstanding == len(open_)
    for victim in list(alive):
        leases.cancel(victim)
    for dispatch in open_:
        assert leases.acknowledge(dispatch, 1) is not None
    assert leases.cache.pool.num_free == leases.cache.pool.usable_blocks


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cache_dtype": "fp8"}, "dtype"),
        ({"length": 9}, "need 3 blocks"),
        ({"blocks": (1, 99)}, "outside"),
        ({"blocks": (0, 2)}, "outside"),
        ({"blocks": (1, 1)}, "repeats"),
        ({"blocks": (1, 5)}, "no owner"),
        ({"blocks": (1, 3)}, "not in its table"),
    ],
)
def test_a_wrong_table_is_not_used(change: dict[str, object], complaint: str) -> None:
    cache = PagedCache.with_blocks(8, 4)
    cache.allocate("a", [1, 2, 3, 4, 5])
    cache.allocate("b", [9])
    claim = {"owner": "a", "blocks": (1, 2), "length": 5, "cache_dtype": "auto"}
    good = TableClaim(**claim)  # type: ignore[arg-type]
    validate_table(good, cache.pool, cache.table("a"), block_size=4, cache_dtype="auto", writes_from=5)
    with pytest.raises(BadBlockTable, match=complaint):
        validate_table(
            TableClaim(**{**claim, **change}),  # type: ignore[arg-type]
            cache.pool,
            cache.table("a"),
            block_size=4,
            cache_dtype="auto",
            writes_from=5,
        )


def test_a_shared_block_is_not_written() -> None:
    cache = PagedCache.with_blocks(8, 4)
    cache.allocate("a", [1, 2, 3, 4, 5])
    cache.fork("a", "b")
    claim = TableClaim("a", cache.table("a"), 5, "auto")
    with pytest.raises(BadBlockTable, match="shared by 2"):
        validate_table(claim, cache.pool, cache.table("a"), block_size=4, cache_dtype="auto", writes_from=5)


@pytest.mark.parametrize(
    ("tokens", "facts"),
    [(50, (4, 0, 1, 1, 3)), (64, (4, 0, 0, 1, 4)), (1, (1, 0, 1, 1, 0)), (0, (0, 0, 0, 1, 0))],
)
def test_a_fork_takes_nothing_and_its_first_write_copies_the_shared_partial_tail_only(
    tokens: int, facts: tuple[int, ...]
) -> None:
    assert tuple(fork_facts(tokens, 16).values()) == facts
