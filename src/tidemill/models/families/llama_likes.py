"""InternLM2 (Cai et al. 2024), Baichuan 7B (Yang et al. 2023), MiniCPM 1 and 2 (Hu et al. 2024) and
EXAONE 3 (LG AI Research 2024): Llama under other names, MiniCPM with Granite's multipliers.

Their checkpoints bring their own code (`auto_map`), which is never run; their arithmetic is
implemented here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import unsupported
from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader, checked_number
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily, GgufFile
from tidemill.models.naming import GGUF_RULES, GROUPED_QKV, HF_RULES, QKV, Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec

_LAYER = "model.layers.{i}."
INTERNLM2_RULES: Rules = (
    ("model.tok_embeddings.weight", names.EMBED),
    ("output.weight", names.LM_HEAD),
    (_LAYER + "attention_norm.weight", "layers.{i}.attn_norm.weight"),
    (_LAYER + "ffn_norm.weight", "layers.{i}.mlp_norm.weight"),
    (_LAYER + "attention.wqkv.{t}", GROUPED_QKV),
    (_LAYER + "attention.wo.{t}", "layers.{i}.attn.o.{t}"),
    (_LAYER + "feed_forward.w1.weight", "layers.{i}.mlp.gate.weight"),
    (_LAYER + "feed_forward.w2.weight", "layers.{i}.mlp.down.weight"),
    (_LAYER + "feed_forward.w3.weight", "layers.{i}.mlp.up.weight"),
    *HF_RULES,
)
BAICHUAN_RULES: Rules = ((_LAYER + "self_attn.W_pack.{t}", QKV), *HF_RULES)
_H = "transformer.h.{i}."
EXAONE_RULES: Rules = (
    ("transformer.wte.weight", names.EMBED),
    ("transformer.ln_f.weight", names.FINAL_NORM),
    ("lm_head.weight", names.LM_HEAD),
    (_H + "ln_1.weight", "layers.{i}.attn_norm.weight"),
    (_H + "ln_2.weight", "layers.{i}.mlp_norm.weight"),
    (_H + "attn.attention.rotary.inv_freq", None),
    (_H + "attn.attention.out_proj.weight", "layers.{i}.attn.o.weight"),
    (_H + "attn.attention.{p}_proj.weight", "layers.{i}.attn.{p}.weight"),
    (_H + "mlp.c_fc_0.weight", "layers.{i}.mlp.gate.weight"),
    (_H + "mlp.c_fc_1.weight", "layers.{i}.mlp.up.weight"),
    (_H + "mlp.c_proj.weight", "layers.{i}.mlp.down.weight"),
)
_EXAONE_NAMES = {
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
_NORMED_HEAD = 125696  # Baichuan 2's vocabulary
_PAIRED = Conventions(paired_rope=True)


def _reader(
    config: Mapping[str, Any], family: str, own: Mapping[str, str] | None = None
) -> ConfigReader:
    reader = ConfigReader(config, family, own)
    reader.raw("auto_map")
    return reader


def internlm2(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an InternLM2 config. Key besides the common ones: bias (on Q, K, V and O)."""
    reader = _reader(config, "internlm2")
    bias = reader.boolean("bias", True)
    return dense_spec(reader, "internlm2", biases=Biases(q=bias, k=bias, v=bias, o=bias))


def baichuan(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Baichuan config. 13B (ALiBi; no max_position_embeddings) and Baichuan 2 (a normed
    output projection, identified by its vocabulary) are rejected, because no reference exists to
    test them."""
    reader = _reader(config, "baichuan")
    if reader.raw("vocab_size") == _NORMED_HEAD:
        raise unsupported(
            "vocab_size", "Baichuan 2, whose output projection is normed, is not read"
        )
    if reader.raw("max_position_embeddings") is None:
        raise unsupported("max_position_embeddings", "Baichuan 13B (ALiBi) is not read")
    reader.must_be("z_loss_weight", 0)
    return dense_spec(reader, "baichuan")


def minicpm(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a MiniCPM config.

    Keys besides the common ones: scale_emb, scale_depth (residuals are scaled by it over the square
    root of the layers' number), dim_model_base (logits are divided by hidden_size over it).
    Embeddings are tied by default.
    """
    reader = _reader(config, "minicpm")
    reader.must_be("num_experts", 0)
    return dense_spec(
        reader,
        "minicpm",
        tied=True,
        embed_scale=reader.number("scale_emb", 1.0),
        residual_scale=reader.number("scale_depth", 1.0)
        / reader.integer("num_hidden_layers") ** 0.5,
        logit_scale=reader.number("dim_model_base", 1.0) / reader.integer("hidden_size"),
    )


def exaone(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an EXAONE 3 config: the common keys, three of them under other names."""
    reader = _reader(config, "exaone", _EXAONE_NAMES)
    for key in ("embed_dropout", "attention_dropout"):
        reader.raw(key)
    return dense_spec(reader, "exaone", norm_eps=1e-5)


def _scales(file: GgufFile) -> dict[str, Any]:
    """MiniCPM's scales under the keys of its config."""
    layers, hidden = file.config.get("num_hidden_layers"), file.config.get("hidden_size")
    if not isinstance(layers, int) or not isinstance(hidden, int) or layers < 1:
        return {}  # rejected with the sizes
    depth, base = (
        checked_number(f"minicpm.{key}", file.keys.get(key))
        for key in ("residual_scale", "logit_scale")
    )
    return {"scale_depth": depth * layers**0.5, "dim_model_base": hidden / base}


def _no_13b(file: GgufFile) -> dict[str, Any]:
    """Reject 13B. Files state neither rope nor ALiBi, so it is identified by its 40 layers."""
    deep = file.config.get("num_hidden_layers") == 40
    return {"max_position_embeddings": None} if deep else {}


INTERNLM2 = Family(
    name="internlm2",
    architectures=("InternLM2ForCausalLM",),
    spec=internlm2,
    rules=INTERNLM2_RULES,
    gguf=GgufFamily(
        arch="internlm2",
        rules=GGUF_RULES,
        stored=_PAIRED,
        biases={"bias": "blk.0.attn_q.bias"},
    ),
)
BAICHUAN = Family(
    name="baichuan",
    architectures=("BaiChuanForCausalLM", "BaichuanForCausalLM"),
    spec=baichuan,
    rules=BAICHUAN_RULES,
    gguf=GgufFamily(arch="baichuan", rules=GGUF_RULES, stored=_PAIRED, implied=_no_13b),
)
MINICPM = Family(
    name="minicpm",
    architectures=("MiniCPMForCausalLM",),
    spec=minicpm,
    rules=HF_RULES,
    gguf=GgufFamily(
        arch="minicpm",
        rules=GGUF_RULES,
        stored=_PAIRED,
        keys={
            "embedding_scale": "scale_emb",
            "residual_scale": "scale_depth",
            "logit_scale": "logits_scaling",
        },
        implied=lambda file: {"logits_scaling": None, **_scales(file)},
    ),
)
EXAONE = Family(
    name="exaone",
    architectures=("ExaoneForCausalLM",),
    spec=exaone,
    rules=EXAONE_RULES,
    gguf=GgufFamily(arch="exaone", rules=GGUF_RULES, names=_EXAONE_NAMES),
)
