"""Compares two models on a text: perplexity and the KL divergence of their distributions."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import BackendOptions
from tidemill.base.errors import bad_request
from tidemill.loading.checkpoint import open_model
from tidemill.loading.lazy import Holding
from tidemill.text.tokenizer import Tokenizer
from tidemill.worker.machine import usable_cpus
from tidemill.worker.text_steps import log_softmax, text_states, text_step

CHECK_TOKENS = 1024
_CHUNK = 128
_BLOCK = 32

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model against its source on a text.

    Attributes:
        tokens: predictions that were compared.
        source_perplexity, perplexity: of the two.
        divergence: mean of KL(source || model), in nats per token.
        same_choice: share of positions at which both prefer the same token.
    """

    tokens: int
    source_perplexity: float
    perplexity: float
    divergence: float
    same_choice: float


def compare_on(text: str, source: Path, model: Path) -> Comparison:
    """Compare a model with its source on the first tokens of a text.

    Raises:
        TidemillError: BAD_REQUEST for a text of fewer than two tokens.
    """
    files = open_model(source)
    limit = min(CHECK_TOKENS, files.spec.max_positions)
    tokens = Tokenizer(files.tokenizer).encode(text[: 16 * limit])[:limit]
    if len(tokens) < 2:
        raise bad_request("check", "the text to compare on has fewer than two tokens")
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        return compare(source, model, tokens, Path(folder) / "logits.npy")


def compare(
    source: Path, model: Path, tokens: Sequence[int], scratch: Path, threads: int | None = None
) -> Comparison:
    """Run both on the same tokens, one after the other; one model at a time is in memory.

    Args:
        tokens: at most the context of both.
        scratch: a file for the source's logits, which is deleted.
    """
    threads = threads or usable_cpus()
    vocab = min(open_model(path).spec.vocab_size for path in (source, model))
    shape = (len(tokens), vocab)
    first = np.lib.format.open_memmap(scratch, "w+", np.float32, shape)
    try:
        at = 0
        for piece in _logits(source, tokens, threads):
            first[at : at + len(piece)] = piece[:, :vocab]
            at += len(piece)
        return _compared(first, _logits(model, tokens, threads), tokens, vocab)
    finally:
        del first
        scratch.unlink()


def _compared(
    first: Float32, pieces: Iterator[Float32], tokens: Sequence[int], vocab: int
) -> Comparison:
    losses = [0.0, 0.0]
    divergence = same = 0.0
    at = 0
    for piece in pieces:
        sides = [log_softmax(first[at : at + len(piece)]), log_softmax(piece[:, :vocab])]
        count = min(len(piece), len(tokens) - 1 - at)
        targets = list(tokens[at + 1 : at + 1 + count])
        for side, values in enumerate(sides):
            losses[side] -= float(values[np.arange(count), targets].sum())
        before, after = (values[:count] for values in sides)
        divergence += float((np.exp(before) * (before - after)).sum())
        same += float((before.argmax(1) == after.argmax(1)).sum())
        at += len(piece)
    count = len(tokens) - 1
    ppl = [math.exp(loss / count) for loss in losses]
    return Comparison(count, ppl[0], ppl[1], divergence / count, same / count)


def _logits(path: Path, tokens: Sequence[int], threads: int) -> Iterator[Float32]:
    """float32 [chunk, vocab] for chunk after chunk of the tokens."""
    files = open_model(path)
    options = BackendOptions(
        dtype="float32", quantize="none", kv_dtype="float32", block_size=_BLOCK,
        max_positions=len(tokens), threads=threads,
    )  # fmt: skip
    factory = import_module("tidemill.backends.native").load
    backend = factory(files.spec, files.tensors.held(Holding(wide=True)), options)
    try:
        groups = len(files.spec.cache_groups())
        states = text_states(files.spec)
        blocks = -(-len(tokens) // _BLOCK)
        backend.allocate_cache((blocks,) * groups)
        for step, start in enumerate(range(0, len(tokens), _CHUNK)):
            chunk = tokens[start : start + _CHUNK]
            inputs = text_step(step, chunk, start, blocks, groups, states)
            outputs = backend.submit(inputs).result()
            assert outputs.logits is not None
            yield outputs.logits
    finally:
        backend.close()
