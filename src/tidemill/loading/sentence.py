"""How a folder's model computes vectors and scores: sentence-transformers' files and config.json.

The files are modules.json with the config.json of each module (Transformer, Pooling, Normalize,
Dense, LogitScore), and config_sentence_transformers.json. The keys of config.json are the number of
labels, ``classifier_from_token`` (a convention of servers: the score is the difference of these
tokens' logits) and ``sentence_transformers.activation_fn``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.base.vector_data import VectorData
from tidemill.loading.jsonfile import (
    is_present,
    read_bytes,
    read_object,
    read_optional_object,
)

# Keys of config.json that are read here, so that families need not know them.
VECTOR_KEYS = (
    *("num_labels", "classifier_from_token", "sentence_transformers", "method"),
    *("classifier_activation", "classifier_pooling", "classifier_bias", "problem_type"),
)
MAX_LABELS = 2**16

# Keys of a Pooling module's config.json -> our name.
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_POOLING_NAMES = {"cls": "cls", "mean": "mean", "lasttoken": "last", "last": "last"}
_IDENTITY, _SIGMOID = "Identity", "Sigmoid"

# The prompt around a pair from Qwen3-Reranker's model card, for its checkpoints without a template.
QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclasses.dataclass(frozen=True, slots=True)
class DenseModule:
    """A Dense module: the folder of its weights and its activation (``none`` or ``tanh``)."""

    folder: Path
    activation: str


@dataclasses.dataclass(frozen=True, slots=True)
class SentenceFiles:
    """Contents of a folder's sentence-transformers files.

    Attributes:
        vectors: the settings; the caller, which knows the weights, fills in `labels` and `head` of
            a classification architecture.
        dense: modules after pooling.
        score_tokens: ids whose logits' difference is the score: (positive, negative or None).
        pooled: a Pooling module exists, so the model is made for embeddings.
    """

    vectors: VectorData
    dense: tuple[DenseModule, ...] = ()
    score_tokens: tuple[int, int | None] | None = None
    pooled: bool = False


def read_sentence_files(folder: Path, config: Mapping[str, Any]) -> SentenceFiles:
    """Read the files; a folder without any gets the defaults.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the file and the key.
    """
    settings = read_optional_object(folder / "config_sentence_transformers.json")
    prompts = settings.get("prompts")
    texts = {str(k): v for k, v in _as_map(prompts).items() if isinstance(v, str)}
    default = settings.get("default_prompt_name")
    if default is not None and default not in texts:
        raise model_file_error(
            "config_sentence_transformers.json: default_prompt_name names no prompt",
            param="default_prompt_name",
        )
    vectors = VectorData(prompts=texts, default_prompt=default, sigmoid=_sigmoid(settings, config))
    found = SentenceFiles(vectors)
    if is_present(folder / "modules.json"):
        found = _with_modules(folder, found)
    return _with_score_tokens(folder, config, found)


def _as_map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _with_modules(folder: Path, found: SentenceFiles) -> SentenceFiles:
    vectors = dataclasses.replace(found.vectors, normalize=False, source="modules.json")
    dense: list[DenseModule] = []
    tokens, pooled = None, False
    for kind, place in _modules(folder):
        if kind == "Pooling":
            vectors, pooled = dataclasses.replace(vectors, pooling=_pooling(place)), True
        elif kind == "Normalize":
            vectors = dataclasses.replace(vectors, normalize=True)
        elif kind == "Dense":
            dense.append(_dense(place))
        elif kind == "LogitScore":
            tokens = _score_tokens(read_object(place / "config.json"), "1_LogitScore")
        elif kind not in ("Transformer", "Dropout"):
            raise unsupported("modules.json", f"modules.json: a {kind!r} module is not supported")
    if dense:
        vectors = dataclasses.replace(vectors, head="embed")
    return SentenceFiles(vectors, tuple(dense), tokens, pooled)


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Each module's class name and folder, in order."""
    import msgspec

    try:
        listed = msgspec.json.decode(read_bytes(folder / "modules.json"))
    except msgspec.DecodeError as error:
        raise model_file_error(f"modules.json: {error}") from error
    modules = []
    for entry in listed if isinstance(listed, list) else [None]:
        said = _as_map(entry)
        kind, path = said.get("type"), said.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise model_file_error("modules.json: not a list of modules with type and path")
        place = (folder / path).resolve()
        if not place.is_relative_to(folder.resolve()):
            raise model_file_error(f"modules.json: the path {path[:80]!r} leaves the folder")
        modules.append((kind.rpartition(".")[2], place))
    return modules


def _pooling(place: Path) -> str:
    config = read_object(place / "config.json")
    where = f"{place.name}/config.json"
    if config.get("include_prompt") is False:
        raise unsupported("include_prompt", f"{where}: pooling without the prompt is not supported")
    named = config.get("pooling_mode")
    if isinstance(named, str) and named in _POOLING_NAMES:
        return _POOLING_NAMES[named]
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode") and value]
    if len(chosen) != 1 or chosen[0] not in _POOLING_MODES:
        raise unsupported(
            "pooling_mode",
            f"{where}: pooling by {', '.join(map(str, chosen)) or 'nothing'} is not supported; "
            f"one of {', '.join(_POOLING_MODES)} is",
        )
    return _POOLING_MODES[chosen[0]]


def _dense(place: Path) -> DenseModule:
    config = read_object(place / "config.json")
    name = str(config.get("activation_function", "torch.nn.modules.linear.Identity"))
    known = {_IDENTITY: "none", "Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "GELU": "gelu"}
    activation = known.get(name.rpartition(".")[2])
    if activation is None:
        raise unsupported(
            "activation_function", f"{place.name}/config.json: {name[:80]!r} is not supported"
        )
    return DenseModule(place, activation)


def _sigmoid(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether scores are sigmoids; the default is that of CrossEncoder for one label."""
    nested = _as_map(config.get("sentence_transformers"))
    said = settings.get("activation_fn", nested.get("activation_fn"))
    if said is None:
        return True
    name = str(said).rpartition(".")[2]
    if name not in (_IDENTITY, _SIGMOID):
        raise unsupported("activation_fn", f"the score's activation {said!r:.80} is not supported")
    return name == _SIGMOID


def _score_tokens(config: Mapping[str, Any], where: str) -> tuple[int, int | None]:
    positive, negative = config.get("true_token_id"), config.get("false_token_id")
    for value in (positive, negative):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise model_file_error(f"{where}: token ids must be integers", param="true_token_id")
    if positive is None:
        raise model_file_error(f"{where}: true_token_id is missing", param="true_token_id")
    return positive, negative


def _with_score_tokens(
    folder: Path, config: Mapping[str, Any], found: SentenceFiles
) -> SentenceFiles:
    """Apply ``classifier_from_token`` (negative, positive) and the prompt format of a pair."""
    named = config.get("classifier_from_token")
    vectors, tokens = found.vectors, found.score_tokens
    if named is not None:
        if (
            not isinstance(named, list)
            or not 1 <= len(named) <= 2
            or not all(isinstance(token, str) for token in named)
        ):
            raise model_file_error(
                "classifier_from_token must list one token, or the negative and the positive one",
                param="classifier_from_token",
            )
        ids = _ids_of(folder, named)
        tokens = (ids[-1], ids[0] if len(ids) == 2 else None)
        vectors = dataclasses.replace(vectors, pair_template=QWEN3_RERANKER)
    if tokens is not None:
        vectors = dataclasses.replace(vectors, head="score", labels=1, pair="template")
    return dataclasses.replace(found, vectors=vectors, score_tokens=tokens)


def _ids_of(folder: Path, tokens: list[str]) -> list[int]:
    model = _as_map(read_object(folder / "tokenizer.json").get("model"))
    vocabulary, ids = _as_map(model.get("vocab")), []
    for token in tokens:
        found = vocabulary.get(token)
        if isinstance(found, bool) or not isinstance(found, int):
            raise model_file_error(
                f"classifier_from_token: {token!r} is no token of the vocabulary",
                param="classifier_from_token",
            )
        ids.append(found)
    return ids


def classifier_pooling(config: Mapping[str, Any]) -> str:
    """Input of an encoder's classification head: ``cls``, or the value in ModernBERT's config."""
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise unsupported(
            "classifier_pooling",
            f"classifier_pooling is {str(pooling)[:40]!r}; cls or mean are read",
        )
    return str(pooling)


def labels_of(config: Mapping[str, Any]) -> int:
    """Labels of a classification architecture: `num_labels`, else the size of `id2label`, else 2 as
    in transformers."""
    labels = config.get("num_labels")
    if labels is None:
        named = config.get("id2label")
        labels = len(named) if isinstance(named, dict) and named else 2
    if isinstance(labels, bool) or not isinstance(labels, int) or not 1 <= labels <= MAX_LABELS:
        raise model_file_error(f"num_labels must be between 1 and {MAX_LABELS}", param="num_labels")
    return labels
