"""Files of paths that may lead to anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.base.errors import config_error
from tidemill.base.files import is_regular, open_regular, shown


def test_regular_files_alone_are_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    file, pipe, link = (tmp_path / name for name in ("file", "pipe", "link"))
    file.write_bytes(b"data")
    os.mkfifo(pipe)
    link.symlink_to(file)
    for path in (file, link):
        assert is_regular(path)
        with open_regular(path) as opened:
            assert opened.read() == b"data" and not os.get_inheritable(opened.fileno())
    assert not is_regular(tmp_path / "none") and not is_regular(file / "below")
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="no regular file"):
            is_regular(path)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(pipe)
    assert len(os.listdir("/proc/self/fd")) == before
    file.unlink()
    with pytest.raises(OSError, match="a link to a file that is missing"):
        is_regular(link)


def test_paths_of_any_bytes_can_be_told() -> None:
    path = os.fsdecode(b"caf\xe9")
    assert shown(path) == "caf\\udce9" and shown("caf\xe9") == "caf\xe9"
    error = config_error("model", f"{path} is no model")
    assert error.message == str(error) == "caf\\udce9 is no model"
