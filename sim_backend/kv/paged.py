"""The teaching allocator: sequences that own blocks, grow, fork and share, with the tokens written in them.

The scheduler works on bare block ids; here the content is kept too, so that copy-on-write and "a recycled block never shows what its former
owner wrote" can be seen and tested. Every operation is atomic: when blocks are short, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sim_backend.kv.paging import blocks_needed
from sim_backend.kv.pool import BlockPool, BrokenInvariant, OutOfBlocks


class UnknownSequence(KeyError):
    """No sequence of that name lives here."""

    def __str__(self) -> str:
        return f"no sequence {self.args[0]!r} lives here: it was freed, or never allocated"


@dataclass(slots=True)
class Branch:
    """A block table and how many of its slots hold tokens."""

    blocks: list[int]
    length: int


@dataclass(slots=True)
class PagedCache:
    """Sequences over one pool. `block_size` slots a block; a slot holds one token id here instead of keys and values."""

    pool: BlockPool
    block_size: int
    _slots: dict[int, list[int]] = field(default_factory=dict)
    _sequences: dict[str, Branch] = field(default_factory=dict)
    copies: int = 0
    """Blocks copied because a shared tail was written to."""

    @classmethod
    def with_blocks(cls, num_blocks: int, block_size: int) -> PagedCache:
        return cls(BlockPool(num_blocks, caching=False), block_size)

    def __contains__(self, name: object) -> bool:
        return name in self._sequences

    @property
    def names(self) -> list[str]:
        return list(self._sequences)

    def allocate(self, name: str, tokens: Sequence[int]) -> None:
        """Admit a sequence with its prompt. Raises OutOfBlocks (nothing taken) or ValueError for a live name."""
        if name in self._sequences:
            raise ValueError(f"sequence {name!r} is alive: free it, or choose another name")
        blocks = self._take(blocks_needed(len(tokens), self.block_size))
        sequence = self._sequences[name] = Branch(blocks, 0)
        for token in tokens:
            self._write(sequence, token)

    def append(self, name: str, token: int) -> None:
        """One more token. A full tail takes a new block; a shared partial tail is copied first. Raises OutOfBlocks, and both branches stay as they were."""
        sequence = self._get(name)
        if sequence.length == len(sequence.blocks) * self.block_size:
            sequence.blocks += self._take(1)
        elif self.pool.refs[sequence.blocks[-1]] > 1:
            shared = sequence.blocks[-1]
            (own,) = self._take(1)
            used = sequence.length % self.block_size
            self._slots[own] = self._slots[shared][:used]
            sequence.blocks[-1] = own
            self._give_back([shared])
            self.copies += 1
        self._write(sequence, token)

    def fork(self, name: str, child: str) -> None:
        """A second sequence with the same past: it shares every block, the partial tail included, and takes none."""
        parent = self._get(name)
        if child in self._sequences:
            raise ValueError(f"sequence {child!r} is alive: free it, or choose another name")
        self.pool.touch(parent.blocks)
        self._sequences[child] = Branch(list(parent.blocks), parent.length)

    def free(self, name: str) -> None:
        """The sequence ends; blocks that nobody else holds go back, tail first, and forget their content."""
        sequence = self._get(name)
        del self._sequences[name]
        self._give_back(reversed(sequence.blocks))

    def tokens(self, name: str) -> list[int]:
        """What the sequence would read back."""
        sequence = self._get(name)
        read = [token for block in sequence.blocks for token in self._slots[block]]
        return read[: sequence.length]

    def table(self, name: str) -> tuple[int, ...]:
        return tuple(self._get(name).blocks)

    def length(self, name: str) -> int:
        return self._get(name).length

    def check(self) -> None:
        """Raises BrokenInvariant unless counts equal references, nothing leaked, and no free block holds content."""
        self.pool.check(sequence.blocks for sequence in self._sequences.values())
        for sequence in self._sequences.values():
            if len(sequence.blocks) != blocks_needed(sequence.length, self.block_size):
                raise BrokenInvariant(f"{sequence.length} tokens sit in {len(sequence.blocks)} blocks")
        owned = {block for sequence in self._sequences.values() for block in sequence.blocks}
        if set(self._slots) != owned:
            raise BrokenInvariant("a block without owner still shows tokens")

    def _take(self, count: int) -> list[int]:
        blocks = self.pool.allocate(count)
        for block in blocks:
            self._slots[block] = []
        return blocks

    def _give_back(self, blocks: Iterable[int]) -> None:
        listed = list(blocks)
        self.pool.release(listed)
        for block in listed:
            if not self.pool.refs[block]:
                del self._slots[block]

    def _write(self, sequence: Branch, token: int) -> None:
        index, offset = divmod(sequence.length, self.block_size)
        slots = self._slots[sequence.blocks[index]]
        if len(slots) != offset:
            raise BrokenInvariant(f"slot {offset} written while {len(slots)} are full")
        slots.append(token)
        sequence.length += 1

    def _get(self, name: str) -> Branch:
        try:
            return self._sequences[name]
        except KeyError:
            raise UnknownSequence(name) from None


def fork_facts(tokens: int, block_size: int) -> dict[str, int]:
    """What a fork costs: a sequence of `tokens` tokens is forked, then the child writes one more. Done on the allocator, not by formula.

    A partial last block is shared and copied at that write; where the last block is full, the write takes a fresh one and nothing is copied.
    """
    needed = blocks_needed(tokens, block_size)
    cache = PagedCache.with_blocks(2 * needed + 2, block_size)
    cache.allocate("parent", range(tokens))
    free = cache.pool.num_free
    cache.fork("parent", "child")
    shared = len(cache.table("child"))
    taken_by_fork = free - cache.pool.num_free
    cache.append("child", tokens)
    cache.check()
    still = sum(1 for block in cache.table("child") if cache.pool.refs[block] > 1)
    return {
        "shared_by_the_fork": shared,
        "taken_by_the_fork": taken_by_fork,
        "copied_by_the_write": cache.copies,
        "taken_by_the_write": free - cache.pool.num_free - taken_by_fork,
        "shared_after_the_write": still,
    }


__all__ = ["OutOfBlocks", "PagedCache", "UnknownSequence", "fork_facts"]
