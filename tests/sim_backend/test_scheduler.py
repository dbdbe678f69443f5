"""The rules that the recorded traces do not cover, and the invariants under random load."""

from random import Random

import pytest

from sim_backend.kv.identity import ExtraKeys, SegmentChain
from sim_backend.kv.pool import BrokenInvariant
from sim_backend.kv.table import BadBlockTable
from sim_backend.request import Request, Status, planned_finish
from sim_backend.scheduler import Scheduler, SchedulerConfig, SchedulerConfigError


def request(name: str, prompt: int = 8, output: int = 4, *, seed: int | None = None, **more: object) -> Request:
    number = seed if seed is not None else hash(name)
    extra = ExtraKeys(lora_id=int(str(more.get("lora_id", 0))))
    return Request(
        name,
        prompt_len=prompt,
        finish=planned_finish(prompt, output, 4096, None),
        chain=SegmentChain([(number, prompt)], hash((name, 1)), 16, extra),
        **more,  # type: ignore[arg-type]
    )


def names(requests: object) -> list[str]:
    return [item.id for item in requests]  # type: ignore[attr-defined]


def test_no_more_adapters_than_max_loras_in_a_step_and_plain_requests_pass() -> None:
    scheduler = Scheduler(SchedulerConfig(100, max_loras=1))
    for name, adapter in (("a", 1), ("b", 2), ("c", 1), ("d", 0)):
        scheduler.add(request(name, lora_id=adapter))
    assert names(scheduler.schedule().new) == ["a", "c", "d"]
    assert names(scheduler.waiting) == ["b"]


def test_two_set_aside_requests_swap_places_every_step() -> None:
    scheduler = Scheduler(SchedulerConfig(100))
    scheduler.add(request("a", needs_grammar=True))
    scheduler.add(request("b", needs_grammar=True))
    scheduler.add(request("c"))
    step = scheduler.schedule()
    assert names(step.new) == ["c"]
    assert names(scheduler.waiting) == ["b", "a"]
    scheduler.update(step)
    scheduler.update(scheduler.schedule())
    assert names(scheduler.waiting) == ["a", "b"]
    scheduler.requests["b"].grammar_ready()
    assert names(scheduler.schedule().new) == ["b"]


def test_a_grammar_still_missing_blocks_nobody_behind_it() -> None:
    scheduler = Scheduler(SchedulerConfig(100))
    scheduler.add(request("a", needs_grammar=True))
    assert scheduler.has_requests
    step = scheduler.schedule()
    assert not step.scheduled
    scheduler.update(step)
    stats = scheduler.take_stats()
    assert (stats.num_running, stats.num_waiting, stats.prefix.requests) == (0, 1, 0)


def test_prompt_logprobs_are_not_looked_up() -> None:
    scheduler = Scheduler(SchedulerConfig(100))
    scheduler.add(request("a", 64, 1, seed=5))
    scheduler.update(scheduler.schedule())
    scheduler.add(request("b", 64, 1, seed=5, skip_prefix_lookup=True))
    scheduler.take_stats()
    step = scheduler.schedule()
    assert step.admitted_tokens == {step.new[0]: 0}
    assert scheduler.take_stats().prefix.requests == 0


def test_an_abort_is_followed_by_one_step_that_refreshes_the_gauges() -> None:
    scheduler = Scheduler(SchedulerConfig(100))
    scheduler.add(request("a"))
    scheduler.update(scheduler.schedule())
    assert names(scheduler.abort(["a", "ghost", "a"])) == ["a"]
    assert scheduler.has_requests
    step = scheduler.schedule()
    assert step.total_tokens == 0
    scheduler.update(step)
    assert scheduler.take_stats().kv_cache_usage_ratio == 0
    assert not scheduler.has_requests


def test_a_live_id_is_not_taken_twice() -> None:
    scheduler = Scheduler(SchedulerConfig(100))
    scheduler.add(request("a"))
    with pytest.raises(ValueError, match="already"):
        scheduler.add(request("a"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "at least max_num_seqs"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 4096}, "chunked prefill"),
        ({"policy": "lifo"}, "fcfs or priority"),
    ],
)
def test_what_the_real_engine_refuses_at_start(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(SchedulerConfigError, match=complaint):
        SchedulerConfig(100, **settings).validate()  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
def test_random_load_keeps_every_book(seed: int) -> None:
    """Thousands of steps with aborts, salts, adapters and grammars: blocks, seats, budget and requests are all accounted for."""
    random = Random(seed)
    config = SchedulerConfig(
        num_gpu_blocks=random.choice([12, 30, 120]),
        max_num_seqs=random.choice([2, 8, 32]),
        max_num_batched_tokens=random.choice([32, 256]),
        max_model_len=random.choice([128, 400]),
        policy=random.choice(["fcfs", "priority"]),
        enable_prefix_caching=random.random() < 0.7,
        long_prefill_token_threshold=random.choice([0, 0, 24]),
        max_loras=random.choice([0, 2]),
    )
    scheduler = Scheduler(config)
    arrived = finished = aborted = 0
    produced = {"tokens": 0}
    longest_fit = min(config.max_model_len - 1, (config.num_gpu_blocks - 1) * 16 - 20)
    for number in range(1500):
        if number < 1200 and random.random() < 0.25:
            prompt = random.randrange(1, max(2, longest_fit))
            output = random.randrange(1, 30)
            extra = ExtraKeys(
                lora_id=random.randrange(4) if config.max_loras else 0, cache_salt=random.choice([None, None, "x"])
            )
            segments = [(random.randrange(5), min(prompt, 40)), (number + 100, max(0, prompt - 40))]
            item = Request(
                f"r{number}",
                prompt_len=prompt,
                finish=planned_finish(
                    prompt, output, min(config.max_model_len, (config.num_gpu_blocks - 1) * 16), None
                ),
                chain=SegmentChain(segments, -number - 1, 16, extra),
                arrival_time=number,
                priority=random.randrange(3),
                lora_id=extra.lora_id,
                needs_grammar=random.random() < 0.05,
            )
            scheduler.add(item, number)
            arrived += 1
        for item in list(scheduler.requests.values()):
            if item.status is Status.WAITING_FOR_GRAMMAR and random.random() < 0.3:
                item.grammar_ready()
            if random.random() < 0.004:
                aborted += len(scheduler.abort([item.id]))
        before = {item: item.num_tokens for item in scheduler.requests.values()}
        step = scheduler.schedule(number)
        assert sum(step.scheduled.values()) <= config.max_num_batched_tokens
        assert all(count > 0 for count in step.scheduled.values())
        assert not (step.preempted and (step.new or step.resumed))
        scheduler.check()
        sampled = scheduler.update(step)
        produced["tokens"] += len(sampled)
        assert all(item.num_tokens == before[item] + 1 for item in sampled)
        finished += sum(1 for item in sampled if item.finish_reason is not None)
        scheduler.check()
        stats = scheduler.take_stats()
        assert stats.num_running + stats.num_waiting + finished + aborted == arrived
        assert stats.prefix.hits <= stats.prefix.queries
        if not scheduler.running:
            assert stats.kv_cache_usage_ratio == 0
    assert finished > 20
    assert (
        scheduler.pool.num_free + sum(len(set(r.blocks)) for r in scheduler.requests.values())
        >= scheduler.pool.usable_blocks
    )


def test_a_broken_book_is_noticed() -> None:
    scheduler = Scheduler(SchedulerConfig(100))
    scheduler.add(request("a", 40))
    scheduler.add(request("b", 40))
    scheduler.update(scheduler.schedule())
    scheduler.check()
    first, second = scheduler.running
    first.blocks, second.blocks = second.blocks[:1], [*first.blocks, *second.blocks[1:]]
    with pytest.raises(BadBlockTable, match="need 3 blocks"):
        scheduler.check()
    first.blocks, second.blocks = second.blocks[:3], [*first.blocks, *second.blocks[3:]]
    scheduler.check()
    scheduler.running.append(first)
    with pytest.raises(BrokenInvariant, match="in two"):
        scheduler.check()
