"""replica_restarted: an observed change of process_start_time_seconds, told for ten minutes; never its mere age."""

from __future__ import annotations

from runbooks.scene import Scene, Suspicion

WARMING = frozenset({"cold_prefix_cache"})
"""What every young process shows by itself: an empty prefix cache. Slow steps (cold compilation) are told on their own."""


def replica_restarted(scene: Scene) -> list[Suspicion]:
    """Replicas whose process start time was seen to move forward within the told time."""
    warm_up_ms = 1000 * scene.limits("replica_restarted", "warm_up_seconds")
    told_ms = 1000 * scene.limits("replica_restarted", "told_seconds")
    found = []
    for replica in scene.observations.replicas:
        recent = [t for t in replica.restarts_ms if scene.at_ms - told_ms < t <= scene.at_ms]
        if not recent or replica.start_times_alternate:
            continue
        evidence = [f"process_start_time_seconds moved forward {(scene.at_ms - recent[-1]) / 1000:.0f} s ago"]
        if len(recent) > 1:
            spacing = (recent[-1] - recent[0]) / 1000 / (len(recent) - 1)
            evidence.append(f"{len(recent)} restarts in the window, one every {spacing:.0f} s: it does not stay up")
        found.append(
            Suspicion(
                cause="replica_restarted",
                confidence="likely",
                places=scene.places(replica),
                since_ms=recent[-1],
                evidence=tuple(evidence),
                runner_up="replica_down" if len(recent) > 1 else None,
                separating_check="read the end of the previous process's log: planned, out of memory, or crashed"
                if len(recent) == 1
                else "read the end of the previous process's log for the reason of each exit",
                cannot_know=("why the process ended: its metrics ended with it",),
                explains=WARMING if scene.at_ms - recent[-1] <= warm_up_ms else frozenset(),
            )
        )
    return found
