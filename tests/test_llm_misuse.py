"""The offline API in clumsy and hostile hands: wrong types, threads, forks, an interrupted call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tidemill import LLM, ErrorKind, SamplingParams, TidemillError


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, kv_memory=32 * 2**20) as loaded:
        yield loaded


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


@pytest.mark.parametrize(
    "prompt",
    [None, 5, "", [""], [[]], [1.5], [True, False], [-1], [10**9], [[[1]]], [1, "a"], b"abc",
     {"a": 1}, {1, 2}, "a\ud800", [None]],
)  # fmt: skip
def test_what_is_no_prompt(llm: LLM, prompt: Any) -> None:
    with pytest.raises(TidemillError) as caught:
        llm.generate(prompt, _greedy(2))
    assert caught.value.kind is ErrorKind.BAD_REQUEST


def test_unusual_prompts_that_are_right(llm: LLM) -> None:
    assert llm.generate([], _greedy(2)) == []
    ids = llm.tokenizer.encode("The tide")
    [expected] = llm.generate(ids, _greedy(3))
    for prompt in (tuple(ids), np.array(ids), [np.int64(i) for i in ids]):
        assert llm.generate(prompt, _greedy(3))[0].text == expected.text
    assert len(llm.generate((p for p in ("a", "b")), _greedy(2))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"max_tokens": 3}, "x", ["x"], [None]])
def test_what_is_no_sampling_parameters(llm: LLM, params: Any) -> None:
    with pytest.raises(TidemillError) as caught:
        llm.generate("a", params)
    assert caught.value.param == "params"


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        (None, {}, "messages"),
        ([], {}, "messages"),
        ([[]], {}, "messages"),
        ("hi", {}, "messages"),
        ([5], {}, "messages[0]"),
        ([{"role": "user"}], {}, "messages[0].content"),
        ([{"role": "user", "content": 5}], {}, "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "messages[0].content"),
        ([{"role": "alien", "content": "x"}], {}, "messages[0].role"),
        ([{"role": "user", "content": "x", "mood": "good"}], {}, "messages[0].mood"),
        ([{"role": "user", "content": "x"}], {"foo": 1}, "chat_template_kwargs.foo"),
    ],
)
def test_nothing_in_a_conversation_is_dropped(
    llm: LLM, messages: Any, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(TidemillError) as caught:
        llm.chat(messages, _greedy(2), **options)
    assert caught.value.param == param and caught.value.kind is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize("model", [5, b"brook", "", "a" * 300, "no\0body"])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(TidemillError) as caught:
        LLM(model)
    assert caught.value.param == "model"


def test_threads_may_share_a_model(llm: LLM) -> None:
    prompts = [f"Number {i}" for i in range(4)]
    expected = [llm.generate(p, _greedy(20))[0].text for p in prompts]
    answers: dict[str, str] = {}

    def ask(prompt: str) -> None:
        answers[prompt] = llm.generate(prompt, _greedy(20))[0].text

    threads = [threading.Thread(target=ask, args=(p,), daemon=True) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [answers.get(p) for p in prompts] == expected


def test_a_call_within_a_stream(llm: LLM) -> None:
    whole = "".join(llm.stream("The tide", _greedy(30)))
    stream = llm.stream("The tide", _greedy(30))
    text = next(stream)
    assert llm.generate("The mill", _greedy(3))[0].text
    assert text + "".join(stream) == whole


def test_an_interrupted_call_leaves_nothing_behind(llm: LLM) -> None:
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a"] * 8, _greedy(4000))
    deadline = time.monotonic() + 10
    while True:
        llm.generate("b", _greedy(1))  # figures come with outputs
        if llm.stats.running == llm.stats.blocks_used == 0:
            break
        assert time.monotonic() < deadline, llm.stats


def test_a_closed_model_says_so() -> None:
    llm = LLM(threads=1, kv_memory=2**24)
    llm.close()
    llm.close()
    with pytest.raises(TidemillError, match="stopped"):
        llm.generate("x", _greedy(1))


_FORK = """
import os, sys
from tidemill import LLM, TidemillError
llm = LLM(threads=1, kv_memory=2**24)
if os.fork() == 0:
    try:
        llm.generate("x")
    except TidemillError as error:
        os.write(1, error.message.encode())
    os._exit(0)
os.wait()
"""
_LEFT_OPEN = """
from tidemill import LLM
llm = LLM(threads=1, kv_memory=2**24)
stream = llm.stream("x")
next(stream)
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_a_fork_is_told_that_it_has_no_engine() -> None:
    assert "fork" in _run(_FORK).stdout


def test_a_model_left_open_ends_quietly() -> None:
    done = _run(_LEFT_OPEN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_NO_THREADS = """
import resource
from tidemill import LLM, TidemillError
import tidemill.backends.native
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    LLM(threads=1024, kv_memory=2**22)
except TidemillError as error:
    print(error.kind, error.param)
"""


def test_threads_that_cannot_be_started_are_an_error() -> None:
    done = _run(_NO_THREADS)
    assert (done.returncode, done.stdout) == (0, "resource threads\n"), done.stderr
