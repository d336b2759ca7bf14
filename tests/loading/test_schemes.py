"""Quantized checkpoints: values exactly as the scheme defines them, held as kernels can."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import packers
from helpers.quantized_folder import Packer, write
from helpers.tiny_folder import CONFIG, write_folder

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model
from tidemill.loading.lazy import Holding
from tidemill.models.quantization import stored_type, to_float32
from tidemill.models.tensors import RawTensor


def read(folder: Path) -> dict[str, Any]:
    """Stored name -> place."""
    return {place.name: place for place in open_model(folder).tensors.places.values()}


def check(folder: Path, packer: Packer, quantization: dict[str, Any], held: str) -> None:
    """Values are exact, and the type that holds them keeps them."""
    expected = write(folder, packer, quantization)
    places = read(folder)
    for name, values in expected.items():
        place = places[name]
        np.testing.assert_array_equal(place.values(), values, err_msg=name)
        assert place.exact == held
        tensor = place.packed()
        assert (tensor.dtype, tensor.shape) == (held, values.shape)
        np.testing.assert_array_equal(to_float32(tensor), values)


GPTQ = {"quant_method": "gptq"}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq(bits: int, group: int, version: int, tmp_path: Path) -> None:
    form = {"checkpoint_format": "gptq"} if version == 1 else {"checkpoint_format": "gptq_v2"}
    config = {**GPTQ, **form, "bits": bits, "group_size": group, "sym": True, "desc_act": False}
    held = "Q8_0" if bits == 8 else "Q4_0"
    check(tmp_path, lambda v: packers.gptq(v, bits, group, version=version), config, held)


@pytest.mark.parametrize(("bits", "held"), [(2, "Q4_0"), (3, "Q4_0"), (4, "Q5_0")])
def test_gptq_with_zero_points(bits: int, held: str, tmp_path: Path) -> None:
    config = {**GPTQ, "bits": bits, "group_size": 32, "sym": False, "desc_act": False}
    check(tmp_path, lambda v: packers.gptq(v, bits, 32, sym=False), config, held)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_gptq_in_act_order(bits: int, tmp_path: Path) -> None:
    config = {**GPTQ, "bits": bits, "group_size": 32, "sym": True, "desc_act": True}
    check(tmp_path, lambda v: packers.gptq(v, bits, 32, act_order=True), config, "F32")


def test_gptq_groups_that_no_block_fits(tmp_path: Path) -> None:
    config = {**GPTQ, "bits": 4, "group_size": 16, "sym": True, "desc_act": False}
    check(tmp_path, lambda v: packers.gptq(v, 4, 16), config, "F32")


@pytest.mark.parametrize("packing", ["auto_round:auto_gptq", "auto_round:auto_awq"])
def test_auto_round_writes_others_bytes(packing: str, tmp_path: Path) -> None:
    config = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "sym": True}
    if packing.endswith("awq"):
        check(tmp_path, lambda v: packers.awq(v, 32), config, "Q5_0")
    else:
        check(tmp_path, lambda v: packers.gptq(v, 4, 32), config, "Q4_0")


@pytest.mark.parametrize("group", [32, 64])
def test_awq(group: int, tmp_path: Path) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    check(tmp_path, lambda v: packers.awq(v, group), config, "Q5_0")


PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


@pytest.mark.parametrize(
    ("bits", "group", "sym", "held"),
    [(4, 32, True, "Q4_0"), (4, -1, True, "Q4_0"), (8, 64, True, "Q8_0"), (4, 64, False, "Q5_0")],
)
def test_compressed_tensors_packed(
    bits: int, group: int, sym: bool, held: str, tmp_path: Path
) -> None:
    check(tmp_path, lambda v: packers.pack_quantized(v, bits, group, sym=sym), PACKED, held)


def test_compressed_tensors_int8_and_kv_scales(tmp_path: Path) -> None:
    def packer(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        parts, values = packers.int8_rows(value)
        return {**parts, ".input_scale": np.ones(1, np.float32)}, values

    config = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    check(tmp_path, packer, config, "Q8_0")
    assert any("activations" in note for note in open_model(tmp_path).notes)


_EIGHT = {"num_bits": 8, "type": "int", "symmetric": True}
_PER_TOKEN = {**_EIGHT, "strategy": "token", "dynamic": True}


def w8(*inputs: dict[str, Any] | None) -> dict[str, Any]:
    """A group of int8 weights for each way of rounding activations."""
    weights = {**_EIGHT, "strategy": "channel"}
    groups = {
        f"group_{i}": {"targets": ["Linear"], "weights": weights, "input_activations": given}
        for i, given in enumerate(inputs)
    }
    return {
        "quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups,
    }  # fmt: skip


def wide_int8_rows(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """int8 with scales that are no float16, and -128 among the integers."""
    parts, _ = packers.int8_rows(value)
    q, scale = parts[".weight"], parts[".weight_scale"].astype(np.float32) * np.float32(1.0001)
    q[:, 3] = -128
    return {".weight": q, ".weight_scale": scale}, scale * q.astype(np.float32)


@pytest.mark.parametrize(
    "given", [{"strategy": "token", "dynamic": True}, {**_PER_TOKEN, "actorder": None}]
)
def test_int8_weights_for_int8_activations_per_token(given: dict[str, Any], tmp_path: Path) -> None:
    check(tmp_path, wide_int8_rows, w8(given), "INT8")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_int8_with_one_scale_for_all(shape: tuple[int, ...], tmp_path: Path) -> None:
    def pack(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        q = np.rint(value * 500).clip(-127, 127).astype(np.int8)
        scale = np.full(shape, 0.00173, np.float32)
        return {".weight": q, ".weight_scale": scale}, q * np.float32(0.00173)

    check(tmp_path, pack, w8(_PER_TOKEN), "INT8")


@pytest.mark.parametrize(
    "inputs",
    [
        (None,),
        ({**_PER_TOKEN, "dynamic": False},),
        ({**_PER_TOKEN, "strategy": "tensor"},),
        ({**_PER_TOKEN, "symmetric": False},),
        ({**_PER_TOKEN, "num_bits": 4},),
        ({**_PER_TOKEN, "type": "float"},),
        (_PER_TOKEN, None),
    ],
)
def test_int8_weights_for_other_activations(inputs: tuple[Any, ...], tmp_path: Path) -> None:
    check(tmp_path, packers.int8_rows, w8(*inputs), "Q8_0")


def fp8(scale_ending: str, blocks: tuple[int, int] | None, rows: bool = False) -> Packer:
    def pack(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        n, k = value.shape
        if blocks is not None:
            shape = (-(-n // blocks[0]), -(-k // blocks[1]))
        else:
            shape = (n, 1) if rows else (1,)
        rng = np.random.default_rng(k)
        scale = rng.uniform(0.0005, 0.002, shape).astype(np.float32)
        wide = scale
        if blocks is not None:
            wide = scale.repeat(blocks[0], 0)[:n].repeat(blocks[1], 1)[:, :k]
        codes = torch.from_numpy(value / wide).to(torch.float8_e4m3fn)
        return {".weight": codes, scale_ending: scale}, codes.float().numpy() * wide

    return pack


@pytest.mark.parametrize(
    ("packer", "config"),
    [
        (
            fp8(".weight_scale_inv", (32, 48)),
            {"quant_method": "fp8", "weight_block_size": [32, 48]},
        ),
        (fp8(".weight_scale", None), {"quant_method": "fp8", "activation_scheme": "static"}),
        (fp8(".weight_scale", None, rows=True), {"quant_method": "fbgemm_fp8"}),
        (
            fp8(".weight_scale", None, rows=True),
            {"quant_method": "compressed-tensors", "format": "float-quantized"},
        ),
        (
            fp8(".weight_scale", (32, 32)),
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": {"weights": {"block_structure": [32, 32]}}},
            },
        ),
    ],
)
def test_fp8(packer: Packer, config: dict[str, Any], tmp_path: Path) -> None:
    check(tmp_path, packer, config, "F32")


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_without_scales_is_bfloat16(kind: torch.dtype, tmp_path: Path) -> None:
    def pack(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        codes = torch.from_numpy(value).to(kind)
        return {".weight": codes}, codes.float().numpy()

    check(tmp_path, pack, {"quant_method": "fp8"}, "BF16")


def test_bitsandbytes(tmp_path: Path) -> None:
    config = {"quant_method": "bitsandbytes"}
    for nested in (False, True):
        check(tmp_path / str(nested), lambda v, n=nested: packers.nf4(v, nested=n), config, "F32")
    expected = write(tmp_path / "int8", packers.bnb_int8, config)
    places = read(tmp_path / "int8")
    for name, values in expected.items():
        # Two roundings in the reference: a last place.
        np.testing.assert_array_max_ulp(places[name].values(), values, 1)


# --- how they are held ---

NF4 = {"quant_method": "bitsandbytes"}


def test_what_no_kernel_multiplies_is_held_in_eight_bits(tmp_path: Path) -> None:
    write(tmp_path, packers.nf4, NF4)
    files = open_model(tmp_path)
    held = files.tensors.held(Holding(wide=False))
    tensor = held["layers.0.attn.q.weight"]
    assert stored_type("layers.0.attn.q.weight", tensor, "none") == "Q8_0"
    assert tensor.data.nbytes == 64 * 64 * 4 and 0 < held.errors["layers.0.attn.q.weight"] < 0.01
    assert "from NF4, which no kernel multiplies, to Q8_0" in str(held.error_note())
    wide = files.tensors.held(Holding(wide=True))
    assert wide["layers.0.attn.q.weight"].dtype == "F32" and wide.error_note() is None
    assert stored_type("layers.0.attn.q.weight", wide["layers.0.attn.q.weight"], "none") == "F32"


def test_requantizing_says_what_it_loses(tmp_path: Path) -> None:
    expected = write(tmp_path, packers.nf4, NF4)
    held = open_model(tmp_path).tensors.held(Holding(wide=False, quantize="q8_0"))
    tensor = held["layers.0.attn.q.weight"]
    values = expected["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(to_float32(tensor), values)  # the backend requantizes
    assert set(held.errors) == {"layers.0.attn.q.weight"}
    blocks = values.reshape(-1, 32).astype(np.float64)
    d = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float64)
    lost = np.rint(blocks / d) * d - blocks
    own = np.sqrt((lost**2).mean() / (blocks**2).mean())
    assert held.errors["layers.0.attn.q.weight"] == pytest.approx(own, rel=0.05)
    assert "1 weights were requantized" in str(held.error_note())


def test_scales_beyond_float16(tmp_path: Path) -> None:
    def pack(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        parts, values = packers.int8_rows(value)
        scale = parts[".weight_scale"].astype(np.float32) * np.float32(1.0001)
        return {**parts, ".weight_scale": scale}, values

    write(tmp_path, pack, {"quant_method": "compressed-tensors", "format": "int-quantized"})
    tensors = open_model(tmp_path).tensors
    held = tensors.held(Holding(wide=False))
    assert held["layers.0.attn.q.weight"].data.nbytes == 64 * 64 // 32 * 34
    # The integers are the file's own: only the scales are rounded.
    assert 0 < held.errors["layers.0.attn.q.weight"] < 0.0005


@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_llm_loads_and_says_it(quantize: str, tmp_path: Path) -> None:
    """The whole way: a GPTQ model and its dequantized twin give the same tokens."""
    from tidemill.contract.config import EngineConfig
    from tidemill.engine.offline import InprocEngine

    write(tmp_path / "nf4", packers.nf4, NF4)
    config = EngineConfig(
        model=str(tmp_path / "nf4"), served_name="m", quantize=quantize, kv_memory=2**22,
        dtype="bfloat16",
    )  # fmt: skip
    lines: list[str] = []
    engine = InprocEngine.open(config, lines.append)
    try:
        for _ in range(6000):
            if any("14 weights were requantized" in line for line in lines):
                break
            time.sleep(0.01)
        assert any("14 weights were requantized" in line for line in lines)
    finally:
        engine.close()


# --- HQQ ---

HQQ = {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]}


@pytest.mark.parametrize(
    ("bits", "group", "axis", "dtype", "held"),
    [
        (4, 64, 1, "float16", "F16"), (4, 32, 0, "bfloat16", "BF16"),
        (8, 32, 1, "bfloat16", "BF16"), (3, 64, 1, "float16", "F16"),
        (3, 32, 0, "float16", "F16"), (2, 64, 1, "float32", "F32"), (1, 32, 0, "float16", "F16"),
    ],
)  # fmt: skip
def test_hqq(bits: int, group: int, axis: int, dtype: str, held: str, tmp_path: Path) -> None:
    check(tmp_path, lambda value: packers.hqq(value, bits, group, axis, dtype), HQQ, held)


def test_hqq_viewed_as_floats(tmp_path: Path) -> None:
    check(tmp_path, lambda value: packers.hqq(value, 4, 64, 1, "float16", True), HQQ, "F16")


@pytest.mark.parametrize(
    ("ending", "value", "named"),
    [
        (".W_q", torch.zeros(3, 3, dtype=torch.uint8), "9 bytes"),
        (".scale", torch.zeros(3), "scale has shape"),
        (".shape", torch.tensor([64, -64]), "between 1 and"),
        (".group_size", torch.tensor(33, dtype=torch.int32), "groups of 33 do not divide"),
        (".axis", torch.tensor(2, dtype=torch.int32), "axis"),
        (".packing", torch.tensor(list(b"5bit"), dtype=torch.uint8), "'5bit'"),
        (".compute_dtype", torch.tensor(list(b"exec()"), dtype=torch.uint8), r"'exec\(\)'"),
        (".quant_zero", torch.tensor(1, dtype=torch.uint8), "quantized or offloaded"),
        (".nbits", None, None),
        (".shape", None, "shape is missing"),
    ],
)
def test_damaged_hqq_is_named(ending: str, value: Any, named: str | None, tmp_path: Path) -> None:
    def pack(weight: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        parts, values = packers.hqq(weight, 4, 64, 1, "float16")
        parts[ending] = None if value is None else value.clone()
        return {e: p for e, p in parts.items() if p is not None}, values

    write(tmp_path, pack, HQQ)
    if named is None:  # the packing says it
        open_model(tmp_path)
        return
    with pytest.raises(TidemillError, match=named) as caught:
        open_model(tmp_path)
    assert caught.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)


def test_gptq_with_settings_by_module(tmp_path: Path) -> None:
    """GPTQModel's `dynamic`: bits and groups that differ are what the shapes say."""
    turn = iter(range(100))

    def pack(weight: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        bits, group = ((4, 32), (8, 64), (3, -1))[next(turn) % 3]
        return packers.gptq(weight, bits, group)

    dynamic = {r"+:.*\.0\..*": {"bits": 8, "group_size": 64}, "-:lm_head": {}}
    expected = write(tmp_path, pack, {**GPTQ, "bits": 4, "group_size": 32, "dynamic": dynamic})
    places = read(tmp_path)
    for name, values in expected.items():
        np.testing.assert_array_equal(places[name].values(), values, err_msg=name)
        np.testing.assert_array_equal(to_float32(places[name].packed()), values, err_msg=name)
    assert {places[name].exact for name in expected} == {"Q4_0", "Q8_0"}


# --- mistakes ---


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "aqlm"}, "'aqlm'.*--quantize"),
        ({"quant_method": 7}, "quant_method|7"),
        ("nf4", "must be an object"),
        ({**GPTQ, "bits": 5}, "bits is 5"),
        ({**GPTQ, "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({**GPTQ, "bits": 4, "dynamic": {"x": {"sym": False}}}, "dynamic sets sym to False"),
        ({**GPTQ, "bits": 4, "dynamic": {"x": {"rotation": "h"}}}, "dynamic sets 'rotation'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "marlin-24"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "auto-round", "bits": 4}, "packing_format"),
    ],
)
def test_schemes_that_are_not_read(config: Any, named: str, tmp_path: Path) -> None:
    write_folder(tmp_path, config={**CONFIG, "quantization_config": config})
    with pytest.raises(TidemillError, match=named) as caught:
        open_model(tmp_path)
    assert caught.value.kind in (ErrorKind.UNSUPPORTED, ErrorKind.MODEL_FILE)


def damaged(ending: str, change: Callable[[np.ndarray], Any]) -> Packer:
    def pack(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        parts, values = packers.gptq(value, 4, 32)
        parts[ending] = change(parts[ending])
        return {e: p for e, p in parts.items() if p is not None}, values

    return pack


@pytest.mark.parametrize(
    ("packer", "named"),
    [
        (damaged(".scales", lambda a: a[:-1]), "qzeros|scales"),
        (damaged(".qzeros", lambda a: None), "qzeros is missing"),
        (damaged(".g_idx", lambda a: a[:-1]), "g_idx"),
        (damaged(".qweight", lambda a: a.astype(np.float32)), "F32 where I32"),
        (damaged(".qweight", lambda a: a[:-1]), "g_idx|shape"),
    ],
)
def test_damaged_parts_are_named(packer: Packer, named: str, tmp_path: Path) -> None:
    write(tmp_path, packer, {**GPTQ, "bits": 4, "group_size": 32})
    with pytest.raises(TidemillError, match=named) as caught:
        open_model(tmp_path)
    assert caught.value.kind == ErrorKind.MODEL_FILE


def test_groups_that_are_not_there(tmp_path: Path) -> None:
    config = {**GPTQ, "bits": 4, "group_size": 32}
    write(tmp_path, damaged(".g_idx", lambda a: a + 1), config)
    with pytest.raises(TidemillError, match="g_idx names group 2 of 2"):
        read(tmp_path)["model.layers.0.self_attn.q_proj.weight"].values()


def test_int8_rows_become_blocks_in_gguf(tmp_path: Path) -> None:
    """GGUF has no type of one scale per row; Q8_0 keeps the weights where float16 has the scale."""
    from tidemill.convert.gguf.tensors import to_gguf
    from tidemill.convert.output import Loss

    expected = write(tmp_path / "half", packers.int8_rows, w8(_PER_TOKEN))
    out = {t.name: t for t in to_gguf(open_model(tmp_path / "half"), None, Loss())}
    tensor = out["blk.1.ffn_up.weight"]
    data = b"".join(bytes(piece) for piece in tensor.pieces())
    assert tensor.dtype == "Q8_0" and len(data) == tensor.nbytes
    np.testing.assert_array_equal(
        to_float32(RawTensor("Q8_0", tensor.shape, memoryview(data))),
        expected["model.layers.1.mlp.up_proj.weight"],
    )
    write(tmp_path / "wide", wide_int8_rows, w8(_PER_TOKEN))
    out = {t.name: t for t in to_gguf(open_model(tmp_path / "wide"), None, Loss())}
    with pytest.raises(TidemillError, match="tidemill quantize"):
        list(out["blk.1.ffn_up.weight"].pieces())
