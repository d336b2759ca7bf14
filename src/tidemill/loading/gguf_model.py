"""A GGUF file as `ModelFiles`."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.base.text_lists import Texts
from tidemill.base.tokenizer_data import NO_TOKEN
from tidemill.loading.formats import gguf, gguf_split
from tidemill.loading.generation import GenerationDefaults, token_ids
from tidemill.loading.gguf_rope import with_rope_factors
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.mapped import StoredTensor, in_file
from tidemill.loading.mtp import Checkpoint, mtp_tensors
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import one_tensor
from tidemill.loading.text_side import read_gguf
from tidemill.models.gguf_config import config_from_gguf
from tidemill.models.naming import match_tensors
from tidemill.models.registry import family_for_gguf

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_TEXTS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>")
)
_CONTROL = 3  # in tokenizer.ggml.token_type


def open_file(path: Path) -> ModelFiles:
    """Open a GGUF file, or a model split into several by any of its files. Only headers are read,
    and the rope divisors if present.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED; the message names the key or tensor.
    """
    file = gguf_split.read_model(path)
    try:
        return _open(file)
    except TidemillError as error:
        raise in_file(error, path) from error


def _open(file: gguf.GgufFile) -> ModelFiles:
    metadata = file.metadata
    stored = {name: _as_matrix(name, tensor) for name, tensor in file.tensors.items()}
    family = family_for_gguf(metadata)
    assert family.gguf is not None
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    config = config_from_gguf(metadata, shapes, family.gguf)
    spec = family.spec(config)
    factored = _full_layers(config) if family.gguf.full_factors else None
    spec = with_rope_factors(spec, metadata, stored, factored)
    sources = match_tensors(spec, family.gguf.rules, shapes, family.gguf.stored)
    whole = {s.stored: one_tensor(stored[s.stored]) for s in sources.values()}
    tensors = LazyTensors.of_sources(whole, sources)
    named = family.gguf
    checkpoint = Checkpoint(family.spec, config, spec, named.rules, named.stored)
    return ModelFiles(
        path=file.path,
        format="gguf",
        config=config,
        spec=dataclasses.replace(spec, weights_dtype=tensors.prevailing_dtype()),
        tensors=tensors,
        sources=sources,
        mtp=mtp_tensors(checkpoint, named.mtp, stored, sources),
        bos_token_id=next(iter(_ids(metadata, "bos_token_id", spec.vocab_size)), None),
        eos_token_ids=_end_tokens(metadata, spec.vocab_size),
        generation=GenerationDefaults(),
        tokenizer=read_gguf(metadata),
        files=tuple({id(t.file): t.file for t in stored.values()}.values()),
    )


def _full_layers(config: Mapping[str, Any]) -> set[int]:
    types = config.get("layer_types") or ()
    return {i for i, kind in enumerate(types) if kind == "full_attention"}


def _as_matrix(name: str, tensor: StoredTensor) -> StoredTensor:
    """Restores the first axis of a matrix of one row (shared experts' gates), which llama.cpp's
    quantizer drops."""
    if name.endswith("ffn_gate_inp_shexp.weight") and len(tensor.shape) == 1:
        return dataclasses.replace(tensor, shape=(1, *tensor.shape))
    return tensor


def _ids(metadata: Mapping[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    value = metadata.get("tokenizer.ggml." + key)
    return () if value in NO_TOKEN else token_ids(value, key, vocab_size)


def _end_tokens(metadata: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The ids in the keys, then control tokens whose text marks the end of a turn: GGUF stores one
    end token where generation configs list several."""
    named = [i for key in _EOS_KEYS for i in _ids(metadata, key, vocab_size)]
    tokens = metadata.get("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, Texts) or not isinstance(types, list | array):
        return tuple(dict.fromkeys(named))
    if len(tokens) > vocab_size:
        raise model_file_error(
            f"the vocabulary has {len(tokens)} tokens and the embedding {vocab_size} rows",
            param="tokenizer.ggml.tokens",
        )
    control = [i for i, kind in enumerate(types[: len(tokens)]) if kind == _CONTROL]
    known = [i for i, text in zip(control, tokens.at(control), strict=True) if text in _END_TEXTS]
    return tuple(dict.fromkeys(named + known))
