"""What a model's files say about its vectors and scores, as plain data.

`loading/` fills it; the server, the Python API and the worker use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VectorData:
    """How a model's hidden states become a vector, and what its classification head says.

    Attributes:
        pooling: ``last``, ``mean`` or ``cls``.
        normalize: vectors are divided by their length.
        prompts: texts put before an input, by name (sentence-transformers' ``prompts``).
        default_prompt: the one put before an input that names none, or None.
        head: what the model's head makes of a pooled vector: ``score`` (logits of a classifier),
            ``embed`` (the vector itself); empty without a head.
        labels: logits of a ``score`` head.
        sigmoid: a score is the sigmoid of its logit, else the logit itself.
        pair: how a query and a document become one input: ``special`` (the tokenizer's own way, or
            one after the other), or ``template`` (the chat template, with these two as roles).
        types: the second text's tokens are of another type than the first one's (BERT).
        pair_template: the text of a pair with {query} and {document}, where the model has one.
        source: where the files say so, for the log; empty when it is the default.
    """

    pooling: str = "last"
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    head: str = ""
    labels: int = 0
    sigmoid: bool = True
    pair: str = "special"
    types: bool = False
    pair_template: str | None = None
    source: str = ""


NOTHING_SAID = VectorData()
"""Of a model whose files say nothing about vectors."""
