"""PyTorch's files: what torch writes, read as data; what could run code, refused by name."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_folder import tensors, write_folder

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model
from tidemill.loading.formats import torch_files
from tidemill.loading.places import one_tensor
from tidemill.models.quantization import to_float32


def save(value: Any, path: Path, **options: Any) -> Path:
    path.unlink(missing_ok=True)
    torch.save(value, path, **options)
    return path


KINDS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64)


def test_reads_what_torch_writes(tmp_path: Path) -> None:
    base = torch.randn(6, 5)
    state = {f"t.{kind}": base.to(kind) for kind in KINDS}
    state |= {
        "parameter": torch.nn.Parameter(base.clone()),
        "shared": state["t.torch.float32"],
        "window": torch.arange(40.0)[8:20].reshape(3, 4),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "f8": base.to(torch.float8_e4m3fn),
    }
    found = torch_files.read_file(save(state, tmp_path / "m.bin"))
    assert found.keys() == state.keys()
    for name, value in state.items():
        place = found[name]
        assert place.shape == tuple(value.shape), name
        assert (
            bytes(place.view)
            == value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    np.testing.assert_array_equal(one_tensor(found["f8"]).values(), state["f8"].float().numpy())


def test_a_module_s_state_with_metadata(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    found = torch_files.read_file(save({"state_dict": module.state_dict()}, tmp_path / "m.bin"))
    assert set(found) == set(module.state_dict())


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_whole_model(protocol: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    expected = open_model(folder)
    (folder / "model.safetensors").unlink()
    state = {n: torch.from_numpy(t) for n, t in tensors().items()}
    names = sorted(state)
    half = {n: state[n] for n in names[:9]}, {n: state[n] for n in names[9:]}
    shards = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for shard, part in zip(shards, half, strict=True):
        save(part, folder / shard, pickle_protocol=protocol)
    index = {n: shard for shard, part in zip(shards, half, strict=True) for n in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    sharded = open_model(folder)
    for shard in shards:
        (folder / shard).unlink()
    (folder / "pytorch_model.bin.index.json").unlink()
    save(state, folder / "pytorch_model.bin", pickle_protocol=protocol)
    for files in (sharded, open_model(folder)):
        for name, tensor in expected.tensors.items():
            np.testing.assert_array_equal(to_float32(files.tensors[name]), to_float32(tensor))


def archive(path: Path, data: bytes, compress: bool = False, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as z:
        z.writestr("m/data.pkl", data)
        for name, content in entries.items():
            z.writestr(f"m/data/{name}", content)
    return path


class Runs:
    """Unpickled the usual way, this would make a folder."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._target),)


def test_nothing_is_ever_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for protocol in range(6):
        data = pickle.dumps({"w": Runs(target)}, protocol=protocol)
        with pytest.raises(TidemillError) as caught:
            torch_files.read_file(archive(tmp_path / f"{protocol}.bin", data))
        assert caught.value.kind in (ErrorKind.UNSUPPORTED, ErrorKind.MODEL_FILE)
        assert not target.exists()
    assert "posix.mkdir" in caught.value.message and "nothing was run" in caught.value.message


def legacy(value: Any) -> bytes:
    written = io.BytesIO()
    torch.save(value, written, _use_new_zipfile_serialization=False)
    return written.getvalue()


STATE = {"w": torch.arange(12.0).reshape(3, 4)}


def torch_bytes() -> bytes:
    written = io.BytesIO()
    torch.save(STATE, written)
    return written.getvalue()


def changed(old: bytes, new: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        content = torch_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))
        return path

    return write


def written(content: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (written(b"x" * 100), "not a zip archive"),
        (written(b""), "empty"),
        (written(torch_bytes()[:-30]), "not a zip archive|truncated"),
        (written(legacy(STATE)), "before 1.6"),
        (lambda p: archive(p, pickle.dumps(STATE["w"].tolist()), compress=True), "compressed"),
        (lambda p: archive(p, b"\x80\x02}"), "truncated"),
        (lambda p: archive(p, b"\x80\x02N."), "not hold a dictionary"),
        (lambda p: archive(p, pickle.dumps({"w": 1}, 2)), "'w' is not a tensor"),
        (lambda p: archive(p, b"\x80\x02" + b"(" * 9000), "more values"),
        (lambda p: archive(p, b"\x80\x02X\xff\xff\xff\x7f"), "text of 2147483647 bytes"),
        (lambda p: archive(p, b"\x80\x02\x8a\xff"), "more than 8 bytes"),
        (lambda p: archive(p, b"\x80\x02]."), "instruction 0x5d"),
        (lambda p: save({"w": STATE["w"].T}, p), r"'w'.*strides \[1, 4\]"),
        (changed(b"K\x03K\x04\x86", b"K\x03K\xff\x86"), "'w' ends at byte 3060 of a storage of 48"),
        (changed(b"FloatStorage", b"FloatStorbge"), "torch.FloatStorbge"),
        (changed(b"little", b"big   "), "big-endian"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write: Callable[[Path], Path], named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.bin")
    with pytest.raises(TidemillError, match=named) as caught:
        torch_files.read_file(path)
    assert caught.value.kind in (ErrorKind.UNSUPPORTED, ErrorKind.MODEL_FILE)
    assert "m.bin" in caught.value.message
