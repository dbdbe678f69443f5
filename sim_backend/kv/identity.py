"""Who a block is: the hash chain of the prefix cache, over parent, tokens and extra identity.

Two ways to know the tokens. `TokenChain` holds real token ids and hashes them. `SegmentChain` serves synthetic load, where a prompt is a list
of segments named by a seed and two different seeds never hold the same text: the full blocks inside one segment then get consecutive
identities after one hash, which is what makes a long prompt cheap.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sim_backend.kv.pool import BlockHash

_MASK = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What separates equal tokens: adapter (every block), salt (first block, inherited by the chain), multimodal items (blocks they overlap)."""

    lora_id: int = 0
    cache_salt: str | None = None
    multimodal: tuple[tuple[int, int, str], ...] = ()
    """(first token, number of tokens, content identifier) of each item."""

    def of_block(self, index: int, block_size: int) -> tuple[object, ...]:
        start, end = index * block_size, (index + 1) * block_size
        keys: list[object] = [self.lora_id] if self.lora_id else []
        keys.extend(name for first, count, name in self.multimodal if first < end and first + count > start)
        if index == 0 and self.cache_salt is not None:
            keys.append(("salt", self.cache_salt))
        return tuple(keys)


NO_EXTRA = ExtraKeys()


class Chain(Protocol):
    """Identities of the full blocks of one request, in order; grows with its output."""

    def upto(self, num_blocks: int) -> Sequence[BlockHash]:
        """At least the first `num_blocks` identities. The caller asks only for blocks whose tokens are known."""
        ...


class TokenChain:
    """Identities from real token ids: SHA-256 over parent digest, tokens and extra keys."""

    __slots__ = ("_digests", "_extra", "_output", "_size", "_tokens", "prompt_len")

    def __init__(
        self, prompt: Sequence[int], output: Callable[[int], int], block_size: int, extra: ExtraKeys = NO_EXTRA
    ) -> None:
        self.prompt_len = len(prompt)
        self._tokens = list(prompt)
        self._output = output
        self._size = block_size
        self._extra = extra
        self._digests: list[BlockHash] = []

    def tokens(self, count: int) -> list[int]:
        """The first `count` tokens, prompt and output."""
        self._know(count)
        return self._tokens[:count]

    def upto(self, num_blocks: int) -> Sequence[BlockHash]:
        digests, size = self._digests, self._size
        if len(digests) < num_blocks:
            self._know(num_blocks * size)
        while len(digests) < num_blocks:
            index = len(digests)
            parent = digests[-1] if digests else b"root"
            assert isinstance(parent, bytes)
            block = array("q", self._tokens[index * size : (index + 1) * size]).tobytes()
            extra = repr(self._extra.of_block(index, size)).encode()
            digests.append(hashlib.sha256(parent + block + extra).digest())
        return digests

    def _know(self, count: int) -> None:
        tokens = self._tokens
        while len(tokens) < count:
            tokens.append(self._output(len(tokens) - self.prompt_len))


class SegmentChain:
    """Identities from segments `(seed, length)`; the output is one more segment, without end."""

    __slots__ = ("_ids", "_next", "_offset", "_salt", "_segment", "_segments", "_size")

    def __init__(
        self, prompt: Sequence[tuple[int, int]], output_seed: int, block_size: int, extra: ExtraKeys = NO_EXTRA
    ) -> None:
        self._segments = (*(segment for segment in prompt if segment[1] > 0), (output_seed, 1 << 62))
        self._size = block_size
        self._ids: list[BlockHash] = []
        self._segment = 0
        self._offset = 0
        self._next: int | None = None  # inside a run of full blocks of one segment: the identity of the next one
        salted = repr((extra.lora_id, extra.cache_salt)).encode()
        self._salt = int.from_bytes(hashlib.sha256(salted).digest()[:7]) if extra != NO_EXTRA else 0
        if extra.multimodal:
            raise ValueError("multimodal items need real tokens: use TokenChain")

    def upto(self, num_blocks: int) -> Sequence[BlockHash]:
        ids, size, segments = self._ids, self._size, self._segments
        if len(ids) == num_blocks - 1 and self._next is not None and segments[self._segment][1] - self._offset >= size:
            ids.append(self._next)
            self._next += 1
            self._offset += size
            return ids
        while len(ids) < num_blocks:
            seed, length = segments[self._segment]
            if self._offset == length:
                self._segment, self._offset, self._next = self._segment + 1, 0, None
                continue
            whole = min((length - self._offset) // size, num_blocks - len(ids))
            if whole:
                first = self._next
                if first is None:
                    parent = ids[-1] if ids else self._salt
                    first = hash((parent, seed, self._offset)) & _MASK
                ids.extend(range(first, first + whole))
                self._next = first + whole
                self._offset += whole * size
            else:
                ids.append(self._straddling())
        return ids

    def _straddling(self) -> int:
        """The identity of a block that holds the end of one segment and the beginning of the next ones."""
        parts: list[int] = [int(self._ids[-1]) if self._ids else self._salt]
        room = self._size
        while room:
            seed, length = self._segments[self._segment]
            count = min(room, length - self._offset)
            if count:
                parts += (seed, self._offset, count)
            self._offset += count
            room -= count
            if self._offset == length:
                self._segment += 1
                self._offset = 0
        self._next = None
        return hash(tuple(parts)) & _MASK
