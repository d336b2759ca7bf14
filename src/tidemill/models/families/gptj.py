"""GPT-J (Wang & Komatsuzaki 2021): parallel blocks with one norm, rope on neighbouring values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.naming import Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Rope

_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
_UNUSED = (
    "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "attn_pdrop", "rotary", "scale_attn_weights",
    "gradient_checkpointing",
)  # fmt: skip
_THETA = 10000.0
_ROTARY_DIM = 64

RULES: Rules = (
    ("transformer.wte.weight", names.EMBED),
    ("transformer.ln_f.{t}", "final_norm.{t}"),
    ("lm_head.{t}", "lm_head.{t}"),
    ("transformer.h.{i}.ln_1.{t}", "layers.{i}.attn_norm.{t}"),
    ("transformer.h.{i}.attn.out_proj.{t}", "layers.{i}.attn.o.{t}"),
    ("transformer.h.{i}.attn.{p}_proj.{t}", "layers.{i}.attn.{p}.{t}"),
    ("transformer.h.{i}.attn.bias", None),  # the causal mask, in early files
    ("transformer.h.{i}.attn.masked_bias", None),
    ("transformer.h.{i}.mlp.fc_in.{t}", "layers.{i}.mlp.up.{t}"),
    ("transformer.h.{i}.mlp.fc_out.{t}", "layers.{i}.mlp.down.{t}"),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a GPT-J config.

    Keys: vocab_size, n_embd, n_head, n_layer, n_positions, n_inner (4 n_embd where absent),
    rotary_dim (64; null is the whole head), activation_function, layer_norm_epsilon,
    tie_word_embeddings.
    """
    plain = ConfigReader(config, "gptj", _NAMES)
    inner = config.get("n_inner") or 4 * plain.integer("hidden_size")
    reader = ConfigReader({**config, "n_inner": inner}, "gptj", _NAMES)
    for key in _UNUSED:
        reader.raw(key)

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        dim = reader.optional_integer("rotary_dim", low=2, high=head_dim)
        if dim is None:
            dim = head_dim if "rotary_dim" in config else min(_ROTARY_DIM, head_dim)
        return [Rope(_THETA, dim)] * layers

    return dense_spec(
        reader,
        "gptj",
        biases=Biases(mlp=True),
        ropes=ropes,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu_new",
        gated=False,
        layer={"parallel": True, "shared_norm": True},
        head_bias=True,
    )


FAMILY = Family(
    name="gptj",
    architectures=("GPTJForCausalLM",),
    spec=spec,
    rules=RULES,
    stored=Conventions(paired_rope=True),
)
