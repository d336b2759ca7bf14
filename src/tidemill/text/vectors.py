"""Between texts and vectors: what is put around an input, and what is asked of the engine."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from tidemill.base.errors import bad_request
from tidemill.base.vector_data import VectorData
from tidemill.contract.request import Pooling
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

# The names that models' makers give to the prompts of the two sides of a search.
_QUERY_NAMES = ("query",)
_DOCUMENT_NAMES = ("document", "passage", "corpus")
_ROLES = ("query", "document")


class Input(NamedTuple):
    """A text or a pair as the model reads it: its ids, and where the second text's types begin (0:
    there are none)."""

    token_ids: tuple[int, ...]
    second: int = 0


def embedding_pooling(data: VectorData) -> Pooling:
    """What an embedding asks of the engine.

    Raises:
        TidemillError: kind BAD_REQUEST: the model scores pairs and embeds nothing.
    """
    if data.head == "score":
        raise bad_request(
            "model", "this model scores pairs of texts (/v1/rerank, /v1/score); it embeds nothing"
        )
    return Pooling(data.pooling, head=data.head == "embed")


def pooling_of(item: Input, pooling: Pooling) -> Pooling:
    """What one input of several that are pooled alike asks of the engine."""
    return msgspec.structs.replace(pooling, second=item.second) if item.second else pooling


def score_pooling(data: VectorData) -> Pooling:
    """What a cross-encoder's score asks of the engine.

    Raises:
        TidemillError: kind BAD_REQUEST: its head is no score.
    """
    if data.labels != 1:
        raise bad_request(
            "model", f"this model's head gives {data.labels} labels; a score needs one that has one"
        )
    return Pooling(data.pooling, head=True)


def prompted(text: str, data: VectorData, name: str | None) -> str:
    """An input with the prompt of that name (None: the model's default one) before it.

    Raises:
        TidemillError: kind BAD_REQUEST naming `prompt_name` where there is no such prompt.
    """
    name = data.default_prompt if name is None else name
    if name is None:
        return text
    if name not in data.prompts:
        known = ", ".join(data.prompts) or "it has none"
        raise bad_request(
            "prompt_name", f"the model has no prompt {name[:64]!r}; there is: {known}"
        )
    return data.prompts[name] + text


def side_prompts(data: VectorData) -> tuple[str | None, str | None]:
    """Names of the prompts of a query and of a document, where the model has them."""

    def known(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in data.prompts), None)

    return known(_QUERY_NAMES), known(_DOCUMENT_NAMES)


def pair_input(
    tokenizer: Tokenizer, template: ChatTemplate, data: VectorData, query: str, document: str
) -> Input:
    """A query and a document as one input of a cross-encoder.

    Raises:
        TidemillError: kind BAD_REQUEST: the model does not say how, or a text is refused.
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
            "the model's files do not say how a query and a document become a prompt: its chat "
            "template knows no roles query and document",
        )
    return Input(tuple(tokenizer.encode(text, add_special=False)))


def _filled(template: str, values: dict[str, str]) -> str:
    """The template with its marks replaced; what is put in is not looked at for marks."""
    marks = "|".join(map(re.escape, values))
    return re.sub(marks, lambda match: values[match[0]], template)


def check_dimensions(dimensions: int | None, size: int) -> None:
    """Raise BAD_REQUEST unless an embedding of `size` numbers can be cut so."""
    if dimensions is not None and not 1 <= dimensions <= size:
        raise bad_request(
            "dimensions", f"dimensions must be between 1 and {size} here, got {dimensions}"
        )
