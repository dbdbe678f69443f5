"""Ledgers printed in the engine's own formats read back; solved fixes fit and one unit more does not."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.memory import ledger
from runbooks.memory.kv_arithmetic import (
    GIB,
    Attention,
    blocks_in,
    concurrency,
    kv_bytes_per_token,
    longest_window,
    roundest_between,
)
from runbooks.memory.patterns import DRIVER_OUT_OF_MEMORY, FAILURES, FATAL, FIGURES, GENERIC, KEYWORDS, OUT_OF_MEMORY
from runbooks.memory.predict import ConfigError, Flags, ModelShape, plan, predict, smallest_utilization

FEW = settings(max_examples=150, deadline=None)


@st.composite
def starts(draw: st.DrawFn) -> dict[str, float]:
    attention = Attention(
        layers=draw(st.integers(8, 80)),
        kv_heads=draw(st.sampled_from([1, 2, 4, 8, 16])),
        head_size=draw(st.sampled_from([64, 80, 96, 128])),
    )
    total = draw(st.sampled_from([15.77, 22.05, 23.64, 44.53, 79.15, 139.81]))
    utilization = draw(st.sampled_from([0.5, 0.8, 0.85, 0.9, 0.92]))
    requested = total * utilization
    weights = requested * draw(st.floats(0.1, 0.6))
    peak = requested * draw(st.floats(0.005, 0.15))
    non_torch = draw(st.floats(0.02, 0.8))
    kv = requested - weights - peak - non_torch
    per_token = kv_bytes_per_token(attention)
    blocks = blocks_in(kv * GIB, per_token, 16)
    return {
        "total": total,
        "utilization": utilization,
        "requested": requested,
        "weights": weights,
        "peak": peak,
        "non_torch": non_torch,
        "kv": kv,
        "per_token": per_token,
        "blocks": blocks,
    }


@FEW
@given(
    start=starts(),
    window=st.sampled_from([2048, 8192, 32768]),
    prefix=st.sampled_from(["", "(EngineCore_DP0 pid=7) ", "(Worker_TP1 pid=9) "]),
)
def test_a_printed_ledger_reads_back(start: dict[str, float], window: int, prefix: str) -> None:
    blocks, tokens = int(start["blocks"]), int(start["blocks"]) * 16
    lines = [
        "(APIServer pid=1) INFO 10-14 09:12:00 [api_server.py:1839] vLLM API server version 0.11.0",
        f"{prefix}DEBUG 10-14 09:12:06 [gpu_worker.py:262] Initial free memory: {start['total']:.2f} GiB; Requested memory: {start['utilization']:.2f} (util), {start['requested']:.2f} GiB",
        f"{prefix}INFO 10-14 09:12:08 [gpu_model_runner.py:2653] Model loading took {start['weights']:.4f} GiB and 7.3 seconds",
        f"{prefix}DEBUG 10-14 09:12:10 [gpu_worker.py:284] Memory profiling takes 4.21 seconds. Total non KV cache memory: 1.00GiB; torch peak memory increase: "
        f"{start['peak']:.2f}GiB; non-torch forward increase memory: {start['non_torch']:.2f}GiB; weights memory: {start['weights']:.2f}GiB.",
        f"{prefix}INFO 10-14 09:12:12 [gpu_worker.py:298] Available KV cache memory: {start['kv']:.2f} GiB",
        f"{prefix}INFO 10-14 09:12:14 [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens",
        f"{prefix}INFO 10-14 09:12:16 [kv_cache_utils.py:1091] Maximum concurrency for {window:,} tokens per request: {concurrency(blocks, window, 16):.2f}x",
        f"(APIServer pid=1) INFO 10-14 09:12:22 [loggers.py:145] Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: {blocks}",
    ]
    answer = ledger(lines)
    numbers = answer["numbers"]
    assert answer["class"] == "not_memory"
    assert answer["identity"]["holds"] is True
    assert numbers["num_gpu_blocks"] == blocks
    assert numbers["kv_capacity_tokens"] == tokens
    assert numbers["usable_kv_tokens"] == tokens - 16
    for name, true in (
        ("weights_gib", "weights"),
        ("activation_peak_gib", "peak"),
        ("non_torch_gib", "non_torch"),
        ("available_kv_gib", "kv"),
        ("requested_gib", "requested"),
    ):
        assert numbers[name] == pytest.approx(start[true], abs=0.0051)
    assert numbers["total_gib"] == pytest.approx(start["total"], rel=0.002)
    half = 0.005 * GIB / max(tokens, 1)
    assert numbers["bytes_per_token"] == pytest.approx(
        start["per_token"], abs=2 * half + start["per_token"] * 16 / max(tokens, 1) + 1
    )


@FEW
@given(start=starts(), window=st.integers(1, 400_000))
def test_the_longest_window_fits_and_one_block_more_does_not(start: dict[str, float], window: int) -> None:
    per_token = int(start["per_token"])
    flags = Flags(start["total"], start["utilization"], max_model_len=window)
    figures = {
        "weights_gib": start["weights"],
        "bytes_per_token": per_token,
        "activation_peak_gib": start["peak"],
        "non_torch_gib": start["non_torch"],
    }
    longest = predict(flags, **figures).longest_window
    fitting = Flags(start["total"], start["utilization"], max_model_len=longest)
    too_long = Flags(start["total"], start["utilization"], max_model_len=longest + 16)
    assert longest == 0 or predict(fitting, **figures).fits
    assert not predict(too_long, **figures).fits
    share = smallest_utilization(flags, **figures)
    if share is not None:
        assert predict(Flags(start["total"], share, max_model_len=window), **figures).fits
        if share > 0.01:
            assert not predict(Flags(start["total"], round(share - 0.01, 2), max_model_len=window), **figures).fits


@FEW
@given(
    window=st.integers(1000, 2_000_000),
    per_token=st.sampled_from([24576, 57344, 131072, 163840]),
    share=st.floats(0.05, 0.95),
)
def test_the_fix_for_a_window_that_is_too_long_fits(window: int, per_token: int, share: float) -> None:
    available = round(window * per_token * share / GIB, 2)
    needed = window * per_token / GIB
    if available <= 0.02 or needed - available < 0.02:
        return
    longest = longest_window(available * GIB, per_token, 16)
    text = (
        f"ValueError: To serve at least one request with the models's max seq len ({window}), ({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({available:.2f} GiB). Based on the available memory, the estimated maximum model length is {longest}. Try increasing `gpu_memory_utilization`"
    )
    answer = ledger([text])
    assert answer["class"] == "kv_window_too_long"
    (most,) = [
        fix["change"]["max_model_len_at_most"] for fix in answer["fixes"] if "max_model_len_at_most" in fix["change"]
    ]
    assert most * per_token <= available * GIB
    assert (most + 16) * per_token > available * GIB


def test_every_pattern_holds_a_keyword_that_lets_its_line_through() -> None:
    named = [(pattern.kind, pattern.regex) for pattern in (*FIGURES, *FAILURES)]
    named += [
        ("generic", GENERIC),
        ("fatal", FATAL),
        ("out of memory", OUT_OF_MEMORY),
        ("driver", DRIVER_OUT_OF_MEMORY),
    ]
    for kind, regex in named:
        for alternative in _alternatives(regex.pattern):
            literal = (
                alternative.replace("\\(", "(")
                .replace("\\)", ")")
                .replace("\\.", ".")
                .replace("\\[", "[")
                .replace("\\]", "]")
                .replace("\\{", "{")
                .replace("\\}", "}")
            )
            assert any(keyword in literal for keyword in KEYWORDS), (kind, alternative)


def _alternatives(regex: str) -> list[str]:
    """The top-level alternatives of a pattern."""
    depth, parts, current = 0, [], ""
    for index, character in enumerate(regex):
        escaped = index > 0 and regex[index - 1] == "\\"
        depth += (character == "(" and not escaped) - (character == ")" and not escaped)
        if character == "|" and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]


def test_roundest_number_of_an_interval() -> None:
    assert roundest_between(131066.7, 131094.6) == 131072
    assert roundest_between(57340.2, 57387.1) == 57344
    assert roundest_between(10.2, 10.8) is None
    assert roundest_between(7, 7) == 7


def test_a_worked_example_of_the_engine() -> None:
    llama = Attention(layers=32, kv_heads=8, head_size=128)
    assert kv_bytes_per_token(llama) == 131072
    assert kv_bytes_per_token(llama, tensor_parallel=16) == 16384  # heads are replicated below one
    assert kv_bytes_per_token(llama, kv_dtype="fp8") == 65536
    blocks = blocks_in(54.66 * GIB, 131072, 16, layers=32)
    assert (blocks, blocks * 16, (blocks - 1) * 16) == (27985, 447_760, 447_744)
    latent = Attention(layers=61, kv_heads=128, head_size=192, kv_lora_rank=512, rope_head_dim=64)
    assert kv_bytes_per_token(latent) == kv_bytes_per_token(latent, tensor_parallel=8) == 576 * 2 * 61
    assert kv_bytes_per_token(latent, kv_dtype="fp8_ds_mla") == 656 * 61


LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def test_weights_of_a_known_model_are_predicted() -> None:
    shape = ModelShape.from_config(LLAMA_8B)
    assert shape.weights_bytes() / GIB == pytest.approx(14.96, abs=0.03)  # the engine measures 14.99
    assert plan(
        shape, Flags(79.15, max_model_len=131072), measured_activation_peak_gib=1.24, measured_non_torch_gib=0.06
    ).num_gpu_blocks == pytest.approx(28132, rel=0.003)
    assert math.isclose(shape.weights_bytes(2), shape.weights_bytes() / 2, abs_tol=1)
    quantised = ModelShape.from_config({**LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 4}})
    assert quantised.weights_bytes() < 0.45 * shape.weights_bytes()


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_config_without_a_field_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        ModelShape.from_config({name: value for name, value in LLAMA_8B.items() if name != field})
    with pytest.raises(ConfigError, match=field):
        ModelShape.from_config({**LLAMA_8B, field: "many"})


@settings(max_examples=200, deadline=None)
@given(
    total=st.sampled_from([15.77, 23.64, 47.54, 79.15]),
    share=st.integers(30, 95),
    held=st.floats(0.4, 40.0),
    missing=st.floats(0.01, 6.0),
    seats=st.sampled_from([64, 1024, 4096]),
    budget=st.sampled_from([2048, 8192, 16384]),
)
def test_no_fix_is_one_that_another_check_of_the_start_would_refuse(
    total: float, share: int, held: float, missing: float, seats: int, budget: int
) -> None:
    free, requested = max(total - held, 1.0), total * share / 100
    answer = ledger(
        [
            f"(APIServer pid=1) INFO 10-14 09:12:00 [utils.py:233] non-default args: {{'gpu_memory_utilization': {share / 100}, 'max_num_seqs': {seats}}}",
            f"(APIServer pid=1) INFO 10-14 09:12:00 [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens={budget}.",
            f"(E pid=2) DEBUG 10-14 09:12:00 [gpu_worker.py:262] Initial free memory: {free:.2f} GiB; Requested memory: {share / 100:.2f} (util), {requested:.2f} GiB",
            f"(E pid=2) INFO 10-14 09:12:00 [gpu_worker.py:298] Available KV cache memory: {-missing:.2f} GiB",
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        ]
    )
    for fix in answer["fixes"]:
        wanted = fix["change"].get("gpu_memory_utilization_at_least")
        if wanted is not None:
            assert wanted <= 0.95
            assert wanted * total <= free + 0.03
            assert (wanted - share / 100) * total > missing - 0.02
        tokens = fix["change"].get("max_num_batched_tokens")
        assert tokens is None or seats <= tokens < budget


@pytest.mark.parametrize(("free", "total", "most"), [(23.2, 80.0, 0.29), (46.4, 80.0, 0.58), (19.77, 22.05, 0.89)])
def test_a_share_that_is_a_hundredth_stays_one(free: float, total: float, most: float) -> None:
    line = f"ValueError: Free memory on device ({free}/{total} GiB) on startup is less than desired GPU memory utilization (0.9, {0.9 * total:.2f} GiB)."
    assert ledger([line])["fixes"][0]["change"] == {"gpu_memory_utilization_at_most": most}
