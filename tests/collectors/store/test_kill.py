"""kill -9 in the middle of ingest, again and again: every scrape that was acknowledged is there at the next start."""

from __future__ import annotations

import itertools
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

from collectors.store.store import Store
from tests.collectors.store.exposing import Exposing, answer, listening
from tests.shared_data import ROOT

ROUNDS = 6


def test_nothing_acknowledged_is_lost_by_kill_nine(tmp_path: Path) -> None:
    count = itertools.count(1)

    def rising(connection: socket.socket, request: str) -> None:
        number = next(count)
        others = b"".join(b"m%d %d\n" % (place, number * place) for place in range(50))
        connection.sendall(answer(b"a %d\n" % number + others))

    target = Exposing()
    target.behaviour = rising
    draw = random.Random(9)
    acknowledged: dict[int, float] = {}
    with listening(target) as address:
        for _ in range(ROUNDS):
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.collectors.store.killed_store", address, str(tmp_path)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdout is not None
            lines = [child.stdout.readline().rstrip()]
            time.sleep(draw.uniform(0.05, 0.5))  # where in its work it dies is the point of the test
            child.kill()
            lines += child.stdout.read().split("\n")
            child.stdout.close()
            assert child.wait() == -9
            said = [line.split() for line in lines if line.endswith(";")]
            acknowledged |= {int(t): float(v.rstrip(";")) for t, v in said}
            store = Store.open(tmp_path)
            (samples,) = store.source().samples("a", 0, 2**52)
            held = dict(zip(samples.times_ms.tolist(), samples.values.tolist(), strict=True))
            assert acknowledged.items() <= held.items()
            assert len(held) <= len(acknowledged) + ROUNDS  # a scrape that was in flight may be there or not
            products = store.source().samples("m7", 0, 2**52)[0]
            assert products.values.tolist() == [7 * value for value in samples.values.tolist()]
            store.stop()
    assert len(acknowledged) > 20 * ROUNDS // 6
