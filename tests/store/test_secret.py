"""The secrets of keys and of the server."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from tidemill.base.errors import TidemillError
from tidemill.store.secret import (
    SECRET_FILE,
    SECRET_VARIABLE,
    KeyHash,
    is_mistyped,
    new_key,
    prefix_of,
    read_secret,
)


def test_keys_are_told_from_mistyped_ones() -> None:
    made = {new_key() for _ in range(200)}
    assert len(made) == 200
    for key in made:
        assert not is_mistyped(key)
        assert prefix_of(key) == key[:11]
        for wrong in (key[:-1], f"{key}x", key.swapcase().replace("TM-", "tm-"), key[:20] + "_"):
            assert is_mistyped(wrong)
    assert not is_mistyped("sk-anything")
    assert prefix_of("sk-anything") == ""


def test_hashes_differ_by_secret_and_by_key() -> None:
    first, second = KeyHash(b"a" * 16), KeyHash(b"b" * 16)
    assert first.of("k") == KeyHash(b"a" * 16).of("k")
    assert len({first.of("k"), first.of("l"), second.of("k")}) == 3
    assert first.fingerprint != second.fingerprint
    first.of("\udcff")  # what a header may hold


def test_the_file_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    home = tmp_path / "home"
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read_secret(home))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert [p.name for p in home.iterdir()] == [SECRET_FILE]
    assert stat.S_IMODE((home / SECRET_FILE).stat().st_mode) == 0o600
    (home / SECRET_FILE).chmod(0o644)
    with pytest.raises(TidemillError, match="chmod 600"):
        read_secret(home)
    (home / SECRET_FILE).chmod(0o600)
    (home / SECRET_FILE).write_bytes(b"\n")
    with pytest.raises(TidemillError, match="damaged"):
        read_secret(home)


def test_the_environment_counts_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "x" * 16)
    assert read_secret(tmp_path) == b"x" * 16
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(TidemillError, match="5 characters") as caught:
        read_secret(tmp_path)
    assert "short'" not in caught.value.message
