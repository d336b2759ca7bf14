"""Prepares inputs of embedding and scoring requests: prompts, pairs, and pooling options."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from tidemill.base.errors import bad_request
from tidemill.base.vector_data import VectorData
from tidemill.contract.request import Pooling
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

# Names that published models use for the prompts of queries and of documents.
_QUERY_NAMES = ("query",)
_DOCUMENT_NAMES = ("document", "passage", "corpus")
_ROLES = ("query", "document")


class Input(NamedTuple):
    """An encoded text or pair: its token ids, and the index where the second text's type ids begin
    (0: no type ids)."""

    token_ids: tuple[int, ...]
    second: int = 0


def embedding_pooling(data: VectorData) -> Pooling:
    """The engine's pooling options for an embedding.

    Raises:
        TidemillError: kind BAD_REQUEST: the model is a cross-encoder without embeddings.
    """
    if data.head == "score":
        raise bad_request(
            "model",
            "this model scores pairs of texts (/v1/rerank, /v1/score); it has no embeddings",
        )
    return Pooling(data.pooling, head=data.head == "embed")


def pooling_of(item: Input, pooling: Pooling) -> Pooling:
    """The pooling options of one input, from those of its request."""
    return msgspec.structs.replace(pooling, second=item.second) if item.second else pooling


def score_pooling(data: VectorData) -> Pooling:
    """The engine's pooling options for a cross-encoder's score.

    Raises:
        TidemillError: kind BAD_REQUEST: the model's head does not have exactly one label.
    """
    if data.labels != 1:
        raise bad_request(
            "model",
            f"this model's head has {data.labels} labels; scores need a model with one label",
        )
    return Pooling(data.pooling, head=True)


def prompted(text: str, data: VectorData, name: str | None) -> str:
    """Prepend the prompt of that name (None: the model's default prompt) to a text.

    Raises:
        TidemillError: kind BAD_REQUEST naming `prompt_name` for an unknown prompt.
    """
    name = data.default_prompt if name is None else name
    if name is None:
        return text
    if name not in data.prompts:
        known = ", ".join(data.prompts) or "none"
        raise bad_request(
            "prompt_name", f"the model has no prompt {name[:64]!r}; its prompts are: {known}"
        )
    return data.prompts[name] + text


def side_prompts(data: VectorData) -> tuple[str | None, str | None]:
    """Names of the prompts for queries and for documents; None where the model has none."""

    def known(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in data.prompts), None)

    return known(_QUERY_NAMES), known(_DOCUMENT_NAMES)


def pair_input(
    tokenizer: Tokenizer, template: ChatTemplate, data: VectorData, query: str, document: str
) -> Input:
    """Encode a query and a document as one input of a cross-encoder.

    Raises:
        TidemillError: kind BAD_REQUEST: the model's files do not define the prompt, or a text is
            rejected.
    """
    if data.pair == "special":
        ids, types = tokenizer.encode_pair(query, document)
        return Input(tuple(ids), types.index(1) if data.types and 1 in types else 0)
    source = template.source or ""
    if all(f"'{role}'" in source or f'"{role}"' in source for role in _ROLES):
        messages = [
            {"role": r, "content": t} for r, t in zip(_ROLES, (query, document), strict=True)
        ]
        text = template.render(messages)
    elif data.pair_template is not None:
        text = _filled(data.pair_template, {"{query}": query, "{document}": document})
    else:
        raise bad_request(
            "model",
            "the model's files do not define a prompt for a query and a document: its chat "
            "template does not use the roles query and document",
        )
    return Input(tuple(tokenizer.encode(text, add_special=False)))


def _filled(template: str, values: dict[str, str]) -> str:
    """Replace the template's placeholders in one pass: values are not searched for them."""
    marks = "|".join(map(re.escape, values))
    return re.sub(marks, lambda match: values[match[0]], template)


def check_dimensions(dimensions: int | None, size: int) -> None:
    """Raise BAD_REQUEST unless an embedding of `size` numbers can be cut to `dimensions`."""
    if dimensions is not None and not 1 <= dimensions <= size:
        raise bad_request(
            "dimensions", f"dimensions must be between 1 and {size}, got {dimensions}"
        )
