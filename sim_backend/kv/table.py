"""A block table is checked before a step uses it: a wrong entry would read or write another request's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim_backend.kv.paging import blocks_needed
from sim_backend.kv.pool import NULL_BLOCK, BlockPool


class BadBlockTable(Exception):
    """The table must not be used; the message names the entry and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TableClaim:
    """What a step says about the table it brings: who owns it, how long the sequence is, which element type the cache has."""

    owner: str
    blocks: tuple[int, ...]
    length: int
    cache_dtype: str


def validate_table(
    claim: TableClaim, pool: BlockPool, owned: Sequence[int], *, block_size: int, cache_dtype: str, writes_from: int
) -> None:
    """Ownership, bounds, cache dtype and logical length; `owned` is the owner's table in the books, `writes_from` the first token position that
    the step writes: a block it writes to must not be shared. Raises BadBlockTable."""
    if claim.cache_dtype != cache_dtype:
        raise BadBlockTable(f"{claim.owner}: cache dtype {claim.cache_dtype}, the pool holds {cache_dtype}")
    if claim.length < 0 or blocks_needed(claim.length, block_size) > len(claim.blocks):
        raise BadBlockTable(
            f"{claim.owner}: {claim.length} tokens need {blocks_needed(max(claim.length, 0), block_size)} blocks, the table has {len(claim.blocks)}"
        )
    seen: set[int] = set()
    for position, block in enumerate(claim.blocks):
        if not NULL_BLOCK < block < pool.num_blocks:
            raise BadBlockTable(f"{claim.owner}: entry {position} is block {block}, outside 1..{pool.num_blocks - 1}")
        if block in seen:
            raise BadBlockTable(f"{claim.owner}: entry {position} repeats block {block}")
        seen.add(block)
        if pool.refs[block] < 1:
            raise BadBlockTable(
                f"{claim.owner}: entry {position}, block {block}, has no owner: it may be handed out at any moment"
            )
        if position >= len(owned) or owned[position] != block:
            raise BadBlockTable(f"{claim.owner}: entry {position}, block {block}, is not in its table")
        if pool.refs[block] > 1 and (position + 1) * block_size > writes_from and position * block_size < claim.length:
            raise BadBlockTable(
                f"{claim.owner}: entry {position}, block {block}, is shared by {pool.refs[block]} and would be written"
            )
