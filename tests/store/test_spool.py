"""Records survive in files until they are in the database, bounded and counted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.base.errors import TidemillError
from tidemill.store.spool import SEGMENT_BYTES, Position, Spool, left_spools, take_spool


def _all(spool: Spool, start: Position = Position()) -> list[bytes]:  # noqa: B008
    found: list[bytes] = []
    while True:
        batch = spool.read(start, 100)
        if not batch.records and batch.end == start:
            return found
        found += batch.records
        start = batch.end


def _first(spool: Spool) -> Path:
    return min(spool.folder.glob("*.seg"))


def _records(count: int, size: int = 300) -> list[bytes]:
    return [f"{i}:".encode() + bytes([i % 256]) * (size - i % 7) for i in range(count)]


def test_what_is_appended_is_read_in_order(tmp_path: Path) -> None:
    spool = take_spool(tmp_path)
    records = _records(10)
    assert spool.read(Position(), 10).records == []
    for record in records:
        assert spool.append(record)
    first = spool.read(Position(), 4)
    assert first.records == records[:4]
    assert spool.read(first.end, 100).records == records[4:]
    spool.close()


def test_reading_never_skips_what_is_written_meanwhile(tmp_path: Path) -> None:
    """Also where the next segment is prepared already, and over many segments."""
    spool, rng = take_spool(tmp_path), random.Random(3)
    written: list[bytes] = []
    read: list[bytes] = []
    position = Position()
    for _ in range(300):
        for _ in range(rng.randrange(60)):
            record = rng.randbytes(rng.choice((1, 7, 8, 300, 3000)))
            assert spool.append(record)
            written.append(record)
        spool.prepare()
        batch = spool.read(position, rng.randrange(1, 90))
        read += batch.records
        position = batch.end
        spool.discard(position)
        assert batch.damaged == 0
    read += _all(spool, position)
    assert read == written and position.segment > 3
    assert len(list(spool.folder.glob("*.seg"))) <= 4
    spool.close()


def test_the_next_process_takes_it_with_what_is_left(tmp_path: Path) -> None:
    first = take_spool(tmp_path)
    records = _records(5)
    for record in records[:3]:
        first.append(record)
    first.close()
    second = take_spool(tmp_path)
    assert second.id == first.id
    for record in records[3:]:
        second.append(record)
    assert _all(second) == records
    second.close()


def test_a_segment_that_was_only_prepared_hides_none_behind_it(tmp_path: Path) -> None:
    """The process ended between: the next ones go on, and are read."""
    records = _records(10, 60_000)
    for part in (records, records, records[:1]):
        spool = take_spool(tmp_path)
        for record in part:
            assert spool.append(record)
        spool.prepare()
        spool.close()
    again = take_spool(tmp_path)
    assert _all(again) == [*records, *records, records[0]]
    again.close()


def test_nor_does_one_that_an_older_version_left(tmp_path: Path) -> None:
    spool = take_spool(tmp_path)
    records = _records(30, 60_000)
    for record in records:
        assert spool.append(record)
    spool.close()
    path = sorted(spool.folder.glob("*.seg"))[-1]
    number = int(path.stem)
    path.rename(spool.folder / f"{number + 1:010d}.seg")
    path.write_bytes(bytes(SEGMENT_BYTES))
    again = take_spool(tmp_path)
    assert _all(again) == records
    assert again.read(Position(), 100).damaged == 0
    again.close()


def test_a_segment_without_its_head_is_counted_as_damaged(tmp_path: Path) -> None:
    spool = take_spool(tmp_path)
    records = _records(30, 60_000)
    for record in records:
        assert spool.append(record)
    spool.close()
    with (_first(spool)).open("r+b") as file:
        file.write(bytes(4096))
    again = take_spool(tmp_path)
    batch = again.read(Position(), 100)
    assert batch.damaged == 1
    assert _all(again) == records[17:]
    again.close()


def test_after_damage_to_the_segment_in_use_what_follows_is_read(tmp_path: Path) -> None:
    spool = take_spool(tmp_path)
    spool.append(b"a" * 100)
    with (_first(spool)).open("r+b") as file:
        file.seek(64 + 50)
        file.write(b"b")
    batch = spool.read(Position(), 9)
    assert batch.records == [] and batch.damaged == 1
    spool.append(b"c")
    assert spool.read(batch.end, 9).records == [b"c"]
    spool.close()


def test_an_older_copy_of_the_files_hides_nothing_and_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader had counted lies ahead of what the copy has, and of what is written next."""
    times = iter([2_000_000_000, 2_000_000_010, 2_000_000_020])
    monkeypatch.setattr("tidemill.store.spool.wall", lambda: next(times))
    spool = take_spool(tmp_path)
    spool.append(b"old")
    spool.close()
    copy = {path: path.read_bytes() for path in spool.folder.iterdir()}
    spool = take_spool(tmp_path)
    for record in _records(20):
        spool.append(record)
    counted = spool.read(Position(), 100).end
    spool.close()
    for path in spool.folder.iterdir():
        path.unlink()
    for path, data in copy.items():
        path.write_bytes(data)
    again = take_spool(tmp_path)
    assert _all(again, counted) == []
    again.append(b"new")
    assert _all(again, counted) == [b"new"]
    again.close()


def test_after_the_clock_was_set_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = take_spool(tmp_path)
    monkeypatch.setattr("tidemill.store.spool.wall", lambda: 5.0)
    spool.append(b"new")
    assert _all(spool, Position(2_000_000_000, 64)) == [b"new"]
    spool.close()


def test_two_processes_have_two(tmp_path: Path) -> None:
    one, two = take_spool(tmp_path), take_spool(tmp_path)
    assert one.id != two.id
    one.append(b"a")
    assert list(left_spools(tmp_path)) == []
    one.close()
    [left] = [(spool.id, spool.read(Position(), 9).records) for spool in left_spools(tmp_path)]
    assert left == (one.id, [b"a"])
    two.close()


def test_it_is_bounded_and_losses_are_counted(tmp_path: Path) -> None:
    spool = take_spool(tmp_path, 3 * SEGMENT_BYTES)
    records = _records(400, 10_000)
    kept = [record for record in records if spool.append(record)]
    assert 250 < len(kept) < 400 and spool.lost == 400 - len(kept)
    assert _all(spool) == kept
    spool.close()
    again = take_spool(tmp_path, 3 * SEGMENT_BYTES)
    assert again.lost == 400 - len(kept)  # survives the process
    assert not again.append(b"x")
    end = again.read(Position(), 10_000).end
    while again.read(end, 10_000).records:
        end = again.read(end, 10_000).end
    again.discard(end)
    assert again.append(b"x") and again.lost == 401 - len(kept)
    assert again.read(end, 9).records == [b"x"]
    again.close()


def test_a_full_disk_loses_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = take_spool(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert not spool.append(b"a")
    monkeypatch.setattr("tidemill.store.spool.RETRY_SECONDS", 0)
    spool.retry_at = 0
    assert spool.append(b"b") and spool.lost == 1
    assert _all(spool) == [b"b"]
    spool.close()


def test_a_damaged_segment_is_left_and_counted(tmp_path: Path) -> None:
    spool = take_spool(tmp_path)
    for record in _records(5):
        spool.append(record)
    spool.close()
    path = _first(spool)
    data = bytearray(path.read_bytes())
    place = data.index(b"3:")
    data[place + 5] ^= 1
    path.write_bytes(data)
    again = take_spool(tmp_path)
    again.append(b"new")
    batch = again.read(Position(), 100)
    assert batch.records == [*_records(3), b"new"] and batch.damaged == 1
    assert again.read(batch.end, 100).damaged == 0
    again.close()


@pytest.mark.parametrize("cut", [8, 70, 900])
def test_a_file_that_was_cut_harms_nothing_else(tmp_path: Path, cut: int) -> None:
    spool = take_spool(tmp_path)
    for record in _records(5):
        spool.append(record)
    spool.close()
    os.truncate(_first(spool), cut)
    again = take_spool(tmp_path)
    again.append(b"new")
    batch = again.read(Position(), 100)
    assert (
        batch.records[-1] == b"new" and batch.records[:-1] == _records(5)[: len(batch.records) - 1]
    )
    again.close()


def test_removed_files_are_no_reason_to_skip_new_records(tmp_path: Path) -> None:
    spool = take_spool(tmp_path)
    spool.append(b"a")
    assert spool.read(Position(7, 100), 9).records == [b"a"]
    spool.close()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TidemillError, match="cannot be written"):
        take_spool(tmp_path / "file")


_CHILD = """
import sys
from pathlib import Path
from tidemill.store.spool import take_spool
spool = take_spool(Path(sys.argv[1]))
n = 0
while True:
    spool.append(b"%d" % n)
    sys.stdout.write("%d\\n" % n)
    sys.stdout.flush()
    n += 1
"""


def test_kill_9_loses_no_record_that_was_appended(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    said = "".join(child.stdout.readline() for _ in range(5000))
    os.kill(child.pid, signal.SIGKILL)
    said += child.stdout.read()
    last = int(said.split("\n")[-2])  # of the whole lines
    child.wait()
    spool = take_spool(tmp_path)
    found = _all(spool)
    assert found == [b"%d" % n for n in range(len(found))]
    assert last + 1 <= len(found) <= last + 2
    spool.close()
