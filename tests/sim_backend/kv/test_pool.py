"""Owners, free order and the prefix cache, against a slow model that keeps everything in lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_backend.kv.pool import BlockPool, BrokenInvariant, OutOfBlocks


def test_a_failed_allocation_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    before = (pool.free_order(), list(pool.refs))
    with pytest.raises(OutOfBlocks, match="2 blocks wanted, 1 free"):
        pool.allocate(2)
    assert (pool.free_order(), list(pool.refs)) == before


def test_usage_leaves_the_null_block_out() -> None:
    pool = BlockPool(5)
    assert pool.usage_ratio == 0
    pool.allocate(4)
    assert pool.usage_ratio == 1
    assert BlockPool(1).usage_ratio == 0


def test_the_least_recently_freed_goes_first_and_takes_its_hash_along() -> None:
    pool = BlockPool(4)
    first = pool.allocate(3)
    pool.store([10, 11, 12], first)
    pool.release(reversed(first))
    assert pool.free_order() == [3, 2, 1]
    assert pool.lookup([10, 11, 12], 3) == [1, 2, 3]
    assert pool.allocate(1) == [3]
    assert pool.lookup([10, 11, 12], 3) == [1, 2]


def test_of_equal_blocks_the_first_stored_answers_until_it_is_gone() -> None:
    pool = BlockPool(4)
    one, two = pool.allocate(1), pool.allocate(1)
    pool.store([7], one)
    pool.store([7], two)
    assert pool.lookup([7], 1) == one
    pool.release(one)
    pool.allocate(2)  # takes block 3, then evicts block 1
    assert pool.lookup([7], 1) == two
    pool.check([one, two, [3]])


def test_a_hit_without_owner_leaves_the_free_queue() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.store([5], blocks)
    pool.release(blocks)
    assert pool.evictable(blocks) == 1
    pool.touch(blocks)
    assert pool.free_order() == [2]
    assert pool.evictable(blocks) == 0


def test_the_cache_is_reset_only_when_nothing_is_owned() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.store([5], blocks)
    assert not pool.reset_cache()
    assert pool.lookup([5], 1) == blocks
    pool.release(blocks)
    assert pool.reset_cache()
    assert pool.lookup([5], 1) == []


def test_misuse_is_a_broken_invariant() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    with pytest.raises(BrokenInvariant, match="references counted"):
        pool.check([])
    pool.release(blocks)
    with pytest.raises(BrokenInvariant, match="more often"):
        pool.release(blocks)
    with pytest.raises(BrokenInvariant, match="twice"):
        pool.check([[1, 1]])
    with pytest.raises(ValueError, match="null block"):
        BlockPool(0)


class SlowPool:
    """The same rules in the plainest form: a list as the free queue, a list of (hash, block) as the cache."""

    def __init__(self, count: int) -> None:
        self.free = list(range(1, count))
        self.refs = [1] + [0] * (count - 1)
        self.stored: list[tuple[int, int]] = []

    def allocate(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        self.stored = [entry for entry in self.stored if entry[1] not in taken]
        for block in taken:
            self.refs[block] = 1
        return taken

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free.append(block)

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.refs[block]:
                self.free.remove(block)
            self.refs[block] += 1

    def lookup(self, hashes: list[int]) -> list[int]:
        found: list[int] = []
        for wanted in hashes:
            holders = [block for known, block in self.stored if known == wanted]
            if not holders:
                break
            found.append(holders[0])
        return found


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(2, 24))
def test_random_use_equals_the_slow_model(data: st.DataObject, count: int) -> None:
    pool, slow = BlockPool(count), SlowPool(count)
    tables: list[list[int]] = []
    for _ in range(data.draw(st.integers(20, 120))):
        action = data.draw(st.sampled_from(["allocate", "release", "hit", "store"]))
        if action == "allocate":
            wanted = data.draw(st.integers(0, count))
            if wanted > pool.num_free:
                with pytest.raises(OutOfBlocks):
                    pool.allocate(wanted)
                continue
            got = pool.allocate(wanted)
            assert got == slow.allocate(wanted)
            tables.append(got)
        elif action == "release" and tables:
            table = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
            pool.release(reversed(table))
            slow.release(table[::-1])
        elif action == "hit":
            hashes = data.draw(st.lists(st.integers(0, 6), max_size=4, unique=True))
            found = pool.lookup(hashes, len(hashes))
            assert found == slow.lookup(hashes)
            pool.touch(found)
            slow.touch(found)
            tables.append(found)
        elif action == "store" and tables:
            table = tables[data.draw(st.integers(0, len(tables) - 1))]
            blank = [block for block in table if pool.hash_of[block] is None][:2]
            hashes = [data.draw(st.integers(0, 6)) for _ in blank]
            pool.store(hashes, blank)
            slow.stored += zip(hashes, blank, strict=True)
        assert pool.free_order() == slow.free
        assert pool.refs == slow.refs
        pool.check(tables)
