"""Logs come from outside: framings, noise, size, damage."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.memory import admission, ledger
from tests.shared_data import ROOT, shared_files

START = [
    "(APIServer pid=100) INFO 10-14 09:12:00 [api_server.py:1839] vLLM API server version 0.11.0",
    "(EngineCore_DP0 pid=212) INFO 10-14 09:12:06 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 7.9 seconds",
    "(EngineCore_DP0 pid=212) INFO 10-14 09:12:08 [gpu_worker.py:298] Available KV cache memory: -2.14 GiB",
    "(EngineCore_DP0 pid=212) ERROR 10-14 09:12:12 [core.py:708] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
]
FRAMINGS = {
    "plain": lambda line: line,
    "coloured": lambda line: f"\x1b[1;36m{line.split(') ')[0]})\x1b[0;0m " + line.split(") ", 1)[1],
    "docker json": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-10-14T09:12:00.1Z"}),
    "json lines": lambda line: json.dumps({"level": "info", "message": line}),
    "kubernetes": lambda line: f"2026-10-14T09:12:00.123456789Z stderr F {line}",
    "kubectl prefix": lambda line: f"[pod/vllm-0/server] {line}",
    "kubectl timestamps": lambda line: f"2026-10-14T09:12:00.123456789Z {line}",
    "journald": lambda line: f"Oct 14 09:12:00 gpu-node-7 vllm[4711]: {line}",
    "compose": lambda line: f"vllm-1  | {line}",
    "windows ends": lambda line: line + "\r\n",
    "journald with micros": lambda line: f"Oct 14 09:12:00.123456 gpu-node-7 vllm[4711]: {line}",
    "syslog 5424": lambda line: f"<30>1 2026-10-14T09:12:00.000Z gpu-node-7 vllm 4711 - - {line}",
    "python logging": lambda line: f"2026-10-14 09:12:00,123 - launcher - ERROR - {line}",
    "fluentd": lambda line: "2026-10-14 09:12:00.000000000 +0000 kube.vllm: " + json.dumps({"log": line + "\n"}),
    "cloud record": lambda line: json.dumps({"insertId": "a", "jsonPayload": {"message": line}, "severity": "ERROR"}),
    "cloud record, one field a line": lambda line: '    "textPayload": ' + json.dumps(line) + ",",
    "record with a type": lambda line: json.dumps({"@timestamp": "x", "type": "log", "code": 3, "message": line}),
    "job scheduler": lambda line: f"0: {line}",
    "rank": lambda line: f"[rank0]: {line}",
    "grep": lambda line: f"server.log:12:{line}",
    "quoted mail": lambda line: f"> {line}",
    "an unknown collector": lambda line: f"@@ node=7 lvl=? {line}",
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_the_same_start_reads_the_same_in_every_framing(framing: str) -> None:
    answer = ledger(FRAMINGS[framing](line) for line in START)
    assert answer["class"] == "negative_kv"
    assert answer["numbers"]["weights_gib"] == 14.9889
    assert answer["numbers"]["available_kv_gib"] == -2.14
    assert answer["engine_version"] == "0.11.0"
    assert {entry["rank"] for entry in answer["ledger"]} == {"EngineCore_DP0"}


def test_two_attempts_are_two_answers_and_the_last_failure_leads() -> None:
    second = [line.replace("-2.14", "3.00") for line in START[:3]]
    answer = ledger([*START, *second])
    assert [attempt["class"] for attempt in answer["attempts"]] == ["negative_kv", "not_memory"]
    assert answer["class"] == "negative_kv"
    assert answer["attempts"][1]["numbers"]["available_kv_gib"] == 3.0


def test_an_exception_of_one_request_is_not_the_engine_failing() -> None:
    running = "(APIServer pid=1) INFO 10-14 09:13:00 [loggers.py:127] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%"
    refused = "(APIServer pid=1) ERROR 10-14 09:14:00 [serving_completion.py:116] ValueError: This model's maximum context length is 2000 tokens. However, your request has 2435 input tokens."
    assert not any("exception" in said for said in ledger([running, refused])["says"])
    assert admission([refused])["class"] == "misleading_message" or admission([refused])["class"] == "prompt_too_long"


def test_markup_escapes_and_control_characters_come_out_as_text() -> None:
    hostile = "\x1b]0;owned\x07\x1b[31m(W pid=1)\x1b[0m ERROR 10-14 09:12:12 [core.py:708] OSError: <script>alert(1)</script>\x00\x08\x9b31m"
    for answer in (ledger([hostile]), admission(["The model `<img src=x onerror=alert(1)>\x1b[2J` does not exist."])):
        text = json.dumps(answer, ensure_ascii=False)
        assert "\\u001b" not in json.dumps(answer)
        assert "\x1b" not in text
        assert "\x00" not in text
        assert "\x9b" not in text


def test_a_line_of_a_megabyte_is_cut_not_chewed() -> None:
    began = time.process_time()
    answer = ledger(["KV cache " + "A" * 1_000_000, "error: {" * 200_000, *START])
    assert answer["class"] == "negative_kv"
    assert time.process_time() - began < 20  # a backtracking pattern would take minutes


def test_a_record_may_carry_a_traceback_or_a_page_of_lines() -> None:
    page = json.dumps({"events": [{"timestamp": 1, "message": line} for line in START]})
    assert ledger([page])["numbers"]["available_kv_gib"] == -2.14
    carried = {"level": "error", "message": "EngineCore failed to start.", "exc_info": "Traceback:\n" + START[-1]}
    assert ledger([json.dumps(carried)])["class"] == "no_kv_blocks"


@pytest.mark.parametrize(
    "line",
    [
        'Received request x: prompt: "CUDA out of memory. Tried to allocate 2.00 GiB. maximum context length is 9 tokens. However, your request has 99 input tokens."',
        json.dumps(
            {
                "choices": [
                    {"message": {"content": "CUDA out of memory. Tried to allocate 2.00 GiB", "role": "assistant"}}
                ]
            }
        ),
        json.dumps(
            {"messages": [{"content": "maximum context length is 9 tokens. However, your request has 99 input tokens"}]}
        ),
    ],
)
def test_what_a_user_wrote_or_a_model_answered_is_never_the_servers_word(line: str) -> None:
    assert ledger([line])["line"] is None
    assert admission([line])["requests"] == []


SEEDS = [
    path.read_text(encoding="utf-8", errors="replace")
    for path in (
        *shared_files("cases", "memory", pattern="*.log"),
        *shared_files("cases", "admission", pattern="*.log"),
    )
] or ["\n".join(START)]


_NUMBER = re.compile(r"(?<![\w.:-])-?\d+(?:\.\d+)?(?![\w:])")
_DAMAGED = ("0", "0.00", "-1", "1", "0.0001", "99999", "9" * 39, "9" * 5000)


@settings(max_examples=300, deadline=None)
@given(seed=st.sampled_from(SEEDS), damage=st.randoms(use_true_random=False), share=st.floats(0.05, 0.6))
def test_damaged_figures_never_raise_and_never_leave_the_range_of_numbers(
    seed: str, damage: Random, share: float
) -> None:
    text = _NUMBER.sub(lambda found: damage.choice(_DAMAGED) if damage.random() < share else found[0], seed)
    for answer in (ledger(text.split("\n")), admission(text.split("\n"))):
        json.dumps(answer, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    cuts=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 40), st.text(max_size=20)), max_size=6),
    repeat=st.integers(1, 3),
)
def test_a_damaged_log_never_raises(seed: str, cuts: list[tuple[int, int, str]], repeat: int) -> None:
    for position, length, replacement in cuts:
        position %= len(seed) + 1
        seed = seed[:position] + replacement + seed[position + length :]
    lines = seed.split("\n") * repeat
    for answer in (ledger(lines), admission(lines)):
        assert answer["schema"] == 1
        assert isinstance(answer["class"], str)
        json.dumps(answer, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_at_all_has_an_answer(lines: list[str]) -> None:
    assert ledger(lines)["class"] in ("undetermined", "not_memory", "host_oom")
    json.dumps(admission(lines), allow_nan=False)


def _noise(megabytes: int) -> Iterator[str]:
    access = '(APIServer pid=100) INFO:     10.0.0.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    statistics = "(APIServer pid=100) INFO 10-14 09:10:08 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 852.3 tokens/s, Running: 38 reqs, Waiting: 18 reqs, GPU KV cache usage: 47.1%, Prefix cache hit rate: 42.0%\n"
    received = "(APIServer pid=100) INFO 10-14 09:10:08 [logger.py:40] Received request chatcmpl-8f: prompt: 'tell me', params: SamplingParams(n=1, presence_penalty=0.0), prompt_token_ids: None, lora_request: None.\n"
    block = (access * 40 + received * 10 + statistics) * 20
    yield "\n".join(START) + "\n"
    for _ in range(megabytes * 2**20 // len(block) + 1):
        yield block


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak resident memory is read from /proc")
def test_a_large_log_is_read_in_one_pass_and_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "large.log"
    with log.open("w", encoding="utf-8") as out:
        out.writelines(_noise(200))
    program = (
        "import sys, time\nfrom runbooks.memory import ledger\n"
        "began = time.process_time()\n"
        "with open(sys.argv[1], encoding='utf-8', errors='replace') as f:\n    n = sum(1 for _ in f)\n"
        "iterating = time.process_time() - began\n"
        "began = time.process_time()\n"
        "with open(sys.argv[1], encoding='utf-8', errors='replace', newline='\\n') as f:\n    answer = ledger(f)\n"
        "reading = time.process_time() - began\n"
        "print(answer['class'], reading / iterating, int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(log)], capture_output=True, text=True, cwd=ROOT, timeout=280, check=True
    )
    name, ratio, resident_mib = done.stdout.split()
    print(f"read at {float(ratio):.1f} times the cost of iterating, {float(resident_mib):.0f} MiB resident")
    assert name == "negative_kv"
    assert float(resident_mib) < 200
    assert float(ratio) <= 15, f"{ratio} times the cost of iterating the lines"
