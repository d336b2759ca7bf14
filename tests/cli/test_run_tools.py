"""`tidemill run` with tools, schemas and thinking, as a person and as a pipe meet it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = '''
def get_weather(city: str) -> dict:
    """Get the current weather of a city.

    Args:
        city: The city
    """
    return {"temperature": 17, "condition": "rain"}
'''
ASK = "What is the weather in Paris?"


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(TOOLS)
    return str(file)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill", "run", "brook", *args]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=90)  # fmt: skip


def test_a_call_is_made_and_answered(tools: str) -> None:
    done = run(ASK, "--tools", tools, "--yes")
    assert done.returncode == 0, done.stderr
    assert 'get_weather(city="Paris")' in done.stderr
    assert "17" in done.stdout and "rain" in done.stdout


def test_nobody_there_to_allow_a_call(tools: str) -> None:
    done = run(ASK, "--tools", tools)
    assert done.returncode == 0 and "did not allow" in done.stderr and "17" not in done.stdout


def test_a_schema(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    file = tmp_path / "s.json"
    file.write_text(json.dumps(schema))
    done = run("Meet Dora. The age is 43. Name and age as JSON.", "--schema", str(file))
    assert list(json.loads(done.stdout)) == ["name", "age"], done.stderr
    file.write_text('{"not": {"minLength": 2}}')
    done = run("x", "--schema", str(file))
    assert done.returncode == 2 and "'not' cannot be enforced" in done.stderr
    for path, says in ((tmp_path / "none", "No such file"), (Path(__file__), "not valid JSON")):
        done = run("x", "--schema", str(path))
        assert done.returncode == 2 and says in done.stderr


def test_thinking_is_where_it_was_wanted() -> None:
    shown = run("What is 34 + 58?", "--think", "--thinking", "show")
    hidden = run("What is 34 + 58?", "--think")
    assert shown.stdout == hidden.stdout and "34" in shown.stderr and not hidden.stderr
    assert "think>" not in shown.stdout + shown.stderr


class Terminal:
    """A pseudo-terminal with `tidemill run` in it."""

    def __init__(self, *flags: str) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", COLUMNS="80", LINES="24")
            os.execv(sys.executable, [sys.executable, "-m", "tidemill", "run", "brook", *flags])
        self._pid, self._seen = pid, ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self._seen, re.DOTALL)):
            assert time.monotonic() < deadline, self._seen
            if select.select([self._fd], [], [], 0.2)[0]:
                self._seen += os.read(self._fd, 65536).decode(errors="replace")
        seen, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)

    def end(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def test_a_person_is_asked_first(tools: str) -> None:
    terminal = Terminal("--tools", tools)
    terminal.wait_for(">>> ")
    terminal.type(ASK + "\r")
    assert 'get_weather(city="Paris")' in terminal.wait_for(r"make this call\? \[y/N\] ")
    terminal.type("y\r")
    assert "17" in terminal.wait_for(r"temperature is 17.*>>> ")
    terminal.type("/exit\r")
    assert terminal.end() == 0


def test_thinking_folds_on_a_terminal() -> None:
    terminal = Terminal("--think")
    terminal.wait_for(">>> ")
    terminal.type("What is 34 + 58?\r")
    seen = terminal.wait_for(r"\(thought for .*92.*>>> ")
    assert "carry" not in seen
    terminal.type("/exit\r")
    assert terminal.end() == 0
