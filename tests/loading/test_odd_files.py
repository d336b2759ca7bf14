"""A model's folder in which something else than a file has a file's name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from helpers.tiny_checkpoints import make_checkpoint

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cli.options import template_from
from tidemill.loading.checkpoint import open_model
from tidemill.loading.kind import check_model
from tidemill.loading.locate import locate
from tidemill.loading.text_side import open_text
from tidemill.offline.opened_text import OpenedText

READ = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "generation_config.json", "chat_template.jinja"),
    *("chat_template.json", "modules.json"),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("kind", ["pipe", "folder", "lost link"])
@pytest.mark.parametrize("name", READ)
def test_it_is_named_and_neither_waited_for_nor_skipped(
    checkpoint: Path, tmp_path: Path, name: str, kind: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(folder / "gone")
    with pytest.raises(TidemillError) as caught:
        check_model(folder)
        open_model(str(folder), "auto")
        open_text(folder)
    assert caught.value.kind is ErrorKind.MODEL_FILE and name in caught.value.message


def test_a_pipe_for_a_model_or_a_template(tmp_path: Path) -> None:
    for name in ("x.gguf", "x"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(TidemillError, match="no regular file"):
            check_model(tmp_path / name)
            OpenedText.open(tmp_path / name)
    with pytest.raises(TidemillError, match=r"--chat-template .* no regular file"):
        template_from(str(tmp_path / "x"), {})


def test_a_path_that_is_no_text(checkpoint: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(checkpoint, odd)
    with pytest.raises(TidemillError, match=r"caf\\udce9, is not UTF-8"):
        locate(str(odd))
    plain = tmp_path / "plain"
    plain.symlink_to(odd)
    assert locate(str(plain)) == (plain, "caf\\udce9")


def test_byte_order_marks_are_skipped(checkpoint: Path, tmp_path: Path) -> None:
    folder, template = tmp_path / "model", "{{ messages[0].content }}"
    shutil.copytree(checkpoint, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8-sig")
    config = folder / "config.json"
    config.write_text(config.read_text(encoding="utf-8"), encoding="utf-8-sig")
    check_model(folder)
    open_model(str(folder), "auto")
    assert open_text(folder).tokenizer.chat_template == template
    own = tmp_path / "own.jinja"
    own.write_text(template, encoding="utf-8-sig")
    assert template_from(str(own), {}).render([{"role": "user", "content": "x"}]) == "x"
