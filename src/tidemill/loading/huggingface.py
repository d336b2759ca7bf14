"""A Hugging Face checkpoint folder as `ModelFiles`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError, model_file_error, unsupported
from tidemill.base.vector_data import NOTHING_SAID, VectorData
from tidemill.loading.formats import safetensors, sharded, torch_files
from tidemill.loading.generation import generation_defaults, token_ids
from tidemill.loading.heads import (
    MakeHead,
    classifier_head,
    dense_head,
    no_head,
    token_head,
)
from tidemill.loading.jsonfile import read_object, read_optional_object
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.mtp import Checkpoint, mtp_tensors
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import READ_TYPES, Place
from tidemill.loading.schemes import (
    QUANTIZATION_KEYS,
    checked_place,
    place_weights,
    quantization_schemes,
)
from tidemill.loading.schemes.base import Scheme
from tidemill.loading.sentence import (
    VECTOR_KEYS,
    SentenceFiles,
    classifier_pooling,
    labels_of,
    read_sentence_files,
)
from tidemill.loading.text_side import read_folder
from tidemill.loading.tied import as_stored
from tidemill.models import tensors as names
from tidemill.models.dense import Family, HeadPart
from tidemill.models.foreign import read_foreign
from tidemill.models.multimodal import LEFT_OUT, in_other_part, text_config, text_tensors
from tidemill.models.naming import match_tensors, with_prefix
from tidemill.models.registry import family_for_config, kind_of
from tidemill.models.spec import DecoderSpec


def open_folder(folder: Path, backend: str | None = None) -> ModelFiles:
    """Open a checkpoint folder; only headers and small files are read.

    Args:
        folder: contains config.json (`kind.check_model`).
        backend: ``auto``: a model that no family supports is opened for transformers;
            ``transformers``: every model is; any other, or None for no backend: an unsupported
            model is rejected.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED; the message names file and key or tensor.
    """
    config = read_object(folder / "config.json")
    if backend == "transformers":
        return _foreign_files(folder, config)
    try:
        return _family_files(folder, config)
    except UnknownArchitecture as unknown:
        refusal = unknown.refusal
        if backend is None:
            raise refusal from None
        if backend != "auto":
            message = f"{refusal.message}; --backend transformers may run it"
            raise TidemillError(refusal.kind, message, param=refusal.param) from None
        try:
            return _foreign_files(folder, config, str(refusal))
        except TidemillError:
            raise refusal from None


class UnknownArchitecture(Exception):
    """No family reads a config.json; `refusal` is the reason."""

    def __init__(self, refusal: TidemillError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def _described(
    folder: Path, config: Mapping[str, Any]
) -> tuple[Family, tuple[Scheme, ...], DecoderSpec]:
    """The family that reads a config.json, its quantization schemes and its spec.

    Raises:
        UnknownArchitecture: no family knows the architecture or a key.
        TidemillError: MODEL_FILE for an invalid value.
    """
    try:
        family = family_for_config(config)
    except TidemillError as error:
        raise _sorted(error) from None
    schemes = _schemes(folder, config)
    try:
        # The scheme has read the quantization section, so families see a float model.
        read = (*QUANTIZATION_KEYS, *VECTOR_KEYS)
        return family, schemes, family.spec({k: v for k, v in config.items() if k not in read})
    except TidemillError as error:
        raise _sorted(_in_config(folder, error)) from error


def _schemes(folder: Path, config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    try:
        return quantization_schemes(config)
    except TidemillError as error:
        raise _in_config(folder, error) from error


def _in_config(folder: Path, error: TidemillError) -> TidemillError:
    message = f"{folder.name}/config.json: {error.message}"
    return TidemillError(error.kind, message, param=error.param)


def _sorted(error: TidemillError) -> Exception:
    return UnknownArchitecture(error) if error.kind is ErrorKind.UNSUPPORTED else error


def _text_side(folder: Path, published: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The text decoder's config, for files that also hold a vision part."""
    try:
        return text_config(published, lambda: read_tensors(folder))
    except TidemillError as error:
        raise _sorted(_in_config(folder, error)) from error


def _family_files(folder: Path, published: Mapping[str, Any]) -> ModelFiles:
    text = _text_side(folder, published)
    config = published if text is None else text
    family, schemes, spec = _described(folder, config)
    sentence = read_sentence_files(folder, config)
    kind = kind_of(config)
    if sentence.pooled and kind == "generate":
        kind = "vectors"  # trained for embeddings: its output layer is unused
    if kind != "generate":
        spec = dataclasses.replace(spec, generates=False, tied_embeddings=False)
    stored = read_tensors(folder)
    weights, scheme_notes = place_weights(schemes, stored)
    if text is not None:
        weights, scheme_notes = text_tensors(weights), (LEFT_OUT, *scheme_notes)
    weights = with_prefix(family.rules, weights)
    parts = family.classifier
    own_names = tuple(f"{name}." for part in parts for name in (part.name, part.norm) if name)
    own = {
        name: weights.pop(name)
        for name in list(weights)
        if name.startswith((*own_names, "score.", "classifier."))
    }
    head_tensors = {n: checked_place(t) for n, t in own.items()} if kind == "classify" else {}
    spec, tied_notes = as_stored(spec, family.rules, weights)
    if tied_notes:
        config = {**config, "tie_word_embeddings": False}
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    sources = match_tensors(spec, family.rules, shapes, family.stored)
    whole = {s.stored: checked_place(weights[s.stored]) for s in sources.values()}
    tensors = LazyTensors.of_sources(whole, sources)
    vectors, head = _head(sentence, kind, config, spec, tensors, (parts, head_tensors))
    notes = (*tied_notes, *scheme_notes)
    files = _files(folder, config, spec, tensors, stored, notes, vectors, head)
    others = {name: t for name, t in stored.items() if text is not None and in_other_part(name)}
    return dataclasses.replace(
        files,
        sources=sources,
        head_tensors=head_tensors,
        other_parts=others,
        mtp=mtp_tensors(
            Checkpoint(family.spec, config, spec, family.rules, family.stored),
            family.mtp,
            weights,
            sources,
        ),
    )


def _foreign_files(folder: Path, config: Mapping[str, Any], why: str = "") -> ModelFiles:
    """The folder for transformers: its tensors under their stored names. `why`: the reason why no
    family reads it."""
    try:
        foreign, sizes = read_foreign(config, why)
    except TidemillError as error:
        raise _in_config(folder, error) from error
    stored = read_tensors(folder)
    weights, notes = place_weights(_schemes(folder, config), stored)
    # Buffers of other types (masks, position numbers) are created by the model's code.
    places = {
        name: checked_place(place)
        for name, place in weights.items()
        if not isinstance(place, StoredTensor) or place.dtype in READ_TYPES
    }
    if not places:
        raise model_file_error(f"{folder}: holds no weights")
    spec = DecoderSpec(
        family=f"{foreign.architecture} (by transformers)",
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        max_positions=sizes.max_positions,
        layers=(),
        norm_eps=0.0,
        tied_embeddings=sizes.tied_embeddings,
        foreign=foreign,
    )
    if why:
        notes = (f"no family of Tidemill's reads this model: {why}", *notes)
    return _files(folder, config, spec, LazyTensors(places), stored, notes)


def _files(
    folder: Path,
    config: Mapping[str, Any],
    spec: DecoderSpec,
    tensors: LazyTensors,
    stored: Mapping[str, StoredTensor],
    notes: tuple[str, ...],
    vectors: VectorData = NOTHING_SAID,
    head: MakeHead = tuple,
) -> ModelFiles:
    generation = read_optional_object(folder / "generation_config.json")
    defaults, generation_notes = generation_defaults(generation)
    eos = generation.get("eos_token_id")
    eos = config.get("eos_token_id") if eos is None else eos
    vocab = spec.vocab_size
    return ModelFiles(
        path=folder,
        format="huggingface",
        config=config,
        spec=dataclasses.replace(spec, weights_dtype=tensors.prevailing_dtype()),
        tensors=tensors,
        bos_token_id=_first(token_ids(config.get("bos_token_id"), "bos_token_id", vocab)),
        eos_token_ids=token_ids(eos, "eos_token_id", vocab),
        generation=defaults,
        notes=generation_notes + notes,
        tokenizer=read_folder(folder),
        vectors=vectors,
        head=head,
        files=tuple({id(t.file): t.file for t in stored.values()}.values()),
    )


def _head(
    sentence: SentenceFiles,
    kind: str,
    config: Mapping[str, Any],
    spec: DecoderSpec,
    tensors: LazyTensors,
    classifier: tuple[tuple[HeadPart, ...], Mapping[str, Place]],
) -> tuple[VectorData, MakeHead]:
    """The head after the pooled vector, and its label for users."""
    vectors, hidden = sentence.vectors, spec.hidden_size
    vectors = dataclasses.replace(vectors, types=spec.token_types > 1)
    if not spec.causal and not sentence.pooled:
        vectors = dataclasses.replace(vectors, pooling="cls")  # the input of BERT's pooler
    if kind == "classify":
        labels = labels_of(config)
        parts, places = classifier
        vectors = dataclasses.replace(vectors, head="score", labels=labels)
        if not spec.causal:
            vectors = dataclasses.replace(vectors, pooling=classifier_pooling(config))
        return vectors, classifier_head(places, parts, config, hidden, labels, spec.norm_eps)
    if sentence.score_tokens is not None:
        name = names.EMBED if spec.tied_embeddings else names.LM_HEAD
        if name not in tensors or spec.logit_softcap is not None:
            raise unsupported("modules.json", "the score's tokens need a plain output layer")
        return vectors, token_head(lambda: tensors[name], sentence.score_tokens, spec.logit_scale)
    return vectors, dense_head(sentence.dense, hidden) if sentence.dense else no_head


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """A folder's tensors: safetensors if present, else PyTorch's files.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the file and the fault.
    """
    if torch_files.LAYOUT.present(folder) and not safetensors.LAYOUT.present(folder):
        return sharded.read_folder(folder, torch_files.LAYOUT)
    return safetensors.read_folder(folder)


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
