"""The lines that an engine of a profile prints while it starts - or fails to, when somebody else holds the memory."""

from __future__ import annotations

from datetime import UTC, datetime

from sim_backend.cost import Profile
from sim_backend.scheduler import SchedulerConfig

LOAD_GIB_PER_SECOND = 2.2


def startup_log(
    profile: Profile, config: SchedulerConfig, at_seconds: float, *, ranks: int = 1, held_gib: float = 0.0
) -> list[str]:
    """Start-up lines at `at_seconds` (epoch), in the real format. `held_gib` is what another process holds on the device: when the free memory
    is below the requested share, the log ends in that failure."""
    ledger = profile.ledger_gib()
    stamp = datetime.fromtimestamp(at_seconds, UTC).strftime("%m-%d %H:%M:%S")
    core = f"(EngineCore_DP0 pid=312) INFO {stamp}"
    error = f"(EngineCore_DP0 pid=312) ERROR {stamp}"
    lines = [
        f"(APIServer pid=1) INFO {stamp} [api_server.py:1839] vLLM API server version 0.11.0",
        f"(APIServer pid=1) INFO {stamp} [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens={config.max_num_batched_tokens}.",
    ]
    total = profile.memory.device_gib
    if total and total - held_gib < ledger["requested"]:
        free = total - held_gib
        return [
            *lines,
            f"{error} [core.py:708] EngineCore failed to start.",
            f"{error} [core.py:708] ValueError: Free memory on device ({free:.2f}/{total:.2f} GiB) on startup is less than desired GPU memory "
            f"utilization ({profile.memory.utilization_ratio}, {ledger['requested']:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory "
            "used by other processes.",
            f"(APIServer pid=1) ERROR {stamp} [core_client.py:564] RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {'EngineCore_DP0': 1}",
        ]
    tokens = config.num_gpu_blocks * config.block_size
    concurrency = config.num_gpu_blocks / -(-config.max_model_len // config.block_size)
    seconds = ledger["weights"] / LOAD_GIB_PER_SECOND
    lines += [
        f"{core} [gpu_model_runner.py:2653] Model loading took {ledger['weights']:.4f} GiB and {seconds:.6f} seconds",
        f"{core} [gpu_worker.py:298] Available KV cache memory: {ledger['available_kv']:.2f} GiB",
        f"{core} [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens",
        f"{core} [kv_cache_utils.py:1091] Maximum concurrency for {config.max_model_len:,} tokens per request: {concurrency:.2f}x",
    ]
    if ledger["graphs"]:
        lines.append(
            f"{core} [gpu_model_runner.py:3480] Graph capturing finished in 21 secs, took {ledger['graphs']:.2f} GiB"
        )
    lines.append(
        f"{core} [core.py:210] init engine (profile, create kv cache, warmup model) took {18 + seconds:.2f} seconds"
    )
    shown = config.num_gpu_blocks * ranks
    lines.append(
        f"(APIServer pid=1) INFO {stamp} [loggers.py:147] Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: {shown}"
    )
    return lines
