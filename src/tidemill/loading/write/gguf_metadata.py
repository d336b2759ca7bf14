"""What a GGUF file says about a model from a Hugging Face folder: shape, names, vocabulary.

Whether it says enough is not assumed but tried: the metadata are read back by the family that reads
GGUF files, and what comes out must be the same decoder; likewise the vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import TidemillError, unsupported
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.parts import ModelFiles
from tidemill.models.dense import Family
from tidemill.models.gguf_config import config_from_gguf
from tidemill.models.naming import canonical_names
from tidemill.models.registry import FAMILIES, family_for_gguf
from tidemill.models.spec import Attention, DecoderSpec, Moe, Recurrent, inverse_frequencies

ROPE_TENSOR = "rope_freqs.weight"
# Families whose GGUF files go by another's name.
_SPOKEN_FOR = {"mistral": "llama"}
_PREFIX = "tokenizer.ggml."


def gguf_family(files: ModelFiles) -> Family:
    """The family that reads this model's GGUF file; UNSUPPORTED without one."""
    own = next(f for f in FAMILIES if f.name == files.spec.family)
    if own.gguf is None and own.name in _SPOKEN_FOR:
        return family_for_gguf(_SPOKEN_FOR[own.name])
    if own.gguf is None:
        raise unsupported("out", f"GGUF files of {own.name} models are not written; give a folder")
    return own


def shape_metadata(files: ModelFiles, family: Family) -> dict[str, Any]:
    """The keys that describe the decoder, checked by reading them back.

    Raises:
        TidemillError: UNSUPPORTED when GGUF cannot say something that this model needs.
    """
    assert family.gguf is not None
    spec, arch = files.spec, family.gguf.arch
    mixer, mlp = spec.layers[0].mixer, spec.layers[0].mlp
    if isinstance(mlp, Moe):
        raise unsupported("out", "GGUF files of mixtures of experts are not written")
    if isinstance(mixer, Recurrent):
        raise unsupported("out", "GGUF files of recurrent models are not written")
    own: dict[str, Any] = {
        "block_count": len(spec.layers),
        "context_length": spec.max_positions,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": mlp.intermediate,
        "attention.head_count": mixer.heads,
        "attention.head_count_kv": mixer.kv_heads,
        "attention.key_length": mixer.head_dim,
        "attention.value_length": mixer.head_dim,
        "attention.layer_norm_rms_epsilon": float(np.float32(spec.norm_eps)),
        "vocab_size": spec.vocab_size,
    }
    if mixer.rope is not None:
        own["rope.freq_base"] = float(np.float32(mixer.rope.theta))
        own["rope.dimension_count"] = mixer.rope.dim
        if mixer.rope.scaling is not None and mixer.rope.scaling.kind == "linear":
            own["rope.scaling.type"] = "linear"
            own["rope.scaling.factor"] = float(np.float32(mixer.rope.scaling.factor))
    metadata: dict[str, Any] = {"general.architecture": arch, "general.name": files.path.name}
    metadata |= {f"{arch}.{key}": value for key, value in own.items()}
    _check_spec(files, family, metadata)
    return metadata


def _check_spec(files: ModelFiles, family: Family, metadata: Mapping[str, Any]) -> None:
    assert family.gguf is not None
    expected = files.spec.expected_tensors()
    shapes = {tensor_name(family, name): shape for name, shape in expected.items()}
    try:
        read = family.spec(config_from_gguf(metadata, shapes, family.gguf))
    except TidemillError as error:
        message = f"this model cannot be said in GGUF ({error.message}); give a folder as OUT"
        raise unsupported("out", message) from error
    if _plain(read) != _plain(files.spec):
        raise unsupported(
            "out",
            "this model needs something that GGUF files of its family do not say (a sliding "
            "window, layers that differ, ...); give a folder as OUT",
        )


def _plain(spec: DecoderSpec) -> DecoderSpec:
    """The spec without what files say in other ways: names, types, rounding, rope divisors."""
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, Attention)  # no recurrent model has got here
        rope = layer.mixer.rope
        if rope is not None:
            scaling = rope.scaling if rope.scaling and rope.scaling.kind == "linear" else None
            rope = dataclasses.replace(rope, theta=float(np.float32(rope.theta)), scaling=scaling)
        layers.append(dataclasses.replace(layer, mixer=dataclasses.replace(layer.mixer, rope=rope)))
    eps = float(np.float32(spec.norm_eps))
    return dataclasses.replace(
        spec, family="", weights_dtype="", layers=tuple(layers), norm_eps=eps
    )


def rope_divisors(spec: DecoderSpec) -> NDArray[np.float32] | None:
    """float32 [dim / 2]: what the frequencies are divided by, where linear scaling does not say
    it; None without."""
    mixer = spec.layers[0].mixer
    rope = None if isinstance(mixer, Recurrent) else mixer.rope
    if rope is None or rope.scaling is None or rope.scaling.kind == "linear":
        return None
    plain = inverse_frequencies(dataclasses.replace(rope, scaling=None))
    divisors: NDArray[np.float64] = np.array(plain) / np.array(inverse_frequencies(rope))
    return divisors.astype(np.float32)


def tensor_name(family: Family, canonical: str) -> str:
    """The stored name of a canonical one in the family's GGUF files."""
    assert family.gguf is not None
    fields = {"{i}": r"(?P<i>\d+)", "{p}": r"(?P<p>[a-z]+)", "{t}": r"(?P<t>weight|bias)"}
    for pattern, wanted in family.gguf.rules:
        if not isinstance(wanted, str):
            continue
        expression = re.escape(wanted).replace(r"\{", "{").replace(r"\}", "}")
        for key, group in fields.items():
            expression = expression.replace(key, group)
        match = re.fullmatch(expression, canonical)
        if match is None:
            continue
        name = pattern.format(**match.groupdict())
        if canonical_names(family.gguf.rules, name)[1].parts == (canonical,):
            return name
    raise unsupported("out", f"{canonical} has no name in GGUF files of {family.name} models")


def vocabulary(data: TokenizerData, files: ModelFiles, pre: str | None) -> dict[str, Any]:
    """The tokenizer.* keys of a model.

    Args:
        pre: name of the word rule (tokenizer.ggml.pre).

    Raises:
        TidemillError: UNSUPPORTED for a tokenizer that is not byte-level BPE (and no SentencePiece
            file).
    """
    found: dict[str, Any] = dict(data.gguf or {})
    if not found:
        found = _byte_level(json.loads(data.tokenizer_json or b"{}"), pre)
    if data.chat_template is not None:
        found["tokenizer.chat_template"] = data.chat_template
    if files.bos_token_id is not None:
        found.setdefault(_PREFIX + "bos_token_id", files.bos_token_id)
    if files.eos_token_ids:
        found[_PREFIX + "eos_token_id"] = files.eos_token_ids[0]
    size = len(found[_PREFIX + "tokens"])
    missing = files.spec.vocab_size - size
    if missing > 0:  # rows of the embedding that no token names
        found[_PREFIX + "tokens"] += [f"[PAD{size + i}]" for i in range(missing)]
        found[_PREFIX + "token_type"] += [5] * missing
        if _PREFIX + "scores" in found:
            found[_PREFIX + "scores"] += [0.0] * missing
    for key in ("precompiled_charsmap",):
        if isinstance(found.get(_PREFIX + key), bytes):
            found[_PREFIX + key] = list(found[_PREFIX + key])
    return found


def _byte_level(document: dict[str, Any], pre: str | None) -> dict[str, Any]:
    model = document.get("model") or {}
    text = json.dumps([document.get("pre_tokenizer"), document.get("decoder")])
    if model.get("type") != "BPE" or "ByteLevel" not in text or model.get("byte_fallback"):
        raise unsupported(
            "out",
            "the model's tokenizer.json is no byte-level BPE, and there is no tokenizer.model: "
            "its vocabulary is not written to GGUF; give a folder as OUT",
        )
    if pre is None:
        raise unsupported(
            "pre", "no known word rule cuts text as this tokenizer does: its vocabulary is not "
            "written to GGUF; give a folder as OUT",
        )  # fmt: skip
    tokens = {index: token for token, index in model["vocab"].items()}
    types = dict.fromkeys(tokens, 1)
    for added in document.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = 3 if added.get("special") else 4
    count = max(tokens) + 1
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    return {
        _PREFIX + "model": "gpt2",
        _PREFIX + "pre": pre,
        _PREFIX + "tokens": [tokens.get(i, f"[PAD{i}]") for i in range(count)],
        _PREFIX + "token_type": [types.get(i, 5) for i in range(count)],
        _PREFIX + "merges": merges,
    }
