"""A grammar that crashes the compiler ends only the sandbox process, and is rejected by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from helpers.faults import fault_environment

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar import sandbox as sandboxes
from tidemill.grammar.messages import VocabularyShape
from tidemill.grammar.sandbox import GrammarSandbox

SHAPE = VocabularyShape(300, ((3, b"<|end|>"), (4, b"<|call|>")), (3,))
FINE = Grammar("json_schema", '{"type":"object","properties":{"a":{"type":"string"}}}', "p")

# llguidance 1.9 recurses without end at these. As a part of Lark text, where our own reading of
# schemas does not come between.
RECURSES = {"const": -9223372036854775808}
ALSO = [
    {"enum": [1, -9223372036854775808]},
    {"type": "integer", "minimum": -1e30, "maximum": -1e20},
    {"type": "array", "items": {"anyOf": [{"type": "string"}, RECURSES]}},
]


def lark(*schemas: Any) -> Grammar:
    return Grammar("lark", "start: " + " | ".join(f"%json {json.dumps(s)}" for s in schemas), "g")


@pytest.fixture
def sandbox() -> Iterator[GrammarSandbox]:
    one = GrammarSandbox()
    one.set_vocabulary(SHAPE)
    yield one
    one.close()


@pytest.fixture
def faulty(sandbox: GrammarSandbox, monkeypatch: pytest.MonkeyPatch) -> GrammarSandbox:
    """A sandbox whose compiler fails as a grammar's text says; see helpers/faulty."""
    for name, value in fault_environment({"sandbox": 0}).items():
        monkeypatch.setenv(name, value)
    return sandbox


def rejected(sandbox: GrammarSandbox, grammar: Grammar) -> TidemillError:
    with pytest.raises(TidemillError) as caught:
        sandbox.attempt(grammar)
    return caught.value


def test_a_sound_grammar_comes_back_as_it_is_to_be_compiled(sandbox: GrammarSandbox) -> None:
    tried = sandbox.attempt(FINE)
    assert "json_schema" in tried.source
    assert tried.heap_bytes > 10_000


@pytest.mark.parametrize("schema", [RECURSES, *ALSO], ids=str)
def test_endless_recursion_is_rejected_and_the_next_goes_on(
    sandbox: GrammarSandbox, schema: Any
) -> None:
    error = rejected(sandbox, lark({"type": "string"}, schema))
    assert error.kind is ErrorKind.BAD_REQUEST and error.param == "g"
    assert "stack" in error.message and "schema 2 in it" in error.message
    pid = sandbox.pid
    sandbox.attempt(FINE)
    assert sandbox.pid == pid, "a fork of it died, not the process itself"


def test_the_keyword_of_a_schema_is_named(faulty: GrammarSandbox) -> None:
    properties: dict[str, Any] = {f"p{i}": {"type": "string"} for i in range(30)}
    properties["p17"] = {"type": "array", "items": {"type": "string", "pattern": "poison-segv"}}
    source = json.dumps({"type": "object", "properties": properties})
    error = rejected(faulty, Grammar("json_schema", source, "rf.schema"))
    assert error.param == "rf.schema.properties.p17.items.pattern"
    assert error.message.startswith(error.param)


def test_what_ended_a_process_is_not_tried_again(
    sandbox: GrammarSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rejected(sandbox, lark(RECURSES))
    asked: list[object] = []
    monkeypatch.setattr(sandboxes, "send", lambda connection, message: asked.append(message))
    again = rejected(sandbox, Grammar("lark", lark(RECURSES).source, "other"))
    assert not asked and again.message == first.message.replace("g ", "other ", 1)
    assert again.param == "other"


@pytest.mark.parametrize(
    ("poison", "words"), [("poison-cpu", "processor time"), ("poison-memory", "MiB to compile")]
)
def test_time_and_memory_are_bounded(faulty: GrammarSandbox, poison: str, words: str) -> None:
    error = rejected(faulty, Grammar("regex", poison, "guided_regex"))
    assert error.param == "guided_regex" and words in error.message
    faulty.attempt(FINE)


def _stopped(process: psutil.Process) -> psutil.Process:
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    return process


def test_a_sandbox_that_says_nothing_is_replaced(
    sandbox: GrammarSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "WALL_SECONDS", 3.0)
    sandbox.attempt(FINE)
    before = sandbox.pid
    assert before is not None
    # The parent first: it makes children. A signal takes effect later than it is sent.
    for child in _stopped(psutil.Process(before)).children():
        _stopped(child)
    sandbox.attempt(FINE)
    assert sandbox.pid != before and not psutil.pid_exists(before)


def test_one_that_is_killed_is_no_fault_of_the_grammar(sandbox: GrammarSandbox) -> None:
    for victim in ("worker", "itself"):
        sandbox.attempt(FINE)
        assert sandbox.pid is not None
        pid = psutil.Process(sandbox.pid).children()[0].pid if victim == "worker" else sandbox.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid))
        sandbox.attempt(FINE)


def test_two_ends_without_a_fault_are_told_as_that(
    sandbox: GrammarSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes.sys, "executable", "/bin/false")
    error = rejected(sandbox, FINE)
    assert error.kind is ErrorKind.UNAVAILABLE and error.retryable


def test_it_ends_with_its_owner_however_that_ends() -> None:
    source = (
        "import sys, time; from tidemill.grammar.sandbox import *\n"
        "from tidemill.grammar.messages import VocabularyShape\n"
        "s = GrammarSandbox(); s.set_vocabulary(VocabularyShape(9, (), (2,)))\n"
        "s.attempt(Grammar('regex', 'a+')); print(s.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen((sys.executable, "-c", source), stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        pids = [pid, *(child.pid for child in psutil.Process(pid).children())]
        assert len(pids) == 2
        owner.kill()
    wait_until(lambda: not any(map(alive, pids)))


def test_closing_ends_the_process_and_what_comes_later_fails(sandbox: GrammarSandbox) -> None:
    sandbox.attempt(FINE)
    pid = sandbox.pid
    assert pid is not None
    sandbox.close()
    assert not alive(pid)
    assert rejected(sandbox, FINE).kind is ErrorKind.UNAVAILABLE


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
