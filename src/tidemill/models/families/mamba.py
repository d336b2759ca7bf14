"""Shared by families with Mamba-2 layers (Dao & Gu 2024): config keys, and tensor names in Hugging
Face folders and in GGUF files."""

from __future__ import annotations

import math
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import ConfigReader, checked_integer
from tidemill.models.dense import MAX_HEADS
from tidemill.models.gguf_family import INNER, GgufFile
from tidemill.models.naming import Fused, Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import MAX_CONV_KERNEL, Recurrent

_OURS = "layers.{i}.rec."
_PARTS = ("z", "qkv", "a")

# Names in GGUF files. No projection has a bias.
GGUF_MIXER: Rules = (
    ("blk.{i}.ssm_in.weight", Fused(tuple(f"{_OURS}{part}.weight" for part in _PARTS))),
    ("blk.{i}.ssm_out.weight", _OURS + "out.weight"),
    ("blk.{i}.ssm_conv1d.{t}", _OURS + "conv.{t}"),
    ("blk.{i}.ssm_norm.weight", _OURS + "norm.weight"),
    ("blk.{i}.ssm_dt.bias", _OURS + "a_bias"),
    ("blk.{i}.ssm_a", _OURS + "a_log"),
    ("blk.{i}.ssm_d", _OURS + "skip"),
)
GGUF_STORED = Conventions(decays=True)
GGUF_CONV_BIAS = "blk.{i}.ssm_conv1d.bias"
# Their keys, as `read_mixer` names them; the other key is `INNER`.
GGUF_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.group_count": "mamba_n_groups",
}


def mixer_rules(prefix: str) -> Rules:
    """Tensor names of a mixer, which begin with `prefix`."""
    return (
        (prefix + "in_proj.{t}", Fused(tuple(f"{_OURS}{part}.{{t}}" for part in _PARTS))),
        (prefix + "out_proj.{t}", _OURS + "out.{t}"),
        (prefix + "conv1d.{t}", _OURS + "conv.{t}"),
        (prefix + "norm.weight", _OURS + "norm.weight"),
        (prefix + "A_log", _OURS + "a_log"),
        (prefix + "dt_bias", _OURS + "a_bias"),
        (prefix + "D", _OURS + "skip"),
    )


def gguf_widths(file: GgufFile) -> tuple[int | None, int | None]:
    """(width of a mixer, width of its heads) from a file's keys; None when they are missing.

    Raises:
        TidemillError: MODEL_FILE when the width is not a multiple of the number of heads.
    """
    inner, heads = file.keys.get(INNER), file.keys.get("ssm.time_step_rank")
    if type(inner) is not int or type(heads) is not int or heads < 1:
        return None, None  # rejected with the number of heads
    if inner % heads:
        raise model_file_error(
            f"GGUF key {INNER} ({inner}) is not a multiple of ssm.time_step_rank ({heads})",
            param=INNER,
        )
    return inner, inner // heads


def gguf_expand(file: GgufFile, key: str) -> dict[str, Any]:
    """The ratio of the mixer's width to hidden_size, as `key`, from a file's keys; empty when they
    are missing. It is rounded down: a fraction is rejected with the heads."""
    inner, _ = gguf_widths(file)
    hidden = file.config.get("hidden_size")
    if inner is None or not isinstance(hidden, int) or hidden < 1:
        return {}
    return {key: inner // hidden}


def read_mixer(reader: ConfigReader, width: int | None = None) -> Recurrent:
    """The mixer of a config with these keys: mamba_n_heads, mamba_d_head (absent or "auto": derived
    from mamba_expand), mamba_n_groups, mamba_d_state, mamba_d_conv, mamba_conv_bias,
    mamba_proj_bias, mamba_expand, time_step_limit. mamba_chunk_size changes no result. `width`
    overrides the mixer's width, which is otherwise mamba_expand times hidden_size."""
    reader.must_be("hidden_act", "silu")
    reader.raw("mamba_chunk_size")
    heads = reader.integer("mamba_n_heads", 128, high=MAX_HEADS)
    inner = reader.integer("mamba_expand", 2) * reader.integer("hidden_size")
    what = "mamba_expand times hidden_size" if width is None else "mamba_d_ssm"
    inner = width or inner
    given = reader.raw("mamba_d_head")
    if given is None or given == "auto":
        given = inner // heads
    head_dim = checked_integer("mamba_d_head", given, 1, inner)
    if heads * head_dim != inner:
        raise model_file_error(
            f"mamba_n_heads ({heads}) heads of {head_dim} are not {what} ({inner})",
            param="mamba_n_heads",
        )
    return mamba2(
        reader,
        heads,
        head_dim,
        groups=reader.integer("mamba_n_groups", 1, high=MAX_HEADS),
        state=reader.integer("mamba_d_state", 256),
        conv_kernel=reader.integer("mamba_d_conv", 4, high=MAX_CONV_KERNEL),
        bias=reader.boolean("mamba_proj_bias"),
        conv_bias=reader.boolean("mamba_conv_bias", True),
    )


def mamba2(
    reader: ConfigReader,
    heads: int,
    head_dim: int,
    *,
    groups: int,
    state: int,
    conv_kernel: int,
    bias: bool,
    conv_bias: bool,
) -> Recurrent:
    """The mixer of these sizes; its output is gated and then normed in groups."""
    if heads % groups:
        raise model_file_error(
            f"{heads} Mamba heads are not a multiple of {groups} groups", param="n_groups"
        )
    return Recurrent(
        "ssd",
        groups,
        heads,
        state,
        head_dim,
        conv_kernel=conv_kernel,
        bias=bias,
        conv_bias=conv_bias,
        skip=True,
        norm_groups=groups,
        gate_first=True,
        time_limits=_time_limits(reader.raw("time_step_limit")),
    )


def _time_limits(value: Any) -> tuple[float, float]:
    if value is None:
        return 0.0, math.inf
    if isinstance(value, list) and len(value) == 2:
        # transformers 5 writes numbers that JSON lacks (such as infinity) as objects.
        numbers: list[Any] = [v.get("__float__") if isinstance(v, dict) else v for v in value]
        try:
            low, high = (float(v) for v in numbers)
        except (TypeError, ValueError):
            low = math.nan
        if 0.0 <= low < high:
            return low, high
    raise model_file_error("time_step_limit must be two ascending numbers", param="time_step_limit")
