"""Weights packed once and mapped afterwards: the same bits, and never another model's."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options, wait_loaded
from helpers.random_model import make_spec, make_tensors

from tidemill.backends import native
from tidemill.backends.base import Backend
from tidemill.backends.native import paging
from tidemill.backends.native.backend import NativeBackend
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.loading.checkpoint import open_model
from tidemill.loading.locate import locate
from tidemill.loading.mapped import MappedFile
from tidemill.loading.parts import ModelFiles
from tidemill.worker import packed
from tidemill.worker.packed import KeptWeights
from tidemill.worker.packed_store import DATA_OFFSET, PackedStore

SPEC = make_spec(vocab=101, tied=False, hidden=64, intermediate=96, head_dim=16)
TENSORS = make_tensors(SPEC, "BF16")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(100_000))
    os.utime(path, (1, 1))
    return path


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def kept(
    tmp_path: Path, source: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., KeptWeights]:
    """Makes what a start would make; its files count as long settled."""
    monkeypatch.setattr(packed, "SETTLED_NS", 0)

    def make(path: Path = source, weights: bytes = b"digest", **options: Any) -> KeptWeights:
        store, files = PackedStore(tmp_path / "packed"), [MappedFile(path)]
        options = {"min_bytes": 1, "delay": 0, **options}
        return KeptWeights(store, "random", weights, files, 2, told.append, **options)

    return make


def load(weights: KeptWeights | None, **changes: object) -> Backend:
    return native.load(SPEC, TENSORS, options(threads=2, **changes), weights)


def mapped(backend: Backend) -> bool:
    assert isinstance(backend, NativeBackend)
    return backend.memory().mapped_bytes > TENSORS["embed.weight"].nbytes


def logits(backend: Backend) -> np.ndarray:
    driver = BackendDriver(backend)
    rows = [(driver.sequence([5, 7, 11, 13]), 4), (driver.sequence([2] * 9), 9)]
    found = backend.submit(driver.inputs(rows)).result().logits
    assert found is not None
    return found


def start(weights: KeptWeights, **changes: object) -> tuple[bool, np.ndarray]:
    """A start that lasts until its weights are kept: was it mapped, and what it computes."""
    backend = load(weights, **changes)
    assert wait_loaded(backend) is None
    weights.wait()
    result = mapped(backend), logits(backend)
    backend.close()
    return result


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "bfloat16", "kv_dtype": "bfloat16"},
        {"quantize": "q8_0", "dtype": "bfloat16"},
        {"quantize": "q4_0"},
    ],
)
def test_a_second_start_maps_the_same_bits(
    kept: Callable[..., KeptWeights], changes: dict[str, object]
) -> None:
    plain = load(None, **changes)
    expected = logits(plain)
    plain.close()
    assert start(kept(), **changes)[0] is False
    for _ in range(2):
        was_mapped, found = start(kept(), **changes)
        assert was_mapped and np.array_equal(found, expected)


def test_types_and_instruction_sets_are_kept_apart(kept: Callable[..., KeptWeights]) -> None:
    for changes in (
        {"quantize": "q8_0"},
        {"quantize": "q4_0"},
        {"quantize": "q8_0", "dtype": "bfloat16"},
        {"quantize": "q8_0", "isa": "portable"},
    ):
        assert start(kept(), **changes)[0] is False
        assert start(kept(), **changes)[0] is True


def test_other_weights_are_another_entry(kept: Callable[..., KeptWeights]) -> None:
    start(kept())
    assert start(kept(weights=b"other"))[0] is False


def test_a_copy_is_recognised_by_its_content(
    kept: Callable[..., KeptWeights], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(kept())
    copy = source.with_name("copy")
    shutil.copy(source, copy)
    assert start(kept(copy))[0] is True

    def unread(*_: object) -> None:
        raise AssertionError("it is known without being read")

    monkeypatch.setattr(os, "preadv", unread)
    assert start(kept(copy))[0] is True
    assert start(kept())[0] is True


def test_a_change_that_no_sample_shows_is_noticed(
    kept: Callable[..., KeptWeights], source: Path
) -> None:
    start(kept())
    with source.open("r+b") as file:
        file.seek(50_000)
        byte = file.read(1)[0]
        file.seek(50_000)
        file.write(bytes([byte ^ 1]))
    os.utime(source, (1, 1))  # as it was: the time of the change of the inode tells
    assert start(kept())[0] is False
    assert start(kept())[0] is True  # replaced


@pytest.mark.parametrize("where", [DATA_OFFSET, DATA_OFFSET + 12_345, -1, 100])
def test_a_damaged_entry_is_made_again_and_logged(
    kept: Callable[..., KeptWeights], tmp_path: Path, where: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, expected = start(kept())
    [path] = (tmp_path / "packed").glob("*.packed")
    raw = bytearray(path.read_bytes())
    raw[where] ^= 4
    path.write_bytes(raw)
    with caplog.at_level(logging.WARNING, "tidemill"):
        was_mapped, found = start(kept())
    assert not was_mapped and np.array_equal(found, expected)
    assert "damaged and made again" in caplog.text
    assert start(kept())[0] is True


def test_without_room_it_goes_on_and_says_so(
    kept: Callable[..., KeptWeights], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING, "tidemill"):
        start(kept())
    assert "are not kept" in caplog.text and "No space left" in caplog.text
    monkeypatch.undo()


def test_a_folder_that_cannot_be_used_is_no_obstacle(
    source: Path, told: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = PackedStore(tmp_path / "file" / "packed")
    files = [MappedFile(source)]
    weights = KeptWeights(store, "m", b"", files, 1, told.append, min_bytes=1, delay=0)
    with caplog.at_level(logging.WARNING, "tidemill"):
        start(weights)
    assert "are not kept" in caplog.text


def test_closing_ends_keeping_at_once(kept: Callable[..., KeptWeights], tmp_path: Path) -> None:
    weights = kept(delay=60)
    backend = load(weights)
    assert wait_loaded(backend) is None
    backend.close()
    weights.wait()
    assert not list((tmp_path / "packed").glob("*.packed"))


def test_small_models_are_not_kept(source: Path, told: list[str], tmp_path: Path) -> None:
    store = PackedStore(tmp_path / "packed")
    weights = KeptWeights(store, "m", b"", [MappedFile(source)], 1, told.append)
    assert start(weights)[0] is False
    assert not store.folder.exists()


def test_what_packing_lost_is_said_at_every_start(kept: Callable[..., KeptWeights]) -> None:
    first, second = kept(loss=lambda: "two weights lost 1 %"), kept()
    assert start(first)[0] is False
    assert start(second)[0] is True and second.note == "two weights lost 1 %"


class LookedInto:
    """A store in which nothing is; where it would be, and under which keys it was looked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys: list[str] = []

    def open(self, key: str) -> None:
        self.keys.append(key)


def test_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_model(locate(None)[0])
    stores: list[LookedInto] = []

    def store(folder: Path) -> LookedInto:
        stores.append(LookedInto(folder))
        return stores[-1]

    def looked_into(setting: str, model: ModelFiles = files) -> LookedInto | None:
        config = EngineConfig(model="m", served_name="m", packed_cache=setting)
        weights = packed.kept_weights(config, model, b"", 1, lambda: None, lambda line: None)
        if weights is None:
            return None
        assert weights.find("layout", 64 * 2**20 - 1, lambda data: 0) is None
        assert not stores[-1].keys, "so small a model is packed faster than it is found"
        assert weights.find("layout", 64 * 2**20, lambda data: 0) is None
        return stores[-1]

    monkeypatch.setattr(packed, "PackedStore", store)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert looked_into("off") is None
    auto, set_to = looked_into("auto"), looked_into("/some/where")
    assert auto is not None and auto.folder == tmp_path / "tidemill" / "packed"
    assert set_to is not None and set_to.folder == Path("/some/where")
    assert len(auto.keys) == 1 and auto.keys == set_to.keys
    # A config that says otherwise how the same bytes are to be read is another model.
    other = looked_into("auto", replace(files, config={**files.config, "quantization_config": 1}))
    assert other is not None and other.keys != auto.keys


def _resident(backend: Backend) -> bool:
    """Whether any page of the packed weights is mapped into this process."""
    assert isinstance(backend, NativeBackend)
    begin, wanted = backend._matrices.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()[0]
        if "-" in word and not word.endswith(":"):
            first, last = (int(end, 16) for end in word.split("-"))
            wanted = first < begin + backend._matrices.nbytes and begin < last
        elif wanted and word == "Rss:" and int(line.split()[1]):
            return True
    return False


@pytest.mark.parametrize("how", ["packed here", "mapped", "too small to be kept"])
def test_released_weights_come_back_bit_for_bit(
    kept: Callable[..., KeptWeights], how: str, tmp_path: Path
) -> None:
    weights = kept()
    if how == "mapped":
        start(weights)
        weights = kept()
    elif how == "too small to be kept":
        weights._min_bytes = 2**40
    backend = load(weights)
    assert wait_loaded(backend) is None
    weights.wait()
    want = logits(backend)
    for _ in range(2):
        assert _resident(backend)
        backend.release_weights()
        assert mapped(backend) and not _resident(backend)
        backend.restore_weights()
        assert np.array_equal(logits(backend), want)
    backend.release_weights()
    # Without being restored they are read when they are touched; entries may go meanwhile.
    for entry in (tmp_path / "packed").glob("*.packed"):
        entry.unlink()
    assert np.array_equal(logits(backend), want)
    backend.close()


def test_what_is_in_no_file_is_not_released(
    kept: Callable[..., KeptWeights], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = kept()
    monkeypatch.setattr(weights, "_delay", 60.0)
    backend = load(weights)
    assert wait_loaded(backend) is None
    want = logits(backend)
    with pytest.raises(TidemillError, match="still being stored") as caught:
        backend.release_weights()
    assert caught.value.kind is ErrorKind.UNAVAILABLE and caught.value.retryable
    assert np.array_equal(logits(backend), want)
    backend.close()
    weights = kept()
    backend = load(weights)
    assert wait_loaded(backend) is None
    weights.wait()
    for entry in (tmp_path / "packed").glob("*.packed"):
        entry.unlink()
    with pytest.raises(TidemillError, match="could not be kept") as caught:
        backend.release_weights()
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert np.array_equal(logits(backend), want)
    backend.close()


def test_an_embedding_that_was_computed_is_not_taken_for_a_file(source: Path) -> None:
    stored = np.frombuffer(MappedFile(source).view, np.uint8)
    assert paging.in_file(stored) and paging.in_file(stored[10:].reshape(-1, 2))
    assert not paging.in_file(stored.copy())
