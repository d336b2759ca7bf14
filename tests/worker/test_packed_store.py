"""Packed weights on disk: whole or not there, bounded, one writer at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemill.worker import packed_store
from tidemill.worker.packed_store import DATA_OFFSET, CorruptEntry, Entry, PackedStore, StoreFull

DATA = bytes(range(256)) * 64


def entry(key: str, data: bytes = DATA) -> Entry:
    return Entry(key, "a model", "c0ffee", len(data), 0xFFFF_0000_1234_5678)


def put(store: PackedStore, key: str, data: bytes = DATA) -> None:
    half = len(data) // 2
    with store.locked():
        store.write(entry(key, data), [memoryview(data[:half]), memoryview(data[half:])])


@pytest.fixture
def store(tmp_path: Path) -> PackedStore:
    return PackedStore(tmp_path / "deep" / "packed")


def test_what_was_written_is_mapped_again(store: PackedStore) -> None:
    assert store.open("one") is None and store.entries() == []
    put(store, "one")
    found = store.open("one")
    assert found is not None and found[0] == entry("one") and bytes(found[1]) == DATA
    assert store.folder.stat().st_mode & 0o777 == 0o700
    # A mapping stays what it was, whatever becomes of the entry.
    put(store, "one", DATA[::-1])
    assert bytes(found[1]) == DATA
    store.remove("one")
    assert bytes(found[1]) == DATA and store.open("one") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[: DATA_OFFSET + 100],
        lambda raw: raw[:10],
        lambda raw: b"",
        lambda raw: raw + b"\0",
        lambda raw: b"x" + raw[1:],
        lambda raw: raw[:60] + bytes([raw[60] ^ 1]) + raw[61:],
        lambda raw: bytes(len(raw)),
    ],
)
def test_a_damaged_or_partial_entry_is_told_from_a_whole_one(store: PackedStore, damage) -> None:
    put(store, "one")
    path = store.folder / "one.packed"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptEntry):
        store.open("one")
    assert len(store.entries()) == 1
    put(store, "one")
    assert store.open("one") is not None


def test_an_entry_under_another_key_is_damaged(store: PackedStore) -> None:
    put(store, "one")
    (store.folder / "one.packed").rename(store.folder / "two.packed")
    with pytest.raises(CorruptEntry):
        store.open("two")


def test_the_entry_unused_for_longest_makes_room(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room for three of 2 MiB and a little.
    monkeypatch.setattr(packed_store, "MAX_BYTES", 3 * (DATA_OFFSET + len(DATA) + 65536))
    for age, key in enumerate(("a", "b", "c")):
        put(store, key)
        os.utime(store.folder / f"{key}.packed", (0, 1000 + age))
    store.used("a")
    put(store, "d")
    assert {key for key in "abcd" if store.open(key)} == {"a", "c", "d"}
    with pytest.raises(StoreFull, match="exceed the limit"):
        put(store, "huge", bytes(8 * DATA_OFFSET))
    assert {key for key in "abcd" if store.open(key)} == {"a", "c", "d"}


def test_a_full_disk_leaves_nothing_behind(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        put(store, "one")
    assert [path.name for path in store.folder.iterdir()] == ["lock"]


def test_what_a_killed_writer_left_is_swept_away(store: PackedStore) -> None:
    put(store, "one")
    (store.folder / "dead.part").write_bytes(b"half")
    (store.folder / "one.sources.1.part").write_bytes(b"half")
    os.utime(store.folder / "one.sources.1.part", (0, 0))
    (store.folder / "one.sources.2.part").write_bytes(b"being written")
    put(store, "two")
    left = sorted(path.name for path in store.folder.glob("*.part"))
    assert left == ["one.sources.2.part"]


def test_sources_are_remembered_per_content_and_boundedly(store: PackedStore) -> None:
    put(store, "one")
    stamps = [((1, inode, 10, 5, 5),) for inode in range(12)]
    for stamp in stamps:
        store.remember("one", "c0ffee", stamp)
    assert store.is_known("one", "c0ffee", stamps[-1])
    assert not store.is_known("one", "c0ffee", stamps[0])  # too many since
    assert not store.is_known("one", "other", stamps[-1])
    (store.folder / "one.sources").write_text('{"content": "c0ffee", "files": 3}')
    assert not store.is_known("one", "c0ffee", stamps[-1])


def test_clear_removes_everything_and_says_how_much(store: PackedStore) -> None:
    put(store, "one")
    store.remember("one", "c0ffee", ((1, 2, 3, 4, 5),))
    assert store.clear() >= len(DATA)
    assert [path.name for path in store.folder.iterdir()] == ["lock"]


def test_writers_take_turns_across_processes(store: PackedStore) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tidemill.worker.packed_store import PackedStore\n"
        f"with PackedStore(Path({str(store.folder)!r})).locked(wait=False) as ours:\n"
        "    print(ours, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    assert first.stdout.readline() == "True\n"
    with store.locked(wait=False) as ours:
        assert not ours
    first.kill()  # a lock ends with whoever held it
    first.wait()
    for _ in range(100):
        with store.locked(wait=False) as ours:
            if ours:
                return
        time.sleep(0.05)
    raise AssertionError("the lock outlived its process")
