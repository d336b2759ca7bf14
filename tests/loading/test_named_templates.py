"""A model with several chat templates: the one for a request is chosen as transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_text import tokenizer_json
from transformers import PreTrainedTokenizerFast

from tidemill.base.errors import TidemillError
from tidemill.cli.options import open_text
from tidemill.convert.folder.side_files import copy_side_files
from tidemill.grammar.schema import prepared
from tidemill.text.answering import ChatSide
from tidemill.text.prompt import render_prompt
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import tool_use

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
DEFAULT = "plain" + TURNS + "{{ image_token }}"
TOOL_USE = (
    "{% for t in tools %}{{ t.function.name }}{% endfor %}"
    + TURNS
    + "{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}>{% endfor %}{% endfor %}"
)
RAG = "{% for d in documents or [] %}{{ d.text }}{% endfor %}" + TURNS
MESSAGES = [{"role": "user", "content": "Hello there"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
LISTED = [
    {"name": "default", "template": DEFAULT},
    {"name": "tool_use", "template": TOOL_USE},
    {"name": "rag", "template": RAG},
]

FOLDERS: dict[str, tuple[Any, dict[str, str]]] = {
    "listed": (LISTED, {}),
    "files": (None, {"chat_template": DEFAULT, "additional_chat_templates/tool_use": TOOL_USE}),
    "files before the list": (LISTED, {"chat_template": "from file" + TURNS}),
    "one": (DEFAULT, {}),
}


def folder(path: Path, settings: Any, files: dict[str, str]) -> Path:
    path.mkdir()
    (path / "tokenizer.json").write_bytes(tokenizer_json())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "image_token": "<|user|>"}
    if settings is not None:
        config["chat_template"] = settings
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, template in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / f"{name}.jinja").write_text(template)
    return path


def ours(template: ChatTemplate, side: ChatSide, tools: Any) -> str:
    return render_prompt(template, side, MESSAGES, PromptOptions(), tool_use(tools, None, None))


@pytest.mark.parametrize("case", FOLDERS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_folders(case: str, tools: Any, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", *FOLDERS[case])
    theirs = PreTrainedTokenizerFast.from_pretrained(path).apply_chat_template(
        MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True
    )
    opened = open_text(str(path))
    side = ChatSide.of(opened.tokenizer, opened.template, prepared)
    if tools and case in ("files before the list", "one"):
        with pytest.raises(
            TidemillError, match="does not support tools"
        ):  # transformers leaves them out
            ours(opened.template, side, tools)
        assert "look" not in theirs
    else:
        assert ours(opened.template, side, tools) == theirs


def test_a_default_that_stands_alone_is_kept_beside_files(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", DEFAULT, {"additional_chat_templates/tool_use": TOOL_USE})
    opened = open_text(str(path))
    side = ChatSide.of(opened.tokenizer, opened.template, prepared)
    assert ours(opened.template, side, None).startswith("plain")
    assert ours(opened.template, side, TOOLS).startswith("look")


def test_a_template_for_tools_alone() -> None:
    template = ChatTemplate(None, tool_use=TOOL_USE)
    assert template.exists
    assert template.chosen(tools=True).render(MESSAGES, TOOLS).startswith("look")
    with pytest.raises(TidemillError, match="no chat template for conversations without tools"):
        template.chosen(tools=False).render(MESSAGES)


def test_each_template_has_its_own_abilities(tmp_path: Path) -> None:
    opened = open_text(str(folder(tmp_path / "m", LISTED, {})))
    side = ChatSide.of(opened.tokenizer, opened.template, prepared)
    assert side.tool_abilities.tools and side.tool_abilities.calls
    assert not side.abilities.tools and not side.abilities.calls
    assert "renders tools" in side.described()
    one = open_text(str(folder(tmp_path / "one", TOOL_USE, {})))
    alone = ChatSide.of(one.tokenizer, one.template, prepared)
    assert alone.abilities is alone.tool_abilities


def test_a_template_by_its_name(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", LISTED, {})
    opened = open_text(str(path), "rag")
    assert opened.template.source == RAG
    assert opened.template.chosen(tools=True) is opened.template
    file = tmp_path / "own.jinja"
    file.write_text(TURNS)
    assert open_text(str(path), str(file)).template.source == TURNS
    with pytest.raises(TidemillError, match="none"):
        open_text(str(path), "none")


def test_copies_of_a_folder_keep_them(tmp_path: Path) -> None:
    source = folder(tmp_path / "m", None, FOLDERS["files"][1])
    (source / "config.json").write_text("{}")
    (tmp_path / "out").mkdir()
    copy_side_files(source, tmp_path / "out", None)
    assert open_text(str(tmp_path / "out")).named_templates == {"tool_use": TOOL_USE}
