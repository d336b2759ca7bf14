"""Folders of adapters: what is in them has a name, and what has gone has none."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from helpers.tiny_adapter import write_adapter

from tidemill.server.host.adapter_folders import AdapterFolders, adapters_in, path_of
from tidemill.server.host.slot import Hosted, Loader, Slot


def slot_of(folder: Path) -> Slot:
    return Slot(Hosted("tiny", adapter_folder=str(folder)), cast(Loader, None))


def run(slot: Slot, *changes: Callable[[], object]) -> list[list[str]]:
    """Names after a first look, and after each change and another look."""

    async def look() -> list[list[str]]:
        folders = AdapterFolders(lambda: [slot], lambda name: name == "tiny")
        await folders.look()
        found = [sorted(slot.adapters)]
        for change in changes:
            change()
            await folders.look()
            found.append(sorted(slot.adapters))
        await folders.close()
        return found

    return asyncio.run(look())


def test_what_is_an_adapter(tmp_path: Path) -> None:
    write_adapter(tmp_path / "one")
    write_adapter(tmp_path / ".hidden")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "adapter_config.json").write_text("{}")  # its tensors are yet to come
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "adapter_model.safetensors").write_text("")
    (tmp_path / "two.gguf").write_text("")
    (tmp_path / "readme.txt").write_text("")
    found = adapters_in(tmp_path)
    assert {name: path_of(name, files) for name, files in found.items()} == {
        "one": "one", "two": "two.gguf",
    }  # fmt: skip


def test_names_come_and_go(tmp_path: Path) -> None:
    write_adapter(tmp_path / "one")
    slot = slot_of(tmp_path)
    assert run(
        slot,
        lambda: write_adapter(tmp_path / "two"),
        lambda: shutil.rmtree(tmp_path / "one"),
        lambda: None,
    ) == [["one"], ["one", "two"], ["two"], ["two"]]


def test_one_that_has_changed_is_another(tmp_path: Path) -> None:
    write_adapter(tmp_path / "one")
    slot = slot_of(tmp_path)
    ids: list[int] = []

    def note() -> None:
        ids.append(slot.adapters.id_of("one"))

    def change() -> None:
        note()
        write_adapter(tmp_path / "one", lora_alpha=12345)

    run(slot, note, change, note)
    assert ids[0] == ids[1] != ids[2]


def test_names_of_others_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("tiny", "given", "-wrong"):
        write_adapter(tmp_path / name)
    slot = slot_of(tmp_path)
    slot.adapters.declare("given", "/elsewhere")
    assert run(slot, lambda: shutil.rmtree(tmp_path / "given")) == [["given"], ["given"]]
    for why in ("the name of a model", "the name of another adapter", "cannot have this name"):
        assert sum(why in record.getMessage() for record in caplog.records) == 1


def test_a_folder_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    write_adapter(tmp_path / "all" / "one")
    slot = slot_of(tmp_path / "all")
    away, back = tmp_path / "away", tmp_path / "all"
    names = run(slot, lambda: back.rename(away), lambda: away.rename(back))
    assert names == [["one"]] * 3
