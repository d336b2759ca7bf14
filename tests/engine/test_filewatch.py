"""Files that are mapped and change: what ends an engine, what is said, and what is nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.files import OpenedFile, opened_files
from tidemill.contract.config import EngineConfig
from tidemill.engine.filewatch import FileWatch
from tidemill.engine.identity import different_files
from tidemill.executor.inproc import open_inproc
from tidemill.loading.jsonfile import map_bytes, read_bytes
from tidemill.loading.locate import bundled_models
from tidemill.loading.mapped import MappedFile
from tidemill.offline.opened_text import OpenedText


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    path.write_bytes(bytes(1000))
    time.sleep(0.02)  # times of files go on in ticks
    return path


def opened(weights: Path) -> list[OpenedFile]:
    with opened_files() as found:
        MappedFile(weights)
    return list(found.values())


@pytest.fixture
def watch(weights: Path) -> Iterator[FileWatch]:
    made = FileWatch(opened(weights))
    made.check()
    yield made
    made.close()


def write_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def write_and_set_back(path: Path) -> None:
    before = path.stat()
    write_in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, 10)


@pytest.mark.parametrize("change", [write_in_place, write_and_set_back, cut, Path.touch])
def test_what_may_have_changed_the_bytes_is_an_error(
    weights: Path, watch: FileWatch, change: Callable[[Path], None]
) -> None:
    change(weights)
    for _ in range(2):
        with pytest.raises(TidemillError, match=r"w\.safetensors was changed while") as caught:
            watch.check()
    assert caught.value.kind is ErrorKind.MODEL_FILE


def test_an_old_file_that_is_written_to_after_it_was_replaced(
    weights: Path, watch: FileWatch
) -> None:
    old = weights.rename(weights.with_name("old"))
    watch.check()
    write_in_place(old)
    with pytest.raises(TidemillError):
        watch.check()


def test_other_names_owners_and_modes_are_nothing(
    weights: Path, watch: FileWatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights.chmod(0o600)
    os.link(weights, weights.with_name("other"))
    watch.check()
    assert not caplog.records


def test_a_replaced_file_is_said_once(
    weights: Path, watch: FileWatch, caplog: pytest.LogCaptureFixture
) -> None:
    new = weights.with_name("new")
    new.write_bytes(b"other")
    new.rename(weights)
    for _ in range(3):
        watch.check()
    # records of this module alone: threads of other tests in this process may log, too
    said = [each for each in caplog.records if each.name == "tidemill.engine.filewatch"]
    assert len(said) == 1 and "continues with the file it opened" in said[0].getMessage()


def test_a_file_that_changes_while_it_is_loaded(weights: Path) -> None:
    files = opened(weights)
    write_in_place(weights)
    with pytest.raises(TidemillError, match="was changed"):
        FileWatch(files)
    before = len(os.listdir("/proc/self/fd"))
    weights.unlink()
    with pytest.raises(TidemillError, match="was changed"):
        FileWatch(files)
    assert len(os.listdir("/proc/self/fd")) == before


def test_texts_are_looked_at_when_they_may_be_read(weights: Path) -> None:
    text, note = weights.with_name("tokenizer.json"), weights.with_name("config.json")
    text.write_text("{}")
    note.write_text("{}")
    time.sleep(0.02)
    with opened_files() as found:
        map_bytes(text)
        read_bytes(note)
        read_bytes(text)
    assert [file.mapped for file in found.values()] == ["text", ""]
    watch = FileWatch(found.values())
    write_in_place(note)
    write_in_place(text)
    watch.check()
    with pytest.raises(TidemillError, match="tokenizer"):
        watch.check(text=True)
    watch.close()
    assert [file.fate() for file in found.values()] == ["changed", "changed"]
    text.unlink()
    assert found[str(text)].fate() == "removed"


def test_two_readings_of_a_model(weights: Path) -> None:
    first = tuple(opened(weights))
    assert different_files(first, tuple(opened(weights))) is None
    weights.chmod(0o600)
    assert different_files(first, tuple(opened(weights))) is None
    assert "added" in str(different_files((), first))
    assert different_files((), first, only_common=True) is None
    write_in_place(weights)
    assert "changed" in str(different_files(first, tuple(opened(weights))))


def test_both_processes_read_the_same_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(bundled_models()["brook"], model)
    time.sleep(0.02)

    def text() -> tuple[OpenedFile, ...]:
        with opened_files() as found:
            OpenedText.open(model)
        return tuple(found.values())

    engine = open_inproc(EngineConfig(model=str(model), served_name="m", kv_memory=2**22), str)
    engine.executor.close()
    read = {file.path for file in engine.info.files}
    assert str(model / "model.safetensors") in read and str(model / "tokenizer.json") in read
    assert different_files(text(), engine.info.files, only_common=True) is None
    (model / "tokenizer_config.json").touch()
    found = different_files(text(), engine.info.files, only_common=True)
    assert found is not None and "tokenizer_config.json has been changed" in found
