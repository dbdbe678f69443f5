"""The lines of a vLLM log that carry figures or name a failure, V0 to the newest, as regular expressions.

Source: the format strings of the named versions; see `docs/memory.md`. Group names are the names of the figures in the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_N = r"-?[0-9]+(?:\.[0-9]+)?"


@dataclass(frozen=True)
class Pattern:
    """One kind of line: `kind` names it; figures are its named groups; `failure` marks a line that names why a start or run failed."""

    kind: str
    regex: re.Pattern[str]
    literal: str
    failure: bool = False

    def search(self, text: str) -> re.Match[str] | None:
        """`regex.search`, after a look for `literal`, which every match holds ('' = look with the expression at once)."""
        return self.regex.search(text) if self.literal in text else None


_LITERALS = {
    "weights": "took",
    "requested": "Requested memory",
    "requested_before_0_11": "requested GPU memory",
    "after_profiling": "Free memory after profiling",
    "profile": "Total non KV cache",
    "available_kv": "Available KV cache memory",
    "explicit_kv": "memory for KV Cache",
    "kv_tokens": "KV cache size",
    "concurrency": "Maximum concurrency",
    "graphs": "Graph capturing",
    "started": "init engine",
    "blocks": "num_gpu_blocks is",
    "v0_blocks": " blocks: ",
    "token_budget": "Chunked prefill is enabled",
    "override": "Overriding num_gpu_blocks",
    "window": "Using max model len",
    "v0_budget": "total_gpu_memory",
    "v0_ledger": "model weights take",
    "full_ledger": "Actual usage is",
    "padding": "padding layers",
    "statistics": "Running: ",
    "capturing": "Capturing ",
    "shards": "checkpoint shards",
    "free_memory_short": "on startup is less than",
    "no_blocks": "No available memory",
    "window_too_long": "To serve at least one",
    "v0_window_too_long": "is larger than the maximum number",
    "freed_while_profiling": "Error in memory profiling",
    "sampler_warmup": "warming up",
    "swap_too_large": "Too large swap",
    "window_over_model": "User-specified max_model_len",
    "budget_under_window": "is smaller than max_model_len",
    "budget_under_seats": "must be greater than or equal to max_num_seqs",
    "utilization_over_one": "must be less than 1.0",
    "heads": "must be divisible",
    "metrics_bug": "non-negative amounts",
    "kernel_resources": "out of resource",
    "sleep": "Sleep mode freed",
    "preemption": "is preempted by",
    "probe": "probe",
    "host_memory": "llocate memory",
}
"""What every line of a kind holds, for a cheap look before the expression."""


def _pattern(kind: str, regex: str, *, failure: bool = False) -> Pattern:
    return Pattern(kind, re.compile(regex), _LITERALS.get(kind, ""), failure)


FIGURES = (
    _pattern(
        "statistics",
        rf"Running: (?P<running>[0-9]+) reqs,.*?(?:Waiting|Pending): (?P<waiting>[0-9]+) reqs,.*?(?:[A-Z]+ )?KV cache usage: (?P<kv_usage_percent>{_N})%",
    ),
    _pattern(
        "version",
        r"vLLM API server version (?P<version>\S+)|Initializing an? (?:V1 )?LLM engine \(v(?P<engine_version>[^)]+)\)",
    ),
    _pattern("arguments", r"non-default args: (?P<arguments>\{.*)|^(?:args: )?Namespace\((?P<namespace>.*)\)"),
    _pattern("weights", rf"(?:Model loading took|Loading model weights took) (?P<weights_gib>{_N}) (?:GiB|GB)"),
    _pattern(
        "requested",
        rf"Initial free memory: (?P<free0_gib>{_N}) GiB; Requested memory: (?P<gpu_memory_utilization>{_N}) \(util\), (?P<requested_gib>{_N}) GiB",
    ),
    _pattern(
        "requested_before_0_11",
        rf"Initial free memory: (?P<free0_gib>{_N}) GiB, free memory: (?P<free_after_gib>{_N}) GiB, requested GPU memory: (?P<requested_gib>{_N}) GiB",
    ),
    _pattern(
        "after_profiling",
        rf"Free memory after profiling: (?P<free_after_gib>{_N}) GiB \(total\), (?P<free_within_gib>{_N}) GiB \(within requested\)",
    ),
    _pattern(
        "profile",
        rf"Total non KV cache memory: (?P<non_kv_gib>{_N}) ?GiB; torch peak memory increase: (?P<activation_peak_gib>{_N}) ?GiB; "
        rf"non-torch forward increase memory: (?P<non_torch_gib>{_N}) ?GiB; weights memory: (?P<weights_gib>{_N}) ?GiB",
    ),
    _pattern("available_kv", rf"(?<!blocks\. )Available KV cache memory: (?P<available_kv_gib>{_N}) Gi?B"),
    _pattern(
        "explicit_kv",
        rf"Initial free memory (?P<free0_gib>{_N}) GiB, reserved (?P<available_kv_gib>{_N}) ?GiB memory for KV Cache as specified by",
    ),
    _pattern("kv_tokens", r"(?:GPU|CPU|XPU) KV cache size: (?P<kv_capacity_tokens>[0-9,]+) tokens"),
    _pattern(
        "concurrency",
        rf"Maximum concurrency for (?P<max_model_len_tokens>[0-9,]+) tokens per request: (?P<concurrency>{_N})x",
    ),
    _pattern("graphs", rf"Graph capturing finished in (?P<capture_seconds>{_N}) secs?, took (?P<graphs_gib>{_N}) Gi?B"),
    _pattern("started", rf"init engine \(profile, create kv cache, warmup model\) took (?P<init_seconds>{_N}) s"),
    _pattern("blocks", r"num_gpu_blocks is: (?P<num_gpu_blocks>[0-9]+)"),
    _pattern(
        "v0_blocks",
        r"# (?:GPU|cuda|rocm|xpu|hpu) blocks: (?P<num_gpu_blocks>[0-9]+)(?:, # (?:CPU|cpu) blocks: (?P<num_cpu_blocks>[0-9]+))?",
    ),
    _pattern(
        "token_budget", r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>[0-9]+)"
    ),
    _pattern(
        "override",
        r"Overriding num_gpu_blocks=(?P<profiled_blocks>[0-9]+) with num_gpu_blocks_override=(?P<num_gpu_blocks>[0-9]+)",
    ),
    _pattern("window", r"Using max model len (?P<max_model_len_tokens>[0-9]+)"),
    _pattern(
        "v0_budget",
        rf"total_gpu_memory \((?P<total_gib>{_N})GiB\) x gpu_memory_utilization \((?P<gpu_memory_utilization>{_N})\) = (?P<budget_gib>{_N})GiB",
    ),
    _pattern(
        "v0_ledger",
        rf"model weights take (?P<weights_gib>{_N})GiB; non_torch_memory takes (?P<non_torch_gib>{_N})GiB; "
        rf"PyTorch activation peak memory takes (?P<activation_peak_gib>{_N})GiB; the rest of the memory reserved for KV Cache is (?P<available_kv_gib>{_N})GiB",
    ),
    _pattern(
        "full_ledger",
        rf"Free memory on device \((?P<free0_gib>{_N})/(?P<total_gib>{_N}) GiB\) on startup\. Desired GPU memory utilization is "
        rf"\((?P<gpu_memory_utilization>{_N}), (?P<requested_gib>{_N}) GiB\)\. Actual usage is (?P<weights_gib>{_N}) GiB for weight, "
        rf"(?P<activation_peak_gib>{_N}) GiB for peak activation, (?P<non_torch_gib>{_N}) GiB for non-torch memory, and (?P<graphs_gib>{_N}) GiB for CUDAGraph memory"
        rf"(?:.*?`--kv-cache-memory=(?P<kv_bytes_requested>-?[0-9]+)`.*?`--kv-cache-memory=(?P<kv_bytes_full>-?[0-9]+)`)?"
        rf"(?:.*?Current kv cache memory in use is (?P<available_kv_gib>{_N}) GiB)?",
    ),
    _pattern(
        "padding",
        rf"Add (?P<padding_layers>[0-9]+) padding layers, may waste at most (?P<waste_percent>{_N})% KV cache memory",
    ),
    _pattern(
        "sleep", rf"Sleep mode freed (?P<freed_gib>{_N}) GiB memory, (?P<in_use_gib>{_N}) GiB memory is still in use"
    ),
    _pattern("preemption", r"is preempted by .*?not enough KV cache space"),
    _pattern(
        "probe", r"(?:[Ll]iveness|[Ss]tartup) probe(?: failed|, will be restarted)|failed (?:liveness|startup) probe"
    ),
    _pattern(
        "capturing", r"Capturing (?:the model for )?(?:CUDA|cuda|HIP)? ?graphs?\b[^:]*: +(?P<captured_percent>[0-9]+)%"
    ),
    _pattern("shards", r"Loading safetensors checkpoint shards: +(?P<loaded_percent>[0-9]+)% Completed"),
)

FAILURES = (
    _pattern(
        "free_memory_short",
        rf"Free memory on device(?: \S{{1,20}})? \((?P<free_gib>{_N})/(?P<total_gib>{_N}) GiB\) on startup is less than desired GPU memory utilization "
        rf"\((?P<gpu_memory_utilization>{_N}), (?P<requested_gib>{_N}) GiB\)",
        failure=True,
    ),
    _pattern(
        "no_blocks",
        rf"No available memory for the cache blocks(?:\. Available KV cache memory: (?P<available_kv_gib>{_N}) GiB)?",
        failure=True,
    ),
    _pattern(
        "window_too_long",
        rf"To serve at least one request with the models?'s max seq len \((?P<max_model_len_tokens>[0-9]+)\), \(?(?P<needed_gib>{_N}) Gi?B KV cache is needed"
        rf"(?:, which is larger than the available KV cache memory \((?P<available_kv_gib>{_N}) Gi?B\)(?:.*?estimated maximum model length is (?P<estimated_max_len_tokens>[0-9]+))?)?",
        failure=True,
    ),
    _pattern(
        "v0_window_too_long",
        r"max seq len \((?P<max_model_len_tokens>[0-9]+)\) is larger than the maximum number of tokens that can be stored in KV cache \((?P<kv_capacity_tokens>[0-9]+)\)",
        failure=True,
    ),
    _pattern(
        "freed_while_profiling",
        rf"Error in memory profiling\. Initial free memory (?:(?P<initial_free_gib>{_N}) GiB|(?P<initial_free_bytes>[0-9]+)), current free memory (?:(?P<current_free_gib>{_N}) GiB|(?P<current_free_bytes>[0-9]+))",
        failure=True,
    ),
    _pattern(
        "sampler_warmup",
        r"CUDA out of memory occurred when warming up (?P<what>sampler|pooler)(?: \(task=[^)]*\))? with (?P<dummy_requests>[0-9]+) dummy requests",
        failure=True,
    ),
    _pattern(
        "swap_too_large",
        rf"Too large swap space\. (?P<swap_gib>{_N}) GiB out of the (?P<cpu_gib>{_N}) GiB total CPU memory",
        failure=True,
    ),
    _pattern(
        "window_over_model",
        r"User-specified max_model_len \((?P<asked_len>[0-9]+)\) is greater than the derived max_model_len \((?P<key>[^=]+)=(?P<derived_len>[0-9]+)",
        failure=True,
    ),
    _pattern(
        "budget_under_window",
        r"max_num_batched_tokens \((?P<max_num_batched_tokens>[0-9]+)\) is smaller than max_model_len \((?P<max_model_len_tokens>[0-9]+)\)",
        failure=True,
    ),
    _pattern(
        "budget_under_seats",
        r"max_num_batched_tokens \((?P<max_num_batched_tokens>[0-9]+)\) must be greater than or equal to max_num_seqs \((?P<max_num_seqs>[0-9]+)\)",
        failure=True,
    ),
    _pattern(
        "utilization_over_one",
        rf"GPU memory utilization must be less than 1\.0\. Got (?P<gpu_memory_utilization>{_N})",
        failure=True,
    ),
    _pattern(
        "heads",
        r"Total number of attention heads \((?P<heads>[0-9]+)\) must be divisible by tensor parallel size \((?P<tensor_parallel_size>[0-9]+)\)",
        failure=True,
    ),
    _pattern(
        "kernel_resources",
        r"out of resource: shared memory, Required: (?P<required_bytes>[0-9]+), Hardware limit: (?P<hardware_limit_bytes>[0-9]+)",
        failure=True,
    ),
    _pattern("metrics_bug", r"Counters can only be incremented by non-negative amounts", failure=True),
    _pattern(
        "host_killed",
        r"(?:OOMKilled(?![\"']?\s*[:=]\s*[Ff]alse)|[Oo]ut of memory: Killed process [0-9]+(?:.*?anon-rss:(?P<killed_rss_kib>[0-9]+)kB)?|oom-kill|"
        r"killed by the (?:kernel )?OOM[ -]killer|oom_reaper: reaped process|oom_kill event|OOM Killed|[Cc]ontainer killed due to memory usage|"
        r"exceeded (?:its|the|job) memory limit|killed due to the node running low on memory)(?:.*?[Ee]xit ?[Cc]ode\"?: *(?P<exit_code>137|-9)\b)?",
        failure=True,
    ),
    _pattern(
        "host_memory",
        r"DefaultCPUAllocator: (?:can't|not enough) allocate memory(?:.*?tried to allocate (?P<tried_bytes>[0-9]+) bytes)?|\[Errno 12\] Cannot allocate memory",
        failure=True,
    ),
    _pattern("host_python_memory", r"^MemoryError\b", failure=True),
    _pattern(
        "host_shared_memory",
        r"No space left on device.*(?:/dev/shm|shared memory)|insufficient shared memory|out of shared memory|^Bus error",
        failure=True,
    ),
    _pattern(
        "host_signal",
        r"(?i:exit ?code\"?[:=]?|exited with code|exit status|signal) *(?P<exit_code>137|-9)\b|Exited \((?P<docker_exit_code>137)\)|^Killed$|: +[0-9]+ Killed +\S|code=killed, status=9\b|"
        r"(?i:(?:killed|terminated|died|exited|crashed)[^.]{0,30}(?:signal:? ?9\b|SIGKILL))|Signal 9 \(SIGKILL\) received|Failed core proc\(s\): \{.*?: (?P<core_exit_code>-9)\b",
        failure=True,
    ),
)

GENERIC = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineCore failed to start|EngineCore encountered a fatal error|"
    r"WorkerProc hit an exception|Engine process failed to start|engine process .* died|died unexpectedly"
)
FATAL = re.compile(
    r"EngineCore encountered a fatal error|AsyncEngineDeadError|EngineDeadError|Background loop has errored"
)
OUT_OF_MEMORY = re.compile(
    r"Failed to load model - not enough GPU memory|(?:CUDA|HIP|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|Tried to allocate [0-9.]+ "
)
DRIVER_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP) [Ee]rror: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED"
)
OTHER_ENGINE = re.compile(
    r"--?mem-fraction-static|\bsglang\b|\bSGLang\b|\bggml_|\bllama_(?:kv_cache|model_load|new_context|init)|llama runner|cudaMalloc failed|"
    r"text_generation_(?:router|launcher|server)|max-batch-prefill-tokens|\[TensorRT-LLM\]|\[TRT-LLM\]|\bollama\b|lmdeploy|\btorchtune\b|stable-diffusion"
)
"""Words that only another program writes: its settings are not this engine's."""
SAYS_MEMORY = re.compile(
    r"(?i)\b(?:not enough|insufficient|out of|no (?:more )?available|run(?:s|ning)? out of|failed to allocate|cannot allocate|could not allocate|exhausted)\b[^.]{0,40}\bmemory\b|\bOOM\b"
)
"""An exception that speaks of memory in words that no known message has."""
NCCL = re.compile(r"unhandled cuda error|ncclUnhandledCudaError|[Cc]uda failure (?:2 )?'out of memory'")
"""The collective library's own failure: it may hide an allocation that the driver refused."""
EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure))(?:: |$)(?P<message>.*)"
)
VALUE_ERROR = re.compile(r"^\s*Value error, (?P<message>.*)")
FRAME = re.compile(r'File "(?P<file>[^"]+)", line [0-9]+, in (?P<function>\S+)')

PHASES = (
    (
        "weights",
        re.compile(
            r"\b(?:load_model|load_weights|create_weights|process_weights_after_loading|initialize_model|get_model|_init_model|make_layers|maybe_offload_to_cpu)\b"
        ),
    ),
    ("sampler", re.compile(r"\b(?:_dummy_sampler_run|_dummy_pooler_run)\b")),
    (
        "graphs",
        re.compile(
            r"\b(?:capture_model|_capture_cudagraphs|capture_graph|capture_begin|capture_end|_warmup_and_capture)\b"
        ),
    ),
    (
        "kv_allocation",
        re.compile(r"\b(?:initialize_kv_cache|_allocate_kv_cache_tensors|_allocate_kv_cache|initialize_from_config)\b"),
    ),
    ("profiling", re.compile(r"\b(?:profile_run|determine_available_memory|determine_num_available_blocks)\b")),
    ("warm_up", re.compile(r"\b(?:compile_or_warm_up_model|kernel_warmup)\b")),
    ("dummy_run", re.compile(r"\b_dummy_run\b")),
    ("wake_up", re.compile(r"\bwake_up\b")),
    (
        "serving",
        re.compile(r"\b(?:execute_model|sample_tokens|step|run_busy_loop|add_lora|load_adapter|activate_adapter)\b"),
    ),
)
"""Phase of the engine by the frames of a traceback; the first that any frame names wins."""

KEYWORDS = (
    "GiB",
    " GB",
    "preempt",
    "probe",
    "Limits:",
    "Requests:",
    "No space left",
    "Bus error",
    "running low",
    "SIGKILL",
    "wake_up",
    "concurrency",
    "Graph capturing",
    "init engine",
    "oom-kill",
    "signal",
    "failed to start",
    "initialization failed",
    "exception",
    "died",
    "ALLOC",
    "MEMORY",
    "allocate",
    "NCCL",
    "unhandled",
    "KV cache",
    "emory",
    "rror",
    " blocks",
    "version",
    "non-default args",
    ", line ",
    "max model len",
    "max_num_batched_tokens",
    "max_model_len",
    "Exception",
    "exit",
    "Kill",
    "out of",
    "LLM engine",
    "num_gpu_blocks",
    "KV Cache",
    "shards",
    "Namespace(",
    "Failure",
    "Exit",
    "Capturing ",
    "killed",
    "OOM",
    "oom_",
    "static",
    "ggml",
    "cudaMalloc",
    "gguf",
    "must be divisible",
    "incremented",
)
"""A line that holds none of these cannot match anything above; a test holds every pattern to that."""

REQUEST_TEXT = ("Received request ", "Added request ")
"""Lines that hold what a user wrote: whatever stands in them, the server did not say it."""
ROUTINE = (" 200 OK", *REQUEST_TEXT)
"""Lines of ordinary service: most of a long log, and never a figure or a failure."""
