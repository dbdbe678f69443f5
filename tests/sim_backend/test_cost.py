"""Step times behave like a roofline, and the ledger gives the pool that the documents' example gives."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_backend.cost import ProfileError, StepCost, load_profile, parse_profile, profile_names, recompute_or_swap
from sim_backend.scheduler import SchedulerConfigError


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_loads_cites_its_sources_and_has_a_pool(name: str) -> None:
    profile = load_profile(name)
    assert profile.sources
    config = profile.scheduler_config()
    assert config.num_gpu_blocks > config.max_model_len // config.block_size  # one request of the full window fits


def test_the_worked_example_of_the_ledger() -> None:
    """32 layers, 8 KV heads of 128, BF16: 131,072 B a token; about 54.66 GiB are about 27,985 blocks of 16."""
    profile = load_profile("llama-3-8b-a100")
    assert profile.kv_bytes_per_token == 131072
    available = profile.ledger_gib()["available_kv"]
    assert profile.num_gpu_blocks(16) == pytest.approx(available / 54.66 * 27985, rel=0.001)
    assert profile.scheduler_config(num_gpu_blocks_override=160).num_gpu_blocks == 160


def test_more_kv_heads_than_gpus_are_split_and_fewer_are_copied() -> None:
    raw = load_profile("llama-3.1-70b-4xh100")
    assert raw.kv_bytes_per_token == 2 * 80 * 2 * 128 * 2
    from dataclasses import replace

    wide = replace(raw, device=replace(raw.device, count=16))
    assert wide.kv_bytes_per_token == 2 * 80 * 1 * 128 * 2


def test_a_decode_is_bound_by_memory_and_a_prefill_by_compute() -> None:
    cost = StepCost(load_profile("llama-3-8b-a100"))
    one, sixteen = cost.seconds(1, 1, 1000, 1999), cost.seconds(16, 16, 16_000, 31_984)
    assert sixteen < 1.3 * one
    small, large = cost.seconds(1024, 1, 1024, 1024**2), cost.seconds(2048, 1, 2048, 2048**2)
    assert large == pytest.approx(2 * small, rel=0.1)


def test_eager_launch_and_a_throttled_device_cost_more() -> None:
    profile = load_profile("llama-3-8b-a100")
    graph, eager = StepCost(profile), StepCost(profile, enforce_eager=True)
    assert eager.seconds(8, 8, 8000, 15_992) > graph.seconds(8, 8, 8000, 15_992)
    graph.slowdown = 3.0
    assert graph.seconds(8, 8, 8000, 15_992) == 3 * StepCost(profile).seconds(8, 8, 8000, 15_992)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8192), st.integers(1, 256), st.integers(0, 500_000))
def test_a_step_is_never_free_and_more_work_never_faster(tokens: int, sequences: int, context: int) -> None:
    cost = StepCost(load_profile("llama-3.1-70b-4xh100"))
    seconds = cost.seconds(tokens, sequences, context, 2 * context)
    assert seconds > cost.idle > 0
    assert cost.seconds(tokens + 1, sequences, context, 2 * context) >= seconds
    assert cost.seconds(tokens, sequences, context + 1000, 2 * context) >= seconds


def test_recompute_against_swap() -> None:
    profile = load_profile("llama-3-8b-a100")
    recompute, swap, cheaper = recompute_or_swap(1000, profile)
    assert swap == pytest.approx(2 * 1000 * 131072 / 32e9 + 0.001)
    assert cheaper == ("recompute" if recompute <= swap else "swap")
    assert recompute_or_swap(16, profile, swap_overhead_seconds=1.0)[2] == "recompute"


def test_what_is_wrong_with_a_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no profile 'ghost'"):
        load_profile("ghost")
    broken = tmp_path / "p.toml"
    broken.write_text("title = ")
    with pytest.raises(ProfileError, match=r"p\.toml"):
        load_profile(str(broken))
    with pytest.raises(SchedulerConfigError):
        load_profile("llama-3-8b-a100").scheduler_config(max_num_batched_tokens=8)
    import tomllib

    text = Path(__file__).parents[2].joinpath("sim_backend/profiles/llama-3-8b-a100.toml").read_text()
    full = parse_profile("x", tomllib.loads(text.replace("device_gib = 79.15", "device_gib = 16")))
    with pytest.raises(ProfileError, match="no available memory for the cache blocks"):
        full.num_gpu_blocks(16)
