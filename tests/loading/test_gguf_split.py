"""GGUF models in several files, as the gguf package splits them."""

from __future__ import annotations

from pathlib import Path

import gguf as package
import numpy as np
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.formats import gguf_split

NAMES = [f"t{i}" for i in range(7)]


def write(folder: Path) -> list[Path]:
    """Seven tensors in four files."""
    writer = package.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 3)
    for i, name in enumerate(NAMES):
        writer.add_tensor(name, np.full((2, 4), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def test_any_part_opens_the_whole(tmp_path: Path) -> None:
    paths = write(tmp_path)
    assert len(paths) == 4
    for path in paths:
        file = gguf_split.read_model(path)
        assert file.metadata["llama.block_count"] == 3
        assert sorted(file.tensors) == NAMES
        for i, name in enumerate(NAMES):
            assert (file.tensors[name].array() == i).all()


def test_mistakes_are_named(tmp_path: Path) -> None:
    first, second, *_, last = write(tmp_path)
    content = second.read_bytes()
    cases = [
        (lambda: second.unlink(), "00002-of-00004.gguf is missing"),
        (lambda: second.write_bytes(last.read_bytes()), "part 3 of 4 where 1 of 4"),
        (lambda: second.write_bytes(content.replace(b"\x02\0\0\0t2", b"\x02\0\0\0t1")
                                    .replace(b"t2", b"t1")), "'t1' is in another part"),
    ]  # fmt: skip
    for damage, named in cases:
        second.unlink(missing_ok=True)
        second.write_bytes(content)
        damage()
        with pytest.raises(TidemillError, match=named) as caught:
            gguf_split.read_model(first)
        assert caught.value.kind == ErrorKind.MODEL_FILE
    renamed = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(TidemillError, match="found by their names"):
        gguf_split.read_model(renamed)
