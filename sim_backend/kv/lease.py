"""Leases: blocks stay where a dispatched step will write, until that step is acknowledged - even when their request was cancelled meanwhile.

A request name may be used again; the *epoch* tells its lives apart. Every dispatch carries a *ticket* that is good for one acknowledgement.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from sim_backend.kv.paged import PagedCache
from sim_backend.kv.table import TableClaim, validate_table


class Refusal(Enum):
    """Why a result is not taken."""

    UNKNOWN_TICKET = "no such dispatch"
    DUPLICATE = "this dispatch was acknowledged before"
    STALE_EPOCH = "the name lives a new life; this result belongs to an earlier one"
    RETIRED = "the request was cancelled; its result is dropped"


class NotDispatchable(Exception):
    """The request cannot be sent to the workers now; the message says why."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Permission to write: which life of which request, and the blocks it may touch."""

    ticket: int
    request: str
    epoch: int
    blocks: tuple[int, ...]


@dataclass(slots=True)
class _Life:
    epoch: int
    sequence: str
    outstanding: set[int] = field(default_factory=set)
    retired: bool = False


class Leases:
    """Requests over a paged cache with dispatches in flight."""

    def __init__(self, cache: PagedCache, cache_dtype: str = "auto") -> None:
        self.cache = cache
        self.cache_dtype = cache_dtype
        self._tickets = itertools.count(1)
        self._epochs: dict[str, int] = {}
        self._lives: dict[str, _Life] = {}
        self._retiring: list[_Life] = []
        self._open: dict[int, tuple[Dispatch, _Life]] = {}
        self._newest_ticket = 0

    def admit(self, request: str, tokens: Sequence[int]) -> int:
        """A new life of this name; returns its epoch. Raises OutOfBlocks, or ValueError while an earlier life is not cancelled."""
        if request in self._lives:
            raise ValueError(f"request {request!r} is alive: cancel or finish it first")
        epoch = self._epochs.get(request, 0) + 1
        sequence = f"{request}@{epoch}"
        self.cache.allocate(sequence, tokens)
        self._epochs[request] = epoch
        self._lives[request] = _Life(epoch, sequence)
        return epoch

    def dispatch(self, request: str) -> Dispatch:
        """Hand one step of the request to the workers. Raises NotDispatchable for a name that is not alive, BadBlockTable when its table
        must not be used."""
        life = self._lives.get(request)
        if life is None:
            raise NotDispatchable(
                f"request {request!r} is not alive: it was cancelled, has finished, or was never admitted"
            )
        blocks, length = self.cache.table(life.sequence), self.cache.length(life.sequence)
        claim = TableClaim(request, blocks, length, self.cache_dtype)
        size = self.cache.block_size
        validate_table(
            claim, self.cache.pool, blocks, block_size=size, cache_dtype=self.cache_dtype, writes_from=length
        )
        self._newest_ticket = next(self._tickets)
        dispatch = Dispatch(self._newest_ticket, request, life.epoch, blocks)
        life.outstanding.add(dispatch.ticket)
        self._open[dispatch.ticket] = (dispatch, life)
        return dispatch

    def cancel(self, request: str) -> bool:
        """No new dispatch from now on; the blocks go back once nothing is outstanding. False when the name is not alive."""
        life = self._lives.pop(request, None)
        if life is None:
            return False
        life.retired = True
        if life.outstanding:
            self._retiring.append(life)
        else:
            self.cache.free(life.sequence)
        return True

    def acknowledge(self, dispatch: Dispatch, token: int | None = None) -> Refusal | None:
        """The workers are done with a dispatch. None: `token` was appended. Otherwise why it was dropped; a cancelled life gives its blocks back
        with its last acknowledgement. Raises OutOfBlocks when the token finds no room: the dispatch stays open, as it was."""
        entry = self._open.get(dispatch.ticket)
        if entry is None:
            known = 0 < dispatch.ticket <= self._newest_ticket
            return Refusal.DUPLICATE if known else Refusal.UNKNOWN_TICKET
        issued, life = entry
        if issued != dispatch:
            return Refusal.STALE_EPOCH if issued.epoch != dispatch.epoch else Refusal.UNKNOWN_TICKET
        if not life.retired and token is not None:
            self.cache.append(life.sequence, token)
        del self._open[dispatch.ticket]
        life.outstanding.discard(dispatch.ticket)
        if not life.retired:
            return None
        if not life.outstanding:
            self._retiring.remove(life)
            self.cache.free(life.sequence)
        reborn = self._lives.get(dispatch.request)
        return Refusal.STALE_EPOCH if reborn is not None else Refusal.RETIRED

    @property
    def outstanding(self) -> int:
        """Dispatches that are not acknowledged."""
        return len(self._open)

    @property
    def held_for_retired(self) -> int:
        """Blocks that wait for the acknowledgement of a cancelled request."""
        return len({block for life in self._retiring for block in self.cache.table(life.sequence)})
