"""`tidemill rank`: waits for an engine, computes a part of its model, and ends when it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tidemill import LLM, SamplingParams
from tidemill.transfer.link import KEY_VARIABLE

BROOK = str(Path(tidemill.__file__).parent / "assets" / "brook")
COMMAND = [sys.executable, "-m", "tidemill", "rank", BROOK, "--listen", "127.0.0.1:0"]


def test_an_engine_computes_with_a_command_on_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a key for tests alone")
    process = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process:
        try:
            waiting = process.stderr.readline()
            address = waiting.rpartition(" ")[2].strip()
            with LLM(BROOK, pipeline_peers=address, kv_memory=2**23, threads=1) as llm:
                [output] = llm.generate(["Once"], SamplingParams(max_tokens=3, ignore_eos=True))
            assert len(output.outputs[0].token_ids) == 3
        finally:
            process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(20) == 0
    assert "waiting for an engine" in waiting
    assert "layers" in rest


def test_without_a_key_it_does_not_start() -> None:
    environment = {name: text for name, text in os.environ.items() if name != KEY_VARIABLE}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert KEY_VARIABLE in done.stderr


def test_a_model_that_is_not_there_is_said_at_once() -> None:
    command = [("./none/such" if part == BROOK else part) for part in COMMAND]
    environment = {**os.environ, KEY_VARIABLE: "a key for tests alone"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0 and "none/such" in done.stderr
    assert "waiting" not in done.stderr
