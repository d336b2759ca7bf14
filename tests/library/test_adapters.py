"""Adapters in the library: pulled alone, found by name, and never taken for a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.fake_hub import FakeHub
from tests.helpers.tiny_folder import write_folder
from tests.library.test_pull import pulled
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.catalog import Library
from tidemill.library.create import create
from tidemill.library.definition.recipe import Recipe
from tidemill.library.locate import locate, locate_adapter
from tidemill.loading.hub_choice import choose
from tidemill.loading.hub_name import HubName

FILES = {"adapter_config.json", "adapter_model.safetensors"}


def test_an_adapter_of_the_hub(hub: FakeHub, library: Library) -> None:
    entry, _ = pulled("owner/adapter", library)
    assert {file.path for file in entry.manifest.files} == FILES and entry.manifest.is_adapter
    assert {path.name for path in entry.path.iterdir()} == FILES
    assert locate_adapter("owner/adapter", library=library) == entry.path
    assert library.usable() == ([], [])  # what a server serves by itself
    with pytest.raises(TidemillError, match="serve its base with --adapter NAME=owner/adapter"):
        locate("owner/adapter", library=library)
    with pytest.raises(TidemillError, match="its base with --from, and the adapter with --adapter"):
        create("poet", Recipe("owner/adapter"), library)
    assert library.names() == ("owner/adapter",)


def test_an_adapter_that_lies_here_is_referenced(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "verse"
    folder.mkdir()
    for name in (*FILES, "README.md"):
        (folder / name).write_bytes(b"{}")
    entry, _ = pulled(str(folder), library, name="verse")
    assert entry.path == folder and {file.path for file in entry.manifest.files} == FILES
    (folder / "adapter_config.json").write_bytes(b"other")
    with pytest.raises(TidemillError, match="has changed"):
        locate_adapter("verse", library=library)


def test_what_is_no_adapter(hub: FakeHub, library: Library, tmp_path: Path) -> None:
    pulled("owner/folder", library)
    for text, message in (
        ("owner/folder", "a model of the library and no adapter"),
        ("nothing", "the library has none of the name 'nothing'"),
        ("./nothing", "does not exist"),
    ):
        with pytest.raises(TidemillError, match=message) as caught:
            locate_adapter(text, tmp_path, library)
        assert caught.value.kind == ErrorKind.CONFIG and caught.value.param == "adapter"
    write_folder(tmp_path / "owner" / "folder")
    assert locate_adapter("owner/folder", tmp_path, library) == tmp_path / "owner" / "folder"


def test_a_model_is_not_looked_for_in_an_adapters_repository() -> None:
    with pytest.raises(TidemillError, match="holds an adapter, which changes a model: `tidemill"):
        choose(HubName("owner/adapter"), [*FILES, "config.json", "tokenizer.json"])
