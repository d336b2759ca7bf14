"""Drafts of an EAGLE-3 head: a decoder layer on the model's own hidden states (Li et al. 2025).

It has keys and values of its own for every token of a sequence that the model computes while the
sequence has this drafter. Of tokens that it missed (found in the prefix cache, or computed a few
layers at a time) it has none, and attends to those behind them.

Matrices of some size are computed by backends, as the model's own. Tokens are drawn with the
sequence's temperature and the model's random keys; penalties, biases and filters are left to the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import HIDDEN_LAST, Backend, Int32
from tidemill.backends.draw.race import RandomKey, race
from tidemill.contract.plan import NewSequence
from tidemill.models.quantization import to_float32
from tidemill.models.tensors import RawTensor
from tidemill.worker.inputs import InputBuilder
from tidemill.worker.speculate.drafter import NOTHING, Proposal, Wanted
from tidemill.worker.speculate.eagle_files import EagleFiles
from tidemill.worker.speculate.eagle_layer import Cache, EagleLayer
from tidemill.worker.speculate.matrices import Matrix, any_blocks, bare_step, scores_of
from tidemill.worker.speculate.rounds import UNLIKELY, confidence_of

Float32 = NDArray[np.float32]

_EMBEDDED = 0
"""The residual stream in front of layer 0 is the embedding."""
_UNREAD = 128
"""Tokens of a sequence that wait to be read: many together take little longer than one."""
_AT_ONCE = 16
"""Tokens of a prompt's chunk are at least so many: they are read at once."""
_RAREST = 1e-7
"""Weight, beside the likeliest token's 1, below which a token is not drawn."""


@dataclass(slots=True)
class _State:
    """What the head has of a sequence: keys and values up to `cache.end`, and the state of that
    position, whose following token is not read yet; None: it has nothing.

    Attributes:
        unread: what the model computed behind that: tokens, and streams [layers, tokens, width].
        start: position of the first of them.
        count: how many they are.
        asked: drafts were asked for since it was last full.
    """

    cache: Cache
    g: Float32 | None = None
    unread: list[tuple[Int32, Float32]] = field(default_factory=list)
    start: int = 0
    count: int = 0
    asked: bool = False


@dataclass(slots=True)
class _Chain:
    """Drafts of one sequence in the making."""

    one: Wanted
    state: _State
    token: int
    g: Float32
    drafts: list[int]
    confidence: list[int]
    logprob: float = 0.0

    @property
    def position(self) -> int:
        """Where the layer computes next."""
        return self.state.cache.end + len(self.drafts)

    def take(self, token: int, logprob: float) -> bool:
        """Add a draft; False where the chain ends."""
        self.logprob += logprob
        self.token = token
        self.drafts.append(token)
        self.confidence.append(confidence_of(logprob))
        return len(self.drafts) < self.one.most and self.logprob >= UNLIKELY


class EagleDrafter:
    """See the module, `drafter.LoadedDrafter` and `drafter.LayerReader`.

    Args:
        backend: the model's.
        inputs: the model's sequences.
        files: the head.
        output: its output matrix; None: the model's own scores.
        products: matrices of the layer that a backend computes, by name; others are computed here.
        idle: whether no step of the model is in flight: embeddings and scores of the model are
            steps, and none may come between.
        context: positions that a sequence may have.
    """

    reads_hidden = False

    def __init__(
        self,
        backend: Backend,
        inputs: InputBuilder,
        files: EagleFiles,
        output: Matrix | None,
        products: Mapping[str, Matrix],
        idle: Callable[[], bool],
        context: int,
    ) -> None:
        self._backend = backend
        self._inputs = inputs
        self._layer = EagleLayer(files, context, products)
        self._matrices = [*products.values(), *([] if output is None else [output])]
        self._tokens = files.tokens
        self._embedding = files.embedding
        self._output = output
        self._idle = idle
        self._steps = 0
        self._states: dict[int, _State] = {}
        self.layers = tuple(sorted({_EMBEDDED, *files.layers}))
        self._places = [self.layers.index(layer) for layer in files.layers]
        layers = len(backend.spec.layers)
        self._no_layers = np.arange(layers, dtype=np.int32)
        self._no_norm = np.arange(layers + 1, dtype=np.int32)
        self._vocab = backend.spec.vocab_size

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter."""
        self._states[new.seq_id] = _State(self._layer.cache(cached))

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter. What is read comes from the model's steps."""

    def forget(self, seq_id: int) -> None:
        """See Drafter."""
        self._states.pop(seq_id, None)

    def learn(self, seq_id: int, start: int, tokens: Int32, streams: Float32) -> None:
        """See LayerReader. Few tokens are kept until drafts are asked for, or there are many. Of a
        sequence of which none were asked for all the while they are forgotten, and what lies before
        them too."""
        state, count = self._states.get(seq_id), streams.shape[1]
        if state is None:
            return
        if state.unread and start != state.start + state.count:
            self._read_unread(state)
        if not state.unread:
            state.start = start
        state.unread.append((tokens[start : start + count].copy(), streams.copy()))
        state.count += count
        if count >= _AT_ONCE:
            self._read_unread(state)
        elif state.count >= _UNREAD:
            if state.asked:
                self._read_unread(state)
            else:
                state.unread, state.count = [], 0
                state.cache, state.g = self._layer.cache(start + count), None
            state.asked = False

    def _read_unread(self, state: _State) -> None:
        if state.unread:
            tokens = np.concatenate([one for one, _ in state.unread])
            streams = np.concatenate([streams for _, streams in state.unread], axis=1)
            state.unread, state.count = [], 0
            self._read(state, state.start, tokens, streams)

    def _read(self, state: _State, start: int, tokens: Int32, streams: Float32) -> None:
        """Read tokens [tokens] with their streams [layers, tokens, width]."""
        if not state.cache.first <= start <= state.cache.end + (state.g is not None):
            state.cache, state.g = self._layer.cache(start), None
        elif start <= state.cache.end:  # computed once more
            state.cache.end, state.g = start, None
        embedded = streams[0]
        if self._embedding is not None:
            embedded = self._rows(tokens)
        g = self._layer.states(streams[self._places])
        if state.g is None:
            # The token at `start` goes with the state before it.
            embedded, known = embedded[1:], g
        else:
            known = np.concatenate([state.g[None], g])
        self._layer.read(state.cache, known[: len(embedded)], embedded)
        state.g = g[-1]

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        if not self._idle():
            return [NOTHING] * len(wanted)
        chains: dict[int, _Chain] = {}
        for one in wanted:
            state = self._states.get(one.seq_id)
            if state is None or one.most < 1:
                continue
            self._read_unread(state)
            state.asked = True
            if state.g is None:
                continue
            # It guesses from the state of the position in front of the last known token.
            if state.cache.end == len(one.tokens) - 2:
                last = int(one.tokens[-1])
                chains[one.seq_id] = _Chain(one, state, last, state.g, [], [])
        left = list(chains.values())
        while left:
            left = self._round(left)
        return [_proposal(chains.get(one.seq_id)) for one in wanted]

    def _round(self, chains: list[_Chain]) -> list[_Chain]:
        """A draft for each chain; those that go on."""
        tokens = np.array([chain.token for chain in chains], np.int32)
        x = self._layer.draft(
            [chain.state.cache for chain in chains],
            np.array([chain.position for chain in chains], np.int64),
            np.stack([chain.g for chain in chains]),
            self._embedded(tokens, chains),
        )
        positions = [len(chain.one.tokens) + len(chain.drafts) for chain in chains]
        ids = [chain.one.seq_id for chain in chains]
        sampling = self._inputs.sampling_at(ids, np.array(positions, np.int32))
        logits = self._scores(self._layer.scored(x), chains)
        left = []
        for i, chain in enumerate(chains):
            chain.g = x[i]
            key = RandomKey(int(sampling.seed[i]), int(sampling.choice[i]), positions[i])
            token, logprob = self._drawn(logits[i], float(sampling.temperature[i]), key)
            if 0 <= token < self._vocab and chain.take(token, logprob):
                left.append(chain)
        return left

    def _drawn(self, logits: Float32, temperature: float, key: RandomKey) -> tuple[int, float]:
        """A token and its log-probability; -1 where the scores are no numbers."""
        top = int(logits.argmax())
        if not np.isfinite(logits[top]):
            return -1, 0.0
        scale = np.float32(1 / temperature) if temperature > 0 else np.float32(1)
        weights = np.exp((logits - logits[top]) * scale)
        row = top
        if temperature > 0:
            likely = np.flatnonzero(weights > _RAREST)
            ids = likely if self._tokens is None else self._tokens[likely]
            found = race(ids, weights[likely], key)
            row = int(likely[np.searchsorted(ids, found)])
        token = row if self._tokens is None else int(self._tokens[row])
        return token, float(np.log(weights[row] / weights.sum()))

    def _embedded(self, tokens: Int32, chains: list[_Chain]) -> Float32:
        """Embeddings [tokens, width]."""
        if self._embedding is not None:
            return self._rows(tokens)
        self._steps += 1
        inputs = bare_step(self._steps, tokens, self._tables(chains), self._no_layers)
        inputs.hidden = np.full(len(tokens), HIDDEN_LAST, np.uint8)
        inputs.hidden_layers = np.array([_EMBEDDED], np.int32)
        found = self._backend.submit(inputs).result().layer_hidden
        assert found is not None
        embedded: Float32 = found[0]
        return embedded

    def _rows(self, tokens: Int32) -> Float32:
        """Rows of its own embedding."""
        assert self._embedding is not None
        stored = self._embedding.stored
        size = stored.nbytes // stored.shape[0]
        raw = np.frombuffer(stored.view, np.uint8).reshape(-1, size)[tokens]
        shape = (len(tokens), stored.shape[1])
        return to_float32(RawTensor(stored.dtype, shape, memoryview(raw.tobytes())))

    def _scores(self, x: Float32, chains: list[_Chain]) -> Float32:
        """Logits [sequences, rows of the output matrix]."""
        if self._output is not None:
            return self._output(x)
        self._steps += 1
        return scores_of(self._backend, self._steps, x, self._tables(chains), self._no_norm)

    def _tables(self, chains: list[_Chain]) -> list[Int32]:
        ids = [chain.one.seq_id for chain in chains]
        return any_blocks(self._inputs, ids, len(self._backend.spec.cache_groups()))

    def _own(self) -> list[Backend]:
        return [matrix.backend for matrix in self._matrices]

    def limit_cache(self, blocks: int) -> None:
        """See LoadedDrafter. Its cache has the tokens of the model's and no more."""

    def empty_cache(self) -> None:
        """See LoadedDrafter."""
        self._states.clear()

    def release_weights(self) -> None:
        """See LoadedDrafter. The layer is in no file as it is computed with, and stays."""

    def restore_weights(self) -> None:
        """See LoadedDrafter."""

    def stop_loading(self) -> None:
        """See LoadedDrafter."""
        for backend in self._own():
            backend.stop_loading()

    def weight_bytes(self) -> int:
        """See LoadedDrafter."""
        return self._layer.nbytes + sum(one.memory().weight_bytes for one in self._own())

    def kv_bytes(self) -> int:
        """See LoadedDrafter."""
        return sum(state.cache.nbytes for state in self._states.values())

    def unloaded_bytes(self) -> int:
        """See LoadedDrafter."""
        return sum(one.memory().promised_bytes for one in self._own())

    def progress(self) -> int:
        """See LoadedDrafter."""
        return self._steps + sum(matrix.steps for matrix in self._matrices)

    def close(self) -> None:
        """See LoadedDrafter."""
        for backend in self._own():
            backend.close()


def _proposal(chain: _Chain | None) -> Proposal:
    if chain is None or not chain.drafts or chain.confidence[0] < chain.one.least:
        return NOTHING
    return Proposal(tuple(chain.drafts), confidence=tuple(chain.confidence))
