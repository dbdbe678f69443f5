"""The pool of KV blocks of one engine: owners, the free queue and the prefix cache, as vLLM 0.11.0's block manager keeps them.

Block 0 is the null block: taken at start, never handed out. Every other block is either owned (reference count > 0) or in the free queue. A
free block may still carry the hash of its content; it then is evictable cache and counts as free capacity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

BlockHash = int | bytes

NULL_BLOCK = 0


class OutOfBlocks(Exception):
    """The free queue holds fewer blocks than were asked for; nothing was changed."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(
            f"{wanted} blocks wanted, {free} free: nothing was taken. Free a sequence or preempt one, then ask again"
        )
        self.wanted = wanted
        self.free = free


class BrokenInvariant(AssertionError):
    """The books of the pool do not add up: a defect of this program, never of a workload."""


class BlockPool:
    """`num_blocks` blocks, the null block included. Allocation takes the least recently freed block first."""

    __slots__ = (
        "_duplicates",
        "_free",
        "_left",
        "_num_left",
        "cached",
        "caching",
        "hash_of",
        "num_blocks",
        "num_free",
        "refs",
    )

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks {num_blocks}: at least 1, the null block")
        self.num_blocks = num_blocks
        self.caching = caching
        self.refs = [0] * num_blocks
        self.refs[NULL_BLOCK] = 1
        self.hash_of: list[BlockHash | None] = [None] * num_blocks
        self.cached: dict[BlockHash, int] = {}
        self._duplicates: dict[BlockHash, dict[int, None]] = {}  # every holder of a hash that several blocks hold
        self._free: deque[int] = deque(range(1, num_blocks))
        self.num_free = num_blocks - 1
        """Blocks without an owner; evictable cached ones included."""
        # A block that is hit while it is free leaves the queue from the middle: its entry stays and is passed over when it comes to the front.
        self._left: dict[int, int] = {}
        self._num_left = 0

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def usage_ratio(self) -> float:
        """`vllm:kv_cache_usage_perc`: 1 - free / usable; 0 for a pool that has only the null block."""
        return 1.0 - self.num_free / (self.num_blocks - 1) if self.num_blocks > 1 else 0.0

    def free_order(self) -> list[int]:
        """The free queue, next to be taken first."""
        left = dict(self._left)
        order = []
        for block in self._free:
            if left.get(block):
                left[block] -= 1
            else:
                order.append(block)
        return order

    def allocate(self, count: int) -> list[int]:
        """`count` fresh blocks from the front of the free queue, each owned once; what they cached is evicted. Raises OutOfBlocks, atomically."""
        if count > self.num_free:
            raise OutOfBlocks(count, self.num_free)
        self.num_free -= count
        if self._left:
            taken = [self._pop() for _ in range(count)]
        else:
            pop = self._free.popleft
            taken = [pop() for _ in range(count)]
        refs, hash_of = self.refs, self.hash_of
        for block in taken:
            refs[block] = 1
            if hash_of[block] is not None:
                self._evict(block)
        return taken

    def take(self) -> int:
        """One fresh block; like `allocate(1)` for a caller that knows that one is free."""
        block = self._pop() if self._left else self._free.popleft()
        self.num_free -= 1
        self.refs[block] = 1
        if self.hash_of[block] is not None:
            self._evict(block)
        return block

    def _pop(self) -> int:
        """The front of the free queue, entries of blocks that left it passed over."""
        left = self._left
        while True:
            block = self._free.popleft()
            stale = left.get(block)
            if not stale:
                return block
            self._num_left -= 1
            if stale == 1:
                del left[block]
            else:
                left[block] = stale - 1

    def evictable(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks have no owner: they leave the free queue when they are hit, so they count as needed."""
        refs = self.refs
        return sum(1 for block in blocks if not refs[block])

    def touch(self, blocks: Iterable[int]) -> None:
        """One more owner for each block; a block without owner leaves the free queue."""
        refs, left = self.refs, self._left
        for block in blocks:
            if not refs[block]:
                self.num_free -= 1
                self._num_left += 1
                left[block] = left.get(block, 0) + 1
            refs[block] += 1
        if self._num_left > self.num_blocks:
            self._free = deque(self.free_order())
            self._left = {}
            self._num_left = 0

    def release(self, blocks: Iterable[int]) -> None:
        """One owner less for each block, in the order given; those without owner join the end of the free queue and keep their hash."""
        refs, free = self.refs, self._free
        before = len(free)
        for block in blocks:
            left = refs[block] - 1
            if left < 0:
                raise BrokenInvariant(f"block {block} was released more often than it was owned")
            refs[block] = left
            if not left:
                free.append(block)
        self.num_free += len(free) - before

    def store(self, hashes: Sequence[BlockHash], blocks: Sequence[int]) -> None:
        """Enter full blocks in the prefix cache. Identical content may live in several blocks; the first stored answers lookups."""
        cached, hash_of = self.cached, self.hash_of
        for block_hash, block in zip(hashes, blocks, strict=True):
            if hash_of[block] is not None:
                raise BrokenInvariant(f"block {block} already carries a hash")
            hash_of[block] = block_hash
            first = cached.setdefault(block_hash, block)
            if first != block:
                self._duplicates.setdefault(block_hash, {first: None})[block] = None

    def store_one(self, block_hash: BlockHash, block: int) -> None:
        """Enter one full block in the prefix cache."""
        if self.hash_of[block] is not None:
            raise BrokenInvariant(f"block {block} already carries a hash")
        self.hash_of[block] = block_hash
        first = self.cached.setdefault(block_hash, block)
        if first != block:
            self._duplicates.setdefault(block_hash, {first: None})[block] = None

    def lookup(self, hashes: Sequence[BlockHash], limit: int) -> list[int]:
        """The cached blocks of the longest known chain from block 0, at most `limit` of them; stops at the first miss."""
        cached = self.cached
        found: list[int] = []
        for index in range(limit):
            block = cached.get(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def reset_cache(self) -> bool:
        """Forget every hash. Only when no block is owned but the null block; otherwise nothing happens and False is returned."""
        if self.num_free != self.num_blocks - 1:
            return False
        self.cached.clear()
        self._duplicates.clear()
        self.hash_of = [None] * self.num_blocks
        return True

    def forget_free(self) -> int:
        """Evict every cached block that has no owner; returns how many. What requests hold stays cached."""
        evictable = [block for block in self.free_order() if self.hash_of[block] is not None]
        for block in evictable:
            self._evict(block)
        return len(evictable)

    def _evict(self, block: int) -> None:
        block_hash = self.hash_of[block]
        if block_hash is None:
            return
        self.hash_of[block] = None
        holders = self._duplicates.get(block_hash)
        if holders is None:
            del self.cached[block_hash]
            return
        del holders[block]
        self.cached[block_hash] = next(iter(holders))
        if len(holders) == 1:
            del self._duplicates[block_hash]

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises BrokenInvariant unless counts equal references, no block is both free and owned, none leaked, and the cache's books agree."""
        held = [0] * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise BrokenInvariant(f"a block table holds a block twice: {list(table)}")
            for block in table:
                held[block] += 1
        order = self.free_order()
        free = set(order)
        if len(free) != len(order) or len(order) != self.num_free:
            raise BrokenInvariant(
                f"{len(order)} entries of {len(free)} blocks in the free queue, {self.num_free} counted"
            )
        if held[NULL_BLOCK] or NULL_BLOCK in free:
            raise BrokenInvariant("the null block was handed out")
        for block in range(1, self.num_blocks):
            if held[block] != self.refs[block]:
                raise BrokenInvariant(f"block {block}: {self.refs[block]} references counted, {held[block]} held")
            if (block in free) != (held[block] == 0):
                raise BrokenInvariant(
                    f"block {block} is {'owned and free' if held[block] else 'neither owned nor free'}"
                )
        for block_hash, block in self.cached.items():
            if self.hash_of[block] != block_hash:
                raise BrokenInvariant(f"the cache names block {block} for a hash it does not carry")
        carriers = sum(1 for block_hash in self.hash_of if block_hash is not None)
        known = len(self.cached) + sum(len(holders) - 1 for holders in self._duplicates.values())
        if carriers != known:
            raise BrokenInvariant(f"{carriers} blocks carry a hash, the cache knows {known}")
