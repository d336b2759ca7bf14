"""docs/deployment.md: its tables are those of the settings, and its examples are valid."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.deployment.deployment import Deployment

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "deployment.md"


def test_the_tables_are_up_to_date() -> None:
    assert runpy.run_path(str(ROOT / ".ci" / "settings.py"))["main"]() == 0


def test_a_changed_table_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "settings.py"))
    changed = tmp_path / "page.md"
    changed.write_text(PAGE.read_text().replace("| `port` |", "| `prot` |"))
    monkeypatch.setitem(script["main"].__globals__, "PAGE", changed)
    assert script["main"]() == 1


def test_problems_of_the_example_are_as_shown(
    problems: Callable[..., list[str]], folder: Path
) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "coder.gguf").write_bytes(b"")
    page = PAGE.read_text()
    example = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]
    wrong = example.replace("temperature = 0.6", 'temperature = "warm"')
    wrong = wrong.replace("max_model_len", "context")
    shown = re.findall(r"^tidemill\.toml(:\d+:.*)$", page, re.MULTILINE)
    assert [line.removeprefix("t.toml") for line in problems(wrong)] == shown


def test_examples_are_valid(deploy: Callable[..., Deployment], folder: Path) -> None:
    (folder / "models").mkdir()
    for name in ("models/coder.gguf", "chat-1", "chat-2"):
        (folder / name).write_bytes(b"")
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert deploy(example).models
