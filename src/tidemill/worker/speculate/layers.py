"""Which layers a model drafts without, measured on text of its own.

The model writes short texts behind the tokens that begin a text or a turn. Layers that change the
residual stream least (by the cosine of what enters and leaves them: Men et al. 2024, "ShortGPT")
are left out one more at a time, of the next few the one that costs the least agreement. Agreement
is that of rejection sampling, sum(min(p, q)), estimated from the tokens that the model drew; the
set is taken that promises the most tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import (
    HIDDEN_ALL,
    LOGITS_ALL,
    Backend,
    StepInputs,
)
from tidemill.base.clock import monotonic
from tidemill.contract.plan import LogitsWanted, NewSequence, Row, StepPlan
from tidemill.contract.sampling import SamplingParams
from tidemill.models.spec import DecoderSpec
from tidemill.worker.inputs import InputBuilder

TEXTS, TOKENS = 4, 40
"""How many texts are measured on, and how long they are."""

STARTS = 8
"""Tokens that texts are begun with; of all texts those with the most different tokens are taken."""

TRIED = 3
"""Layers that are tried at a time."""

FREE = 0.003
"""Agreement that a layer may cost without others being tried."""

MAX_SECONDS = 120.0
"""After that the best of what was found is taken."""

VERIFYING = 1.2
"""A step that verifies a few drafts, in steps of one token."""

WORTH = 1.05
"""Tokens per second below which nothing is left out, in those without drafts."""

LONGEST = 8
"""Drafts of one step, when sets are compared."""


@dataclass(frozen=True)
class Found:
    """A set of layers to leave out.

    Attributes:
        layers: ascending; empty: none is worth it.
        agreement: how often a draft is expected to come true.
        speedup: tokens per second beside those without drafts, as expected.
    """

    layers: tuple[int, ...] = ()
    agreement: float = 1.0
    speedup: float = 1.0

    def told(self, count: int) -> str:
        """A line for the log.

        Args:
            count: layers of the model.
        """
        if not self.layers:
            return f"drafting without layers: none of {count} is worth it; nothing is drafted"
        which = ", ".join(map(str, self.layers))
        return (
            f"drafting without {len(self.layers)} of {count} layers ({which}): "
            f"{self.agreement:.0%} of drafts are expected to come true, {self.speedup:.2f} times "
            "the tokens of one stream"
        )


def speedup(agreement: float, cost: float) -> float:
    """Tokens per second beside those of single steps, with the best number of drafts."""
    best = 1.0
    for drafts in range(1, LONGEST + 1):
        tokens = sum(agreement**i for i in range(drafts + 1))
        best = max(best, tokens / (VERIFYING + drafts * cost))
    return best


def search(
    backend: Backend, starts: Sequence[int], clock: Callable[[], float] = monotonic
) -> Found:
    """Find the layers to leave out. The cache's first blocks are written; no step is in flight.

    Args:
        backend: the model's, its cache allocated.
        starts: what texts may begin with: tokens that begin a text or a turn.
        clock: seconds.
    """
    until = clock() + MAX_SECONDS
    texts = _Texts(backend, starts)
    left = [layer for layer in texts.by_influence() if layer not in _read_by_others(backend.spec)]
    cost = _costs(backend.spec)
    best, agreement = Found(), 1.0
    skipped: tuple[int, ...] = ()
    while left and clock() < until:
        agreement, layer = _next(texts, skipped, left[:TRIED], agreement - FREE)
        left.remove(layer)
        skipped = tuple(sorted((*skipped, layer)))
        gain = speedup(agreement, cost(skipped))
        if gain > max(best.speedup, WORTH):
            best = Found(skipped, agreement, gain)
        if speedup(agreement, 0.0) < best.speedup:  # fewer layers cannot make up for it
            break
    return best


def _next(
    texts: _Texts, skipped: tuple[int, ...], layers: list[int], enough: float
) -> tuple[float, int]:
    """The layer to leave out next, after the agreement without it: the first with enough of that,
    or else the best."""
    best = (-1.0, -1)
    for layer in layers:
        best = max(best, (texts.agreement((*skipped, layer)), layer))
        if best[0] >= enough:
            break
    return best


class _Texts:
    """Texts that a model has written, and what it thinks of them without some layers."""

    def __init__(self, backend: Backend, starts: Sequence[int]) -> None:
        self._backend = backend
        self._inputs = InputBuilder(
            len(backend.spec.cache_groups()), TOKENS + 2, backend.options.block_size,
            slots=TEXTS * STARTS, layers=len(backend.spec.layers),
        )  # fmt: skip
        self._step = 0
        written = self._write([*starts][:STARTS])
        # After most tokens that are no text a model of conversations only repeats itself.
        written.sort(key=lambda text: len(set(text)), reverse=True)
        self._texts = written[:TEXTS]
        self._begin([text[0] for text in self._texts])
        for i, text in enumerate(self._texts):
            self._inputs.sequences.learn(self._inputs.sequences.slot(i), 0, tuple(text))
        self._own = self._probabilities(())

    def _begin(self, starts: list[int]) -> int:
        """Sequences that begin with tokens; returns the number of their blocks."""
        blocks = -(-(TOKENS + 1) // self._backend.options.block_size)
        groups = len(self._backend.spec.cache_groups())
        for i, start in enumerate(starts):
            new = NewSequence(
                seq_id=i, request_id="", choice=0, token_ids=(start,), prompt_len=1,
                sampling=SamplingParams(temperature=1.0, seed=i, logprobs=0),
            )  # fmt: skip
            slot = self._inputs.sequences.add(new)
            table = (tuple(range(i * blocks, (i + 1) * blocks)),) * groups
            self._inputs.sequences.append_block_ids(slot, table)
        return blocks * len(starts)

    def _write(self, starts: list[int]) -> list[list[int]]:
        """`TEXTS` texts from each start."""
        begins = [start for start in starts for _ in range(TEXTS)]
        self._begin(begins)
        for position in range(TOKENS):
            rows = [
                Row(seq_id=i, start=position, count=1, sample=True, logits=LogitsWanted.LAST)
                for i in range(len(begins))
            ]
            step = self._inputs.prepare(self._plan(rows))
            self._inputs.accept(step, self._backend.submit(step.inputs).result().sampled)
        sequences = self._inputs.sequences
        slots = [sequences.slot(i) for i in range(len(begins))]
        return [sequences.tokens[slot, : TOKENS + 1].tolist() for slot in slots]

    def _plan(self, rows: list[Row]) -> StepPlan:
        self._step += 1
        return StepPlan(step_id=self._step, rows=tuple(rows))

    def _all(self, **changes: object) -> StepInputs:
        """A step over all tokens but the last."""
        rows = [Row(seq_id=i, start=0, count=TOKENS) for i in range(TEXTS)]
        inputs = self._inputs.prepare(self._plan(rows)).inputs
        return replace(inputs, **changes)  # type: ignore[arg-type]

    def _probabilities(self, layers: tuple[int, ...]) -> NDArray[np.float64]:
        """Of each token, given those before, without some layers."""
        targets = [np.array(text[1:], np.int32) for text in self._texts]
        inputs = self._all(
            logits=np.full(TEXTS, LOGITS_ALL, np.uint8),
            target_ids=np.concatenate(targets),
            target_logprobs=np.zeros(TEXTS, np.int32),
            skip=np.array(layers, np.int32) if layers else None,
        )
        found = self._backend.submit(inputs).result().targets
        assert found is not None
        return np.exp(found.chosen.astype(np.float64))

    def agreement(self, layers: Collection[int]) -> float:
        """sum(min(p, q)) without some layers, on average: an expectation of min(1, q / p) over
        tokens drawn by p."""
        own = np.maximum(self._own, 1e-30)
        return float(np.minimum(1.0, self._probabilities(tuple(sorted(layers))) / own).mean())

    def by_influence(self) -> list[int]:
        """The layers, those first that change the residual stream least."""
        count = len(self._backend.spec.layers)
        inputs = self._all(
            hidden=np.full(TEXTS, HIDDEN_ALL, np.uint8),
            hidden_layers=np.arange(count + 1, dtype=np.int32),
        )
        x = self._backend.submit(inputs).result().layer_hidden
        assert x is not None
        x = x / np.maximum(1e-12, np.linalg.norm(x, axis=-1, keepdims=True))
        change = 1 - (x[1:] * x[:-1]).sum(-1).mean(-1)
        return [int(layer) for layer in np.argsort(change, kind="stable")]


def _read_by_others(spec: DecoderSpec) -> set[int]:
    """Layers whose K and V later layers read."""
    return {a.kv_layer for a in spec.attentions().values() if a.kv_layer is not None}


def _costs(spec: DecoderSpec) -> Callable[[Collection[int]], float]:
    """What a step without some layers reads, in parts of what all of it reads."""
    of_layer = [0] * len(spec.layers)
    rest = spec.vocab_size * spec.hidden_size
    for name, shape in spec.expected_tensors().items():
        words = name.split(".")
        if words[0] == "layers":
            of_layer[int(words[1])] += math.prod(shape)
    total = sum(of_layer) + rest
    return lambda skipped: 1 - sum(of_layer[layer] for layer in skipped) / total
