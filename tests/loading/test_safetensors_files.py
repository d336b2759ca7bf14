"""The safetensors parser: the reference library's files, broken files, and fuzz."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.formats import safetensors as ours


def build(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = build({"a": entry([2, 2], 0, 16), "b": entry([3], 16, 22, "F16")}, bytes(22))


def test_reads_what_the_reference_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((5, 7)).astype(np.float32),
        "y": rng.standard_normal(3).astype(np.float16),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    tensors = ours.read_file(path)
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert tensors[name].shape == array.shape
        assert bytes(tensors[name].view) == array.tobytes()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"),
        (b"1234", "truncated"),
        (GOOD[:20], "truncated"),
        (GOOD[:-1], "truncated"),
        (GOOD + b"x", "belong to no tensor"),
        (build(b"", length=2**63), "not a safetensors"),
        (build(b"", length=2**64 - 1), "not a safetensors"),
        (build(b"[1]"), "JSON object"),
        (build(b"\xff\xfe"), "JSON"),
        (build(b"[" * 100_000), "nested"),
        (build(b'{"a": ' * 100_000), "nested"),
        (build(b'{"a": 1, "a": 2}'), "occurs twice"),
        (build(b'{"a": NaN}'), "NaN"),
        (build(b'{"a": ' + b"9" * 5000 + b"}"), "JSON"),
        (build({"a": 3}), "'a'"),
        (build({"a": {}}), "'a'"),
        (build({"a": entry([2], 0, 8, "F7")}, bytes(8)), "F7"),
        (build({"a": {**entry([2], 0, 8), "dtype": ["F32"]}}, bytes(8)), "type"),
        (build({"a": entry([-2], 0, 8)}, bytes(8)), "shape"),
        (build({"a": entry([True], 0, 4)}, bytes(4)), "shape"),
        (build({"a": {**entry([1], 0, 4), "shape": None}}, bytes(4)), "shape"),
        (build({"a": entry([1] * 9, 0, 4)}, bytes(4)), "shape"),
        (build({"a": entry([2], 8, 0)}, bytes(8)), "data_offsets"),
        (build({"a": {**entry([2], 0, 8), "data_offsets": [0]}}, bytes(8)), "data_offsets"),
        (build({"a": {**entry([2], 0, 8), "data_offsets": [0.0, 8.0]}}, bytes(8)), "data_offsets"),
        (build({"a": entry([3], 0, 8)}, bytes(8)), "do not hold"),
        (build({"a": entry([2**62, 2**62], 0, 8)}, bytes(8)), "do not hold"),
        (build({"a": entry([2], 0, 8)}, bytes(4)), "truncated"),
        (build({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)), "overlaps"),
        (build({"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, bytes(20)), "gap"),
    ],
)
def test_broken_files_are_named(content: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(TidemillError, match=named) as caught:
        ours.read_file(path)
    assert caught.value.kind == ErrorKind.MODEL_FILE
    assert "model.safetensors" in caught.value.message


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(TidemillError) as caught:
            ours.read_file(path)
        assert caught.value.kind == ErrorKind.MODEL_FILE


mutations = st.lists(
    st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6
)


@settings(max_examples=300, deadline=2000)
@given(changes=mutations, cut=st.integers(0, len(GOOD)), extra=st.binary(max_size=16))
def test_mutated_files_never_surprise(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[int, int]],
    cut: int,
    extra: bytes,
) -> None:
    content = bytearray(GOOD)
    for at, value in changes:
        content[at] = value
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.unlink(missing_ok=True)  # a mapping of the last example may still be alive
    path.write_bytes(bytes(content[:cut]) + extra)
    try:
        tensors = ours.read_file(path)
    except TidemillError:
        return
    for tensor in tensors.values():
        assert tensor.view.nbytes == tensor.nbytes


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=2000)
@given(
    header=st.dictionaries(
        st.text(max_size=4),
        st.fixed_dictionaries({"dtype": json_values, "shape": json_values}, optional={
            "data_offsets": json_values | st.lists(st.integers(-4, 40), min_size=2, max_size=2)
        })
        | st.builds(entry, st.lists(st.integers(0, 3), max_size=3), st.integers(0, 20),
                    st.integers(0, 20)),
        max_size=3,
    ),
    data=st.binary(max_size=24),
)  # fmt: skip
def test_hostile_headers_never_surprise(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.safetensors"
    path.unlink(missing_ok=True)
    path.write_bytes(build(header, data))
    try:
        ours.read_file(path)
    except TidemillError as error:
        assert error.kind == ErrorKind.MODEL_FILE


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    for name, tensors in (("s1", {"a": np.zeros(2)}), ("s2", {"b": np.ones(3)})):
        arrays = {k: v.astype(np.float32) for k, v in tensors.items()}
        safetensors.numpy.save_file(arrays, tmp_path / f"{name}.safetensors")
    write_index(tmp_path, {"a": "s1.safetensors", "b": "s2.safetensors"})
    return tmp_path


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / ours.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_joined(sharded: Path) -> None:
    tensors = ours.read_folder(sharded)
    assert {n: t.file.path.name for n, t in tensors.items()} == {
        "a": "s1.safetensors",
        "b": "s2.safetensors",
    }


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({}, "weight_map"),
        ([], "weight_map"),
        ({"a": "s1.safetensors", "b": "s3.safetensors"}, "s3.safetensors"),
        ({"a": "s1.safetensors", "b": "s1.safetensors"}, "'b'"),
        ({"a": "s2.safetensors", "b": "s1.safetensors"}, "'[ab]'"),
        ({"a": "../s1.safetensors"}, "same folder"),
        ({"a": "/etc/x.safetensors"}, "same folder"),
        ({"a": "..\\s1.safetensors"}, "same folder"),
        ({"a": "sub/s1.safetensors"}, "same folder"),
        ({"a": "s1.bin"}, "same folder"),
        ({"a": 3}, "same folder"),
    ],
)
def test_bad_indexes_are_named(sharded: Path, weight_map: Any, named: str) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(TidemillError, match=named) as caught:
        ours.read_folder(sharded)
    assert caught.value.kind == ErrorKind.MODEL_FILE


def test_other_pickles_are_explained(tmp_path: Path) -> None:
    (tmp_path / "consolidated.00.pth").write_bytes(b"x")
    with pytest.raises(TidemillError, match=r"pytorch_model\.bin and its index are read"):
        ours.read_folder(tmp_path)
