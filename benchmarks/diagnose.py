"""CPU of `pagewatch diagnose` (start included) on 8 replicas x 30 minutes, as a multiple of `python -c 'import pandas'`.

    python -m benchmarks.diagnose [--replicas 8] [--minutes 30]

The yardstick is a start that every data script pays. Limit: 3. Prints one JSON line; exit 1 above the limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 3.0
RUNS = 3


def cpu_seconds(command: list[str]) -> float:
    """User and system CPU of the cheapest of a few runs of a command."""
    costs = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--minutes", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        capsule = str(Path(folder) / "fleet.capsule")
        make = ["sim", "run", "--scenario", "healthy", "--replicas", str(asked.replicas)]
        make += ["--duration", f"{asked.minutes}m", "--out", capsule]
        subprocess.run([sys.executable, "-m", "cli", *make], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        diagnose = cpu_seconds([sys.executable, "-m", "cli", "diagnose", "--source", capsule, "--json"])
    yardstick = cpu_seconds([sys.executable, "-c", "import pandas"])
    ratio = diagnose / yardstick
    print(
        json.dumps(
            {
                "benchmark": "diagnose",
                "replicas": asked.replicas,
                "minutes": asked.minutes,
                "diagnose_cpu_seconds": round(diagnose, 3),
                "import_pandas_cpu_seconds": round(yardstick, 3),
                "ratio": round(ratio, 2),
                "limit": LIMIT,
            }
        )
    )
    sys.exit(0 if ratio <= LIMIT else 1)


if __name__ == "__main__":
    main()
