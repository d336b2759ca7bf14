"""The commands of `tidemill run`'s prompt, and how a turn is read."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill import LLM, SamplingParams
from tidemill.cli.conversation import Conversation
from tidemill.cli.reading import read_turn
from tidemill.cli.screen import PlainScreen
from tidemill.cli.slash import is_command, run_command
from tidemill.generation.preset import NO_PRESET, Preset


def _open(model: str | None = None, preset: Preset = NO_PRESET) -> LLM:
    llm = LLM(model, threads=1, kv_memory=32 * 2**20, max_num_seqs=1)
    llm.preset = preset
    return llm


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with _open() as opened:
        yield opened


@pytest.fixture
def chat(llm: LLM) -> Conversation:
    return Conversation(llm, SamplingParams(max_tokens=8), PlainScreen, lambda call: False)


@pytest.fixture
def says(chat: Conversation, capsys: pytest.CaptureFixture[str]) -> Any:
    def type_in(text: str) -> str:
        capsys.readouterr()
        assert is_command(text) and run_command(chat, text)
        return capsys.readouterr().out.strip()

    return type_in


def test_parameters(chat: Conversation, says: Any) -> None:
    says("/set parameter temperature 0.5")
    says("/set num_predict 3")
    says("/set stop User:")
    says('/set stop "END"')
    assert chat.params == SamplingParams(temperature=0.5, max_tokens=3, stop=("User:", "END"))
    assert "max_tokens 3" in says("/show parameters") and "top_p" not in says("/show parameters")
    says("/set temperature default")
    assert chat.params.temperature is None and "(the model's)" in says("/show parameters")
    for wrong, told in (
        ("/set temperature 101", "between 0 and 100"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set seed", "needs a value"),
        ("/set num_ctx 9", "--max-model-len"),
        ("/set", "it takes"),
        ("/show all", "/show takes info"),
        ("/nonsense", "no command /nonsense"),
    ):
        assert told in says(wrong)
    assert chat.params.max_tokens == 3


def test_system_format_thinking_and_history(chat: Conversation, says: Any) -> None:
    chat.answer("Hello")
    says("/set system Be brief.")
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    assert says("/system") == "Be brief." == says("/show system")
    says("/set nohistory")
    chat.answer("Hello")
    chat.answer("Hello")
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    says("/set format json")
    chat.params = SamplingParams(max_tokens=200)
    chat.answer("Extract the city as JSON: Ann lives in Paris.")
    assert isinstance(json.loads(chat.messages[-1]["content"]), dict)
    says("/set noformat")
    says("/set nothink")
    assert chat.options == {"enable_thinking": False}
    assert "Paris" in says("/show messages") and "4096 tokens" in says("/show")
    assert "im_start" in says("/show template")


def test_save_and_load(chat: Conversation, says: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "talk", tmp_path / "other"
    other.write_text("{}")
    says("/system Be brief.")
    says("/set top_k 4")
    chat.answer("Who are you?")
    kept = list(chat.messages)
    assert "3 messages" in says(f"/save {path}") and path.stat().st_mode & 0o77 == 0
    says("/clear")
    says("/set top_k 9")
    assert "3 messages" in says(f"/load {path}")
    assert chat.messages == kept and chat.params.top_k == 4 and chat.system == "Be brief."
    assert "saved" in says(f"/save {path}"), "a conversation may be overwritten"
    for wrong in (f"/save {other}", f"/load {other}"):
        assert "holds no conversation" in says(wrong)
    assert other.read_text() == "{}"
    assert "needs a file" in says("/save") and "No such file" in says(f"/save {tmp_path}/a/b")


def test_another_model(chat: Conversation, says: Any) -> None:
    before = chat.llm
    assert "cannot be loaded" in says("/load brook")
    closed: list[LLM] = []
    chat.llm = first = _open()
    close, first.close = first.close, lambda: closed.append(first)  # type: ignore[method-assign]
    chat.open_model = lambda model: _open(model, Preset(system="Be brief."))
    chat.answer("Hello")
    assert "no such file" in says("/load /no/such/model") and chat.llm is first
    assert "brook is loaded" in says("/load brook") and chat.llm is not first
    assert closed == [first] and chat.messages == []
    assert says("/show system") == "Be brief."
    close()
    chat.llm.close()
    chat.llm = before


def test_what_is_a_command() -> None:
    assert is_command("/nonsense") and is_command("/set x 1") and is_command("/?")
    assert not any(map(is_command, ("/usr/bin is full", "a /set", "", "//", "/a.txt")))


@pytest.mark.parametrize(
    ("lines", "turn"),
    [
        (["one"], "one"),
        (["a paste\nof lines"], "a paste\nof lines"),
        (["one \\", "two"], "one \ntwo"),
        (['"""', "a", "", "/b", '"""'], "a\n\n/b"),
        (['"""a"""'], "a"),
        (['/set system """You', 'are"""'], "/set system You\nare"),
        (['/system """x', "y", '"""'], "/system x\ny"),
        (['print("""'], 'print("""'),
        (['"""a', None], "a"),
        ([None], None),
    ],
)
def test_turns(monkeypatch: pytest.MonkeyPatch, lines: list[str | None], turn: str | None) -> None:
    typed = iter(lines)

    def input(prompt: str) -> str:
        line = next(typed)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr(builtins, "input", input)
    assert read_turn() == turn
    assert next(typed, "end") == "end"
