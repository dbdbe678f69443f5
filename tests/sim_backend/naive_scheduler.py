"""The scheduler as its rules read, one plain loop per rule: lists, no hashes, no counters kept beside the lists, nothing shared with the simulator.

Slow and obvious on purpose: the differential tests hold the simulator's scheduler to it where no recorded trace reaches. Letters and numbers name the
rules of the 0.11.0 scheduler as the facts list them (C scheduling, D blocks, E preemption, F prefix cache, G pool, H finish).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

STOP = 50001


def token(seed: int, index: int) -> int:
    return (seed * 1000003 + index * 7919) % 50000


class Sequence:
    """One request. Beyond the fields of a trace: `lora_id`, `prompt_logprobs`, `grammar_step` (its grammar is compiled from that step on)."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.id: str = spec["id"]
        self.prompt = [token(seed, i) for seed, length in spec["prompt_segments"] for i in range(length)]
        self.output: list[int] = []
        self.computed = 0
        self.blocks: list[int] = []
        self.state = "new"
        self.cached_at_first_admission = -1
        self.unreported_preemptions = 0
        self.lora = spec.get("lora_id", 0)

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output

    def rank(self) -> tuple[int, float]:
        return self.spec["priority"], self.spec["arrival_time"]


class NaiveScheduler:
    """Steps of one engine core; `step` answers in the fields of a recorded trace, block ids included."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.size: int = config["block_size"]
        self.free = list(range(1, config["num_gpu_blocks"]))  # G1, F7
        self.owners: Counter[int] = Counter()
        self.content: dict[int, tuple[Any, ...]] = {}  # block -> everything that must be equal; in the order of storing
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.alive: dict[str, Sequence] = {}
        self.unreported_finish = False

    # -- one step --

    def step(self, number: int, arrivals: list[dict[str, Any]], aborts: list[str]) -> dict[str, Any]:
        fields: dict[str, Any] = {"step": number}
        for spec in arrivals:
            self.alive[spec["id"]] = sequence = Sequence(spec)
            self.waiting.append(sequence)
        if arrivals:
            fields["arrived"] = [spec["id"] for spec in arrivals]
        aborted = [self.end(self.alive[name]) for name in aborts if name in self.alive]
        if aborted:
            fields["aborted"] = [sequence.id for sequence in aborted]
        fields["has_requests"] = bool(self.running or self.waiting or self.unreported_finish)  # B2
        self.scheduled: dict[str, int] = {}
        self.preempted: list[Sequence] = []
        self.admitted: list[tuple[Sequence, bool, int]] = []
        self.lookups = {"requests": 0, "queries": 0, "hits": 0}
        if fields["has_requests"]:
            self.unreported_finish = False
            budget = self.serve_running(self.config["max_num_batched_tokens"])  # C1
            if not self.preempted:  # C6, E6
                self.admit(budget, number)
            for name, count in self.scheduled.items():  # C13, also for a victim that stays in the map (E3)
                self.alive[name].computed += count
        fields |= {
            "scheduled": dict(self.scheduled),
            "total_scheduled_tokens": sum(self.scheduled.values()),
            "new": [sequence.id for sequence, again, _ in self.admitted if not again],
            "resumed": [sequence.id for sequence, again, _ in self.admitted if again],
            "preempted": [sequence.id for sequence in self.preempted],
            "num_cached_tokens": {sequence.id: cached for sequence, _, cached in self.admitted},
        }
        if not self.scheduled:
            fields["idle"] = True
        waiting = self.waiting if self.config["policy"] == "fcfs" else sorted(self.waiting, key=Sequence.rank)
        fields |= {
            "running": [sequence.id for sequence in self.running],
            "waiting": [sequence.id for sequence in waiting],
            "free_blocks_after_schedule": len(self.free),
            "num_blocks": {sequence.id: len(sequence.blocks) for sequence in self.running},
            "block_ids": {sequence.id: list(sequence.blocks) for sequence in self.running},
        }
        return fields | self.outcome(aborted)

    def serve_running(self, budget: int) -> int:
        """C2-C5. An index into the list as it is: when a victim stood before it, the request that slides into its place is passed over."""
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = len(sequence.known) - sequence.computed
            if 0 < self.config["long_prefill_token_threshold"] < count:
                count = self.config["long_prefill_token_threshold"]
            count = min(count, budget, self.config["max_model_len"] - 1 - sequence.computed)  # C3
            if count > 0:  # C4
                while not self.give(sequence, count, []):
                    victim = self.preempt()
                    if victim is sequence:
                        return budget
                self.scheduled[sequence.id] = count
                budget -= count
            index += 1
        return budget

    def preempt(self) -> Sequence:
        by_priority = self.config["policy"] == "priority"
        victim = max(self.running, key=Sequence.rank) if by_priority else self.running[-1]  # E2, E3
        self.running.remove(victim)
        self.release(victim)  # E4
        victim.computed = 0
        victim.state = "preempted"
        victim.unreported_preemptions += 1
        self.waiting.insert(0, victim)  # E5
        self.preempted.append(victim)
        return victim

    def admit(self, budget: int, number: int) -> None:
        threshold, fcfs = self.config["long_prefill_token_threshold"], self.config["policy"] == "fcfs"
        set_aside: list[Sequence] = []
        while self.waiting and budget > 0 and len(self.running) < self.config["max_num_seqs"]:
            head = self.waiting[0] if fcfs else min(self.waiting, key=Sequence.rank)  # A5, C7
            count = 0
            blocked = number < head.spec.get("grammar_step", 0) or self.one_adapter_too_many(head)
            if not blocked:
                hits = self.lookup(head) if not head.computed else []  # C9
                computed = head.computed + len(hits) * self.size
                count = len(head.known) - computed  # C10
                if 0 < threshold < count:
                    count = threshold
                blocked = count > budget and not self.config["enable_chunked_prefill"]
            if blocked:  # C8
                self.waiting.remove(head)
                set_aside.append(head)
                continue
            count = min(count, budget)
            if not self.give(head, count, hits):
                break  # C7
            self.waiting.remove(head)
            self.running.append(head)  # C11
            self.admitted.append((head, head.state == "preempted", computed))
            head.state = "running"
            head.computed = computed
            if head.cached_at_first_admission < 0:
                head.cached_at_first_admission = computed  # E8
            self.scheduled[head.id] = count
            budget -= count
        self.waiting[:0] = reversed(set_aside)  # C8; under priority the order in the list means nothing

    def one_adapter_too_many(self, head: Sequence) -> bool:
        limit = self.config.get("max_loras", 0)
        used = {self.alive[name].lora for name in self.scheduled} - {0}
        return bool(limit and head.lora and head.lora not in used and len(used) == limit)

    # -- blocks --

    def key(self, sequence: Sequence, blocks: int) -> tuple[Any, ...]:
        """F3, F4: a block is its tokens and everything before them, the salt and the adapter."""
        return (sequence.spec["cache_salt"], sequence.lora, *sequence.known[: blocks * self.size])

    def lookup(self, sequence: Sequence) -> list[int]:
        if not self.config["enable_prefix_caching"] or sequence.spec.get("prompt_logprobs"):
            return []  # F6
        hits: list[int] = []
        for blocks in range(1, (len(sequence.known) - 1) // self.size + 1):  # F1
            key = self.key(sequence, blocks)
            found = [block for block, content in self.content.items() if content == key]
            if not found:
                break  # F2
            hits.append(found[0])  # D6
        self.lookups["requests"] += 1
        self.lookups["queries"] += len(sequence.known)
        self.lookups["hits"] += len(hits) * self.size
        return hits

    def give(self, sequence: Sequence, count: int, hits: list[int]) -> bool:
        reached = sequence.computed + len(hits) * self.size + count
        slots = min(reached, self.config["max_model_len"])  # D1
        needed = -(-slots // self.size) - len(sequence.blocks) - len(hits)
        if needed + sum(hit in self.free for hit in hits) > len(self.free):  # D2, D3
            return False
        for hit in hits:  # D4
            if hit in self.free:
                self.free.remove(hit)
            self.owners[hit] += 1
        sequence.blocks += hits
        for _ in range(needed):
            block = self.free.pop(0)
            self.content.pop(block, None)
            self.owners[block] = 1
            sequence.blocks.append(block)
        if self.config["enable_prefix_caching"]:
            for index in range(min(reached, len(sequence.known)) // self.size):  # D5
                if sequence.blocks[index] not in self.content:
                    self.content[sequence.blocks[index]] = self.key(sequence, index + 1)
        return True

    def release(self, sequence: Sequence) -> None:
        for block in reversed(sequence.blocks):  # F7
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free.append(block)
        sequence.blocks = []

    def end(self, sequence: Sequence) -> Sequence:
        self.release(sequence)
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        del self.alive[sequence.id]
        self.unreported_finish = True
        return sequence

    # -- after the model --

    def outcome(self, aborted: list[Sequence]) -> dict[str, Any]:
        sampled: list[str] = []
        finished: list[dict[str, Any]] = [
            {"id": sequence.id, "reason": "abort", "num_output_tokens": len(sequence.output)} for sequence in aborted
        ]
        prompt_tokens = preemptions = 0
        for name in self.scheduled:
            sequence = self.alive[name]
            if sequence.computed != len(sequence.known):
                continue  # C14
            place = len(sequence.output)
            stops = place == sequence.spec["stop_at_output_index"]
            sequence.output.append(STOP if stops else token(sequence.spec["output_seed"], place))
            sampled.append(name)
            prompt_tokens += len(sequence.prompt) if place == 0 else 0
            preemptions += sequence.unreported_preemptions
            sequence.unreported_preemptions = 0
            reason = None
            if len(sequence.known) >= self.config["max_model_len"] or place + 1 >= sequence.spec["max_tokens"]:
                reason = "length"  # H1
            elif stops:
                reason = "stop"
            if reason:
                self.end(sequence)  # H4
                ended = {"id": name, "reason": reason, "num_output_tokens": place + 1}
                finished.append({**ended, "num_cached_tokens": sequence.cached_at_first_admission})
        usable = self.config["num_gpu_blocks"] - 1
        return {
            "sampled": sampled,
            "finished": finished,
            "num_running": len(self.running),
            "num_waiting": len(self.waiting),
            "kv_cache_usage": 1.0 - len(self.free) / usable,  # G2
            "prefix_cache_stats": self.lookups,
            "free_blocks": len(self.free),
            "iteration": {
                "num_prompt_tokens": prompt_tokens,
                "num_generation_tokens": len(sampled),
                "num_preempted_reqs": preemptions,
            },
        }
