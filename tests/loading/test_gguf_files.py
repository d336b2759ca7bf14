"""The GGUF parser: the gguf package's files, broken files, and fuzz."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
from helpers.kquants import K_TYPES, random_k_tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.formats import gguf
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.places import one_tensor
from tidemill.models.blocks.repack import Inexact
from tidemill.models.quantization import to_float32


def string(text: bytes | str) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def info(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    head = string(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def build(
    pairs: list[bytes], infos: list[bytes], data: bytes, *, version: int = 3,
    counts: tuple[int, int] | None = None, alignment: int = 32,
) -> bytes:  # fmt: skip
    n_tensors, n_pairs = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs)
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


PAIRS = [
    pair("general.architecture", 8, string("llama")),
    pair("llama.block_count", 4, struct.pack("<I", 2)),
    pair("a.float", 6, struct.pack("<f", 1.5)),
    pair("a.list", 9, struct.pack("<IQ", 8, 2) + string("x") + string("é")),
    pair("a.ints", 9, struct.pack("<IQ3i", 5, 3, -1, 0, 7)),
    pair("a.nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2B", 0, 2, 8, 9)),
    pair("a.bool", 7, b"\x01"),
]
INFOS = [info("m", (4, 2), 0, 0), info("q", (32, 1), 8, 32)]
DATA = bytes(32 + 34)
GOOD = build(PAIRS, INFOS, DATA)


def write(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)  # a mapping of an earlier file may still be alive
    path.write_bytes(content)
    return path


def test_values_of_every_shape(tmp_path: Path) -> None:
    file = gguf.read_file(write(tmp_path / "m.gguf", GOOD))
    assert file.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "a.float": 1.5,
        "a.list": ["x", "é"],
        "a.ints": [-1, 0, 7],
        "a.nested": [[8, 9]],
        "a.bool": True,
    }
    assert file.tensors["m"].shape == (2, 4)
    assert (file.tensors["q"].dtype, file.tensors["q"].nbytes) == ("Q8_0", 34)


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = package.GGUFWriter(path, "llama")
    scalars: dict[str, tuple[str, Any]] = {
        "uint8": ("x.u8", 200), "int8": ("x.i8", -3), "uint16": ("x.u16", 60000),
        "int16": ("x.i16", -300), "uint32": ("x.u32", 2**31), "int32": ("x.i32", -(2**30)),
        "uint64": ("x.u64", 2**63), "int64": ("x.i64", -(2**62)), "float64": ("x.f64", 0.1),
        "bool": ("x.bool", False), "string": ("x.str", "wörd"),
    }  # fmt: skip
    for kind, (key, value) in scalars.items():
        getattr(writer, f"add_{kind}")(key, value)
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((6, 64)).astype(np.float32)
    kinds = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
    for kind in kinds:
        tensor_type = package.GGMLQuantizationType[kind]
        writer.add_tensor(kind, package.quants.quantize(values, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = gguf.read_file(path)
    assert file.metadata["general.alignment"] == 64
    for key, value in scalars.values():
        assert file.metadata[key] == value
    reader = {t.name: t for t in package.GGUFReader(path).tensors}
    for kind in kinds:
        tensor = one_tensor(file.tensors[kind]).packed()
        assert (tensor.dtype, tensor.shape) == (kind, (6, 64))
        expected = package.quants.dequantize(reader[kind].data, reader[kind].tensor_type)
        np.testing.assert_array_equal(to_float32(tensor), expected.reshape(6, 64))


@pytest.mark.parametrize("kind", K_TYPES)
def test_k_types_stay_what_they_are(kind: str, tmp_path: Path) -> None:
    stored = random_k_tensor(np.random.default_rng(0), (300, 1280), kind)
    number = package.GGMLQuantizationType[kind]
    content = build([], [info("w", (1280, 300), int(number), 0)], bytes(stored.data))
    place = one_tensor(gguf.read_file(write(tmp_path / "m.gguf", content)).tensors["w"])
    tensor = place.packed()
    header = LazyTensors({"w": place}).header("w")
    assert (header.dtype, header.shape) == (tensor.dtype, tensor.shape)
    assert header.nbytes == tensor.nbytes
    assert (tensor.dtype, tensor.shape) == (kind, (300, 1280))
    assert bytes(tensor.data) == bytes(stored.data)


def test_real_vocabulary(shared_vocab: Path) -> None:
    file = gguf.read_file(shared_vocab / "ggml-vocab-llama-spm.gguf")
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 32000
    assert not file.tensors


HUGE = 2**63 - 1
CASES: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"GGUF", "truncated"),
    (b"GGML" + GOOD[4:], "not a GGUF"),
    (build(PAIRS, INFOS, DATA, version=1), "version 1"),
    (build(PAIRS, INFOS, DATA, version=0x03000000), "version"),
    (build(PAIRS, INFOS, DATA[:-1]), "truncated"),
    (GOOD[:60], "truncated"),
    (build(PAIRS, INFOS, DATA, counts=(2, HUGE)), "truncated or corrupt"),
    (build(PAIRS, INFOS, DATA, counts=(HUGE, 7)), "announced"),
    (build([pair("a", 8, struct.pack("<Q", HUGE))], [], b"x" * 64), "string"),
    (build([struct.pack("<Q", 70000) + b"k" * 70000], [], b"x" * 64), "string"),
    (build([pair("a", 9, struct.pack("<IQ", 8, HUGE))], [], b"x" * 64), "announced"),
    (build([pair("a", 9, struct.pack("<IQ", 10, 2**61))], [], b"x" * 64), "announced"),
    (build([pair("a", 9, struct.pack("<IQ", 0, HUGE))], [], b"x" * 64), "announced"),
    (build([pair("a", 99, b"")], [], b"x" * 64), "unknown type 99"),
    (build([pair("a", 9, struct.pack("<IQ", 9, 1) * 40)], [], b"x" * 64), "unknown type 9"),
    (build([pair("a", 8, string(b"\xff\xff"))], [], b"x" * 64), "UTF-8"),
    (build([pair("a", 7, b"\x01"), pair("a", 7, b"\x01")], [], b"x" * 64), "twice"),
    (build([pair("general.alignment", 4, struct.pack("<I", 0))], [], b"x" * 64), "alignment"),
    (build([pair("general.alignment", 4, struct.pack("<I", 24))], [], b"x" * 64), "alignment"),
    (build([pair("general.alignment", 8, string("x"))], [], b"x" * 64), "alignment"),
    (build([], [info("t" * 65, (4,), 0, 0)], DATA), "string"),
    (build([], [info("t", (1,) * 5, 0, 0)], DATA), "dimensions"),
    (build([], [info("t", (HUGE, HUGE, HUGE, HUGE), 0, 0)], DATA), "truncated"),
    (build([], [info("t", (4,), 0, HUGE - 31)], DATA), "aligned|truncated"),
    (build([], [info("t", (4,), 0, 4)], DATA), "aligned"),
    (build([], [info("t", (31, 2), 8, 0)], DATA), "whole blocks"),
    (build([], [info("t", (4,), 0, 0)] * 2, DATA), "twice"),
    (build([], [info("t", (16,), 0, 0), info("u", (4,), 0, 32)], DATA), "overlap"),
]


@pytest.mark.parametrize(("content", "named"), CASES)
def test_broken_files_are_named(content: bytes, named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "broken.gguf", content)
    with pytest.raises(TidemillError, match=named) as caught:
        gguf.read_file(path)
    assert caught.value.kind == ErrorKind.MODEL_FILE
    assert "broken.gguf" in caught.value.message


@pytest.mark.parametrize(("number", "named"), [(15, "Q8_K"), (26, "I32"), (99, "number 99")])
def test_other_types_are_named_when_used(number: int, named: str, tmp_path: Path) -> None:
    content = build([], [info("blk.0.x", (256,), number, 0)], bytes(1024))
    tensors = gguf.read_file(write(tmp_path / "m.gguf", content)).tensors
    with pytest.raises(TidemillError, match=f"blk.0.x.*{named}") as caught:
        one_tensor(tensors["blk.0.x"])
    assert caught.value.kind == ErrorKind.UNSUPPORTED


@settings(max_examples=400, deadline=2000)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8
    ),
    cut=st.integers(0, len(GOOD)) | st.just(len(GOOD)),
)
def test_mutated_files_never_surprise(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(GOOD)
    for at, value in changes:
        content[at] = value
    path = write(tmp_path_factory.getbasetemp() / "mutated.gguf", bytes(content[:cut]))
    try:
        file = gguf.read_file(path)
    except TidemillError:
        return
    for tensor in file.tensors.values():
        try:
            place = one_tensor(tensor)
            assert place.values().shape == tensor.shape
            assert (place.packed().nbytes > 0) == (0 not in tensor.shape)
        except Inexact:
            continue
        except TidemillError as error:
            assert error.kind == ErrorKind.UNSUPPORTED


@settings(max_examples=150, deadline=2000)
@given(at=st.integers(4, len(GOOD) - 8), value=st.integers(0, 2**64 - 1))
def test_any_length_field_may_lie(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    content = GOOD[:at] + struct.pack("<Q", value) + GOOD[at + 8 :]
    path = write(tmp_path_factory.getbasetemp() / "lie.gguf", content)
    try:
        gguf.read_file(path)
    except TidemillError as error:
        assert error.kind == ErrorKind.MODEL_FILE
