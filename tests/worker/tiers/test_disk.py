"""The store of blocks on disk: what is believed, what leaves, and who shares it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.moves import Name
from tidemill.memory.prefix import block_key, root_digest
from tidemill.transfer.record import identity_of
from tidemill.worker.tiers.disk import DiskTier
from tidemill.worker.tiers.sealed import KEY_VARIABLE, SealedFiles, sealed_from_environment

NBYTES = 4096
MODEL, OTHER = identity_of(["a", 1]), identity_of(["a", 2])
RECORD = 8192  # what one takes on disk


def checksum(data: np.ndarray) -> int:
    return zlib.crc32(data.data)


def name_of(i: int) -> Name:
    return block_key(root_digest(), [i] * 32, ((3, b"medium"),) if i % 2 else ())


def bytes_of(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, NBYTES).astype(np.uint8)


def tier(folder: Path, limit: int = 2**30, identity: bytes = MODEL) -> DiskTier:
    return DiskTier(folder, limit, identity, NBYTES, checksum)


def sealed(folder: Path, secret: bytes) -> DiskTier:
    return DiskTier(folder, 2**30, MODEL, NBYTES, checksum, SealedFiles(secret))


def load(one: DiskTier, i: int) -> bool:
    out = np.zeros(NBYTES, np.uint8)
    found = one.load(name_of(i), out)
    assert not found or np.array_equal(out, bytes_of(i))
    return found


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*/*") if path.is_file())


def test_another_engine_finds_what_one_saved(tmp_path: Path) -> None:
    first, second = tier(tmp_path), tier(tmp_path)
    for i in range(4):
        assert first.save(name_of(i), bytes_of(i))
    assert all(second.has(name_of(i)[0]) and load(second, i) for i in range(4))
    assert not second.has(name_of(9)[0]) and not load(second, 9)
    assert second.figures(0, 0, 0.0).damaged_blocks == 0


@pytest.mark.parametrize("at", ["magic", "identity", "tokens", "checksum", "data", "cut", "longer"])
def test_damage_is_found_and_removed(tmp_path: Path, at: str) -> None:
    one = tier(tmp_path)
    one.save(name_of(1), bytes_of(1))
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    if at == "cut":
        del data[-1:]
    elif at == "longer":
        data += b"\0"
    else:
        head = len(data) - NBYTES
        places = {"magic": 0, "checksum": 24, "identity": 32, "tokens": 100, "data": head + 77}
        data[places[at]] ^= 1
    path.write_bytes(data)
    assert not load(one, 1)
    assert one.figures(0, 0, 0.0).damaged_blocks == 1
    assert not files(tmp_path) and not one.has(name_of(1)[0])


def test_encrypted_records_need_their_key(tmp_path: Path) -> None:
    one, same = sealed(tmp_path, b"k" * 16), sealed(tmp_path, b"k" * 16)
    other, plain = sealed(tmp_path, b"j" * 16), tier(tmp_path)
    for i in range(4):
        assert one.save(name_of(i), bytes_of(i))
    assert all(same.has(name_of(i)[0]) and load(same, i) for i in range(4))
    assert {*same.digests()} == {name_of(i)[0] for i in range(4)}
    for wrong in (other, plain):
        assert not any(wrong.has(name_of(i)[0]) or load(wrong, i) for i in range(4))
        assert [*wrong.digests()] == [] and wrong.figures(0, 0, 0.0).damaged_blocks == 0
    assert load(same, 0)  # they have damaged nothing
    seen = b"".join(path.read_bytes() + path.name.encode() for path in files(tmp_path))
    for i in range(4):
        _, parent, tokens, _ = name_of(i)
        for secret in (name_of(i)[0], parent, tokens, name_of(i)[0].hex().encode()):
            assert secret not in seen
        assert bytes_of(i).tobytes()[:64] not in seen


@pytest.mark.parametrize("at", [0, 16, 200, 600, -NBYTES, -1])
def test_what_was_changed_in_an_encrypted_record_is_found(tmp_path: Path, at: int) -> None:
    one = sealed(tmp_path, b"k" * 16)
    one.save(name_of(1), bytes_of(1))
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert not load(one, 1) and one.figures(0, 0, 0.0).damaged_blocks == 1
    assert not files(tmp_path)


def test_pieces_of_an_encrypted_record_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.worker.tiers.sealed.PIECE_BYTES", 1000)
    one = sealed(tmp_path, b"k" * 16)
    one.save(name_of(2), bytes_of(2))
    assert load(one, 2)
    [path] = files(tmp_path)
    data, piece, tail = path.read_bytes(), 1016, NBYTES % 1000 + 16
    begin = len(data) - tail - 4 * piece
    first, second = data[begin : begin + piece], data[begin + piece : begin + 2 * piece]
    path.write_bytes(data[:begin] + second + first + data[begin + 2 * piece :])
    assert not load(one, 2)


@pytest.mark.parametrize("key", ["short", ""])
def test_the_key_of_a_folder_comes_from_the_environment(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    if not key:
        assert sealed_from_environment() is None
        return
    with pytest.raises(TidemillError, match=KEY_VARIABLE) as caught:
        sealed_from_environment()
    assert caught.value.param == "kv_disk"
    monkeypatch.setenv(KEY_VARIABLE, "long enough, this one")
    assert sealed_from_environment() is not None


def test_it_says_what_left(tmp_path: Path) -> None:
    one, other = tier(tmp_path, limit=6 * RECORD), tier(tmp_path, identity=OTHER)
    other.save(name_of(50), bytes_of(50))
    for i in range(12):
        one.save(name_of(i), bytes_of(i))
    removed = one.take_removed()
    assert one.take_removed() == ()
    saved = {name_of(i)[0] for i in range(12)}
    assert {*removed} == saved - {*one.digests()} and removed


def test_blocks_of_other_models_and_texts_are_not_believed(tmp_path: Path) -> None:
    one, other = tier(tmp_path), tier(tmp_path, identity=OTHER)
    one.save(name_of(1), bytes_of(1))
    assert not other.has(name_of(1)[0])
    [path] = files(tmp_path)
    for place, asked, i in (
        (OTHER, other, 1),
        (MODEL, one, 2),
    ):  # under a wrong model, a wrong name
        digest = name_of(i)[0].hex()
        wrong = tmp_path / place.hex()[:32] / digest[:2] / digest
        wrong.parent.mkdir(exist_ok=True)
        os.link(path, wrong)
        assert asked.has(name_of(i)[0]) and not load(asked, i)
        assert asked.figures(0, 0, 0.0).damaged_blocks == 1
    assert load(one, 1)


def test_another_image_at_the_same_place_is_another_block(tmp_path: Path) -> None:
    one = tier(tmp_path)
    kinds = [block_key(root_digest(), [7] * 32, ((3, image),)) for image in (b"a" * 32, b"b" * 32)]
    for i, name in enumerate(kinds):
        assert not one.has(name[0])
        one.save(name, bytes_of(i))
    out = np.zeros(NBYTES, np.uint8)
    for i, name in enumerate(kinds):
        assert one.load(name, out) and np.array_equal(out, bytes_of(i))
    # Under the name of the one, the other's record is not believed.
    first, second = files(tmp_path)
    os.replace(first, second)
    assert not any(one.load(name, out) for name in kinds)
    assert one.figures(0, 0, 0.0).damaged_blocks == 1


def test_it_stays_within_its_bound_and_keeps_what_is_used(tmp_path: Path) -> None:
    one = tier(tmp_path, limit=10 * RECORD)
    for i in range(8):
        one.save(name_of(i), bytes_of(i))
    for at, path in enumerate(files(tmp_path)):
        os.utime(path, (1000 + at, 1000 + at))
    assert load(one, 0)
    for i in range(8, 30):
        one.save(name_of(i), bytes_of(i))
        assert len(files(tmp_path)) <= 10
    assert one.has(name_of(29)[0]) and not one.has(name_of(1)[0])


def test_what_was_used_often_outlives_what_is_newer(tmp_path: Path) -> None:
    one = tier(tmp_path, limit=8 * RECORD)
    one.save(name_of(0), bytes_of(0))
    for _ in range(3):
        assert load(one, 0)
    for i in range(1, 30):
        one.save(name_of(i), bytes_of(i))
    assert load(one, 0)


def test_a_former_models_blocks_leave_first_and_their_folders(tmp_path: Path) -> None:
    former = tier(tmp_path, identity=OTHER)
    for i in range(5):
        former.save(name_of(i), bytes_of(i))
    for path in files(tmp_path):
        os.utime(path, (1000, 1000))
    stale = files(tmp_path)[0].parent / "killed.part"
    stale.write_bytes(b"x")
    os.utime(stale, (1000, 1000))
    one = tier(tmp_path, limit=6 * RECORD)
    for i in range(6):
        one.save(name_of(i), bytes_of(i))
    assert not list((tmp_path / OTHER.hex()[:32]).glob("*/*"))
    assert sum(one.has(name_of(i)[0]) for i in range(6)) >= 4


def test_an_idle_engine_whose_empty_folder_was_removed_saves_again(tmp_path: Path) -> None:
    idle, busy = tier(tmp_path, identity=OTHER), tier(tmp_path, limit=2 * RECORD)
    for i in range(4):
        busy.save(name_of(i), bytes_of(i))
    assert not (tmp_path / OTHER.hex()[:32]).exists()
    assert idle.save(name_of(1), bytes_of(1)) and load(idle, 1)


def test_a_disk_that_takes_nothing_costs_nothing_else(tmp_path: Path) -> None:
    one = tier(tmp_path)
    digest = name_of(1)[0].hex()
    (tmp_path / MODEL.hex()[:32] / digest[:2]).write_bytes(b"in the way")
    assert not one.save(name_of(1), bytes_of(1))
    assert one.figures(0, 0, 0.0).failed_saves == 1
    assert one.save(name_of(2), bytes_of(2)) or name_of(2)[0][:1] == name_of(1)[0][:1]
