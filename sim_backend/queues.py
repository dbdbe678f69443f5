"""The two waiting queues of the V1 scheduler."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from sim_backend.request import Request

Policy = Literal["fcfs", "priority"]


class WaitingQueue(Protocol):
    """Requests without a seat, in the order in which they would be taken."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def add(self, request: Request) -> None: ...
    def head(self) -> Request: ...
    def pop(self) -> Request: ...
    def put_in_front(self, request: Request) -> None: ...
    def remove(self, requests: Iterable[Request]) -> None: ...


class FcfsQueue:
    """First come, first served; a preempted or set-aside request goes to the front."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def head(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.popleft()

    def put_in_front(self, request: Request) -> None:
        self._queue.appendleft(request)

    def remove(self, requests: Iterable[Request]) -> None:
        for request in requests:  # whoever gives up has mostly waited long, and stands in front
            self._queue.remove(request)


class PriorityQueue:
    """Smaller priority value first, then earlier arrival; front and back mean nothing here."""

    __slots__ = ("_counter", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Request]] = []
        self._counter = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap))

    def add(self, request: Request) -> None:
        self._counter += 1
        heapq.heappush(self._heap, (request.priority, request.arrival_time, self._counter, request))

    def head(self) -> Request:
        return self._heap[0][3]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[3]

    def put_in_front(self, request: Request) -> None:
        self.add(request)

    def remove(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        if gone:
            self._heap = [entry for entry in self._heap if entry[3] not in gone]
            heapq.heapify(self._heap)


def waiting_queue(policy: Policy) -> WaitingQueue:
    return PriorityQueue() if policy == "priority" else FcfsQueue()
