"""Drafts of a decoder layer on the model's own hidden states: an EAGLE-3 head, an MTP layer.

It has keys and values of its own for every token of a sequence that the model computes while the
sequence has this drafter. Of tokens that it missed (found in the prefix cache, or computed a few
layers at a time) it has none, and attends to those behind them.

Tokens are drawn with the model's random keys. An output matrix that has all the model's tokens is
computed and sampled from by a backend, with all of the sequence's parameters; of rows of some
tokens the draw is made here, with the temperature alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import HIDDEN_LAST, Backend, Int32
from tidemill.backends.draw.race import RandomKey, race
from tidemill.contract.plan import NewSequence
from tidemill.loading.places import OneTensor
from tidemill.models.quantization import to_float32
from tidemill.models.tensors import RawTensor
from tidemill.worker.inputs import InputBuilder
from tidemill.worker.speculate.drafter import NOTHING, Proposal, Wanted
from tidemill.worker.speculate.matrices import Matrix, any_blocks, bare_step, sample_of
from tidemill.worker.speculate.rounds import UNLIKELY, confidence_of

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_EMBEDDED = 0
"""The residual stream in front of layer 0 is the embedding."""
_UNREAD = 128
"""Tokens of a sequence that wait to be read: many together take little longer than one."""
_AT_ONCE = 16
"""Tokens of a prompt's chunk are at least so many: they are read at once."""
_RAREST = 1e-7
"""Weight, beside the likeliest token's 1, below which a token is not drawn."""


class LayerCache(Protocol):
    """Keys and values of one sequence.

    Attributes:
        first: position of the first.
        end: position after the last that counts; what is behind it may be overwritten.
        nbytes: bytes that it holds beside what the layer has for all.
    """

    first: int
    end: int

    @property
    def nbytes(self) -> int: ...

    def restart(self, first: int) -> None:
        """Forget all, and begin at a position."""

    def reserve(self, end: int) -> bool:
        """Make room for the positions before `end`; False: there is none."""

    def close(self) -> None:
        """Free its memory."""


C = TypeVar("C", bound=LayerCache)


class DraftLayer(Protocol[C]):
    """The layer. Its keys and values depend on its inputs at the same position alone."""

    @property
    def backends(self) -> list[Backend]:
        """Those that it computes with."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights that no backend holds."""

    @property
    def steps(self) -> int:
        """Steps of its backends so far."""

    def cache(self, first: int) -> C:
        """An empty cache, from a position on."""

    def states(self, streams: Float32) -> Float32:
        """The states g [tokens, width] that it takes, of the model's [layers, tokens, width]."""

    def read(
        self, caches: Sequence[C], counts: Sequence[int], g: Float32, embedded: Float32
    ) -> None:
        """Append keys and values behind the ends of caches.

        Args:
            caches: of each sequence.
            counts: positions of each.
            g: [positions, width], of all sequences.
            embedded: the same, of the token behind each position.
        """

    def draft(
        self, caches: Sequence[C], positions: Int64, g: Float32, embedded: Float32
    ) -> Float32:
        """The next states [sequences, width] of one position each, its keys and values written
        behind the cache's end, in room that is reserved.

        Args:
            caches: of each sequence.
            positions: int64 [sequences].
            g: [sequences, width].
            embedded: [sequences, width], of the token behind the position.
        """

    def scored(self, x: Float32) -> Float32:
        """What the output matrix takes of states."""

    def limit_cache(self, blocks: int) -> None:
        """See LoadedDrafter."""

    def empty_cache(self) -> None:
        """See LoadedDrafter; all caches are closed."""

    def kv_bytes(self) -> int:
        """Bytes of caches that are allocated for all sequences."""


class Tokens(NamedTuple):
    """The vocabulary of the layer.

    Attributes:
        output: its output matrix; None: the model's own scores.
        ids: int64, ascending: the token that each row of `output` stands for; None: row i is token
            i.
        embedding: [vocabulary, width]; None: the model's.
    """

    output: Matrix | None = None
    ids: Int64 | None = None
    embedding: OneTensor | None = None


@dataclass(slots=True)
class _State(Generic[C]):
    """What the layer has of a sequence: keys and values up to `cache.end`, and the state of that
    position, whose following token is not read yet; None: it has nothing.

    Attributes:
        unread: what the model computed behind that: tokens, and streams [layers, tokens, width].
        start: position of the first of them.
        count: how many they are.
        asked: drafts were asked for since it was last full.
    """

    cache: C
    g: Float32 | None = None
    unread: list[tuple[Int32, Float32]] = field(default_factory=list)
    start: int = 0
    count: int = 0
    asked: bool = False


@dataclass(slots=True)
class _Chain(Generic[C]):
    """Drafts of one sequence in the making."""

    one: Wanted
    state: _State[C]
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


class LayerDrafter(Generic[C]):
    """See the module, `drafter.LoadedDrafter` and `drafter.LayerReader`.

    Args:
        backend: the model's.
        inputs: the model's sequences.
        layer: the layer.
        streams: the model's states that it takes, in the order in which it takes them: see
            `drafter.LayerReader`.
        tokens: see `Tokens`.
        idle: whether no step of the model is in flight: embeddings and scores of the model are
            steps, and none may come between.
    """

    reads_hidden = False

    def __init__(
        self,
        backend: Backend,
        inputs: InputBuilder,
        layer: DraftLayer[C],
        streams: tuple[int, ...],
        tokens: Tokens,
        idle: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._inputs = inputs
        self._layer = layer
        self._tokens = tokens
        self._idle = idle
        self._steps = 0
        self._states: dict[int, _State[C]] = {}
        self.layers = tuple(sorted({_EMBEDDED, *streams}))
        self._places = [self.layers.index(layer) for layer in streams]
        layers = len(backend.spec.layers)
        self._no_layers = np.arange(layers, dtype=np.int32)
        self._no_norm = np.arange(layers + 1, dtype=np.int32)
        self._vocab = backend.spec.vocab_size

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter."""
        self.forget(new.seq_id)
        self._states[new.seq_id] = _State(self._layer.cache(cached))

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter. What is read comes from the model's steps."""

    def forget(self, seq_id: int) -> None:
        """See Drafter."""
        if (state := self._states.pop(seq_id, None)) is not None:
            state.cache.close()

    def learn(self, seq_id: int, start: int, tokens: Int32, streams: Float32) -> None:
        """See LayerReader. Few tokens are kept until drafts are asked for, or there are many. Of a
        sequence of which none were asked for all the while they are forgotten, and what lies before
        them too."""
        state, count = self._states.get(seq_id), streams.shape[1]
        if state is None:
            return
        if state.unread and start != state.start + state.count:
            self._read([state])
        if not state.unread:
            state.start = start
        state.unread.append((tokens[start : start + count].copy(), streams))
        state.count += count
        if count >= _AT_ONCE:
            self._read([state])
        elif state.count >= _UNREAD:
            if state.asked:
                self._read([state])
            else:
                state.unread, state.count = [], 0
                state.cache.restart(start + count)
                state.g = None
            state.asked = False

    def _read(self, states: Sequence[_State[C]]) -> None:
        """Read what is unread of sequences, all together."""
        states = [state for state in states if state.unread]
        if not states:
            return
        tokens = np.concatenate([one for state in states for one, _ in state.unread])
        streams = np.concatenate([one for state in states for _, one in state.unread], axis=1)
        places = self._places
        embedded = streams[self.layers.index(_EMBEDDED)]
        if self._tokens.embedding is not None:
            embedded = _rows(self._tokens.embedding, tokens)
        g = self._layer.states(streams[places])
        known: list[Float32] = []
        behind: list[Float32] = []
        at = 0
        for state in states:
            mine = slice(at, at + state.count)
            at = mine.stop
            _go_on(state)
            if state.g is None:
                # The token at `start` goes with the state before it.
                known.append(g[mine][:-1])
                behind.append(embedded[mine][1:])
            else:
                known.append(np.concatenate([state.g[None], g[mine][:-1]]))
                behind.append(embedded[mine])
            state.g = g[mine][-1]
            state.unread, state.count = [], 0
        some = [i for i, one in enumerate(known) if len(one)]
        if some:
            self._layer.read(
                [states[i].cache for i in some],
                [len(known[i]) for i in some],
                np.concatenate([known[i] for i in some]),
                np.concatenate([behind[i] for i in some]),
            )

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        if not self._idle():
            return [NOTHING] * len(wanted)
        states = [
            (one, state)
            for one in wanted
            if one.most > 0 and (state := self._states.get(one.seq_id)) is not None
        ]
        self._read([state for _, state in states])
        chains: dict[int, _Chain[C]] = {}
        for one, state in states:
            state.asked = True
            # It guesses from the state of the position in front of the last known token.
            end = len(one.tokens) - 2
            ready = state.g is not None and state.cache.end == end
            if ready and state.cache.reserve(end + one.most):
                assert state.g is not None
                last = int(one.tokens[-1])
                chains[one.seq_id] = _Chain(one, state, last, state.g, [], [])
        left = list(chains.values())
        while left:
            left = self._round(left)
        return [_proposal(chains.get(one.seq_id)) for one in wanted]

    def _round(self, chains: list[_Chain[C]]) -> list[_Chain[C]]:
        """A draft for each chain; those that go on."""
        tokens = np.array([chain.token for chain in chains], np.int32)
        x = self._layer.draft(
            [chain.state.cache for chain in chains],
            np.array([chain.position for chain in chains], np.int64),
            np.stack([chain.g for chain in chains]),
            self._embedded(tokens, chains),
        )
        positions = [len(chain.one.tokens) + len(chain.drafts) for chain in chains]
        drawn, logprobs = self._draw(self._layer.scored(x), chains, np.array(positions, np.int32))
        left = []
        for i, chain in enumerate(chains):
            chain.g = x[i]
            if 0 <= drawn[i] < self._vocab and chain.take(drawn[i], logprobs[i]):
                left.append(chain)
        return left

    def _draw(
        self, x: Float32, chains: list[_Chain[C]], positions: Int32
    ) -> tuple[list[int], list[float]]:
        """A token for each chain and its log-probability; -1 or less where the scores are no
        numbers."""
        output, rows = self._tokens.output, self._tokens.ids
        sampling = self._inputs.sampling_at([chain.one.seq_id for chain in chains], positions)
        if output is not None and rows is not None:
            logits = output(x)
            found = [
                _drawn(
                    logits[i],
                    rows,
                    float(sampling.temperature[i]),
                    RandomKey(int(sampling.seed[i]), int(sampling.choice[i]), int(positions[i])),
                )
                for i in range(len(chains))
            ]
            return [token for token, _ in found], [logprob for _, logprob in found]
        self._steps += 1
        if output is not None:
            tables, skip = [np.zeros((len(chains), 1), np.int32)], None
            backend, step = output.backend, self._steps
        else:
            tables, skip = self._tables(chains), self._no_norm
            backend, step = self._backend, self._steps
        drawn, logprobs = sample_of(backend, step, x, tables, skip, sampling)
        return drawn.tolist(), logprobs.tolist()

    def _embedded(self, tokens: Int32, chains: list[_Chain[C]]) -> Float32:
        """Embeddings [tokens, width]."""
        if self._tokens.embedding is not None:
            return _rows(self._tokens.embedding, tokens)
        self._steps += 1
        inputs = bare_step(self._steps, tokens, self._tables(chains), self._no_layers)
        inputs.hidden = np.full(len(tokens), HIDDEN_LAST, np.uint8)
        inputs.hidden_layers = np.array([_EMBEDDED], np.int32)
        found = self._backend.submit(inputs).result().layer_hidden
        assert found is not None
        embedded: Float32 = found[0]
        return embedded

    def _tables(self, chains: list[_Chain[C]]) -> list[Int32]:
        ids = [chain.one.seq_id for chain in chains]
        return any_blocks(self._inputs, ids, len(self._backend.spec.cache_groups()))

    def _own(self) -> list[Backend]:
        output = self._tokens.output
        return [*self._layer.backends, *([] if output is None else [output.backend])]

    def limit_cache(self, blocks: int) -> None:
        """See LoadedDrafter."""
        self._layer.limit_cache(blocks)

    def empty_cache(self) -> None:
        """See LoadedDrafter."""
        for seq_id in [*self._states]:
            self.forget(seq_id)
        self._layer.empty_cache()

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
        caches = (state.cache for state in self._states.values())
        return self._layer.kv_bytes() + sum(cache.nbytes for cache in caches)

    def unloaded_bytes(self) -> int:
        """See LoadedDrafter."""
        return sum(one.memory().promised_bytes for one in self._own())

    def progress(self) -> int:
        """See LoadedDrafter."""
        return self._steps + self._layer.steps

    def close(self) -> None:
        """See LoadedDrafter."""
        for backend in self._own():
            backend.close()


def _go_on(state: _State[C]) -> None:
    """Let the cache end where what is unread begins, or begin there."""
    cache, start = state.cache, state.start
    if not cache.first <= start <= cache.end + (state.g is not None):
        cache.restart(start)
        state.g = None
    elif start <= cache.end:  # computed once more
        cache.end, state.g = start, None


def _drawn(logits: Float32, ids: Int64, temperature: float, key: RandomKey) -> tuple[int, float]:
    """One of the tokens `ids`, and its log-probability; -1 where the scores are no numbers."""
    top = int(logits.argmax())
    if not np.isfinite(logits[top]):
        return -1, 0.0
    scale = np.float32(1 / temperature) if temperature > 0 else np.float32(1)
    weights = np.exp((logits - logits[top]) * scale)
    row = top
    if temperature > 0:
        likely = np.flatnonzero(weights > _RAREST)
        found = race(ids[likely], weights[likely], key)
        row = int(likely[np.searchsorted(ids[likely], found)])
    return int(ids[row]), float(np.log(weights[row] / weights.sum()))


def _rows(embedding: OneTensor, tokens: Int32) -> Float32:
    """Rows of an embedding in the file."""
    stored = embedding.stored
    size = stored.nbytes // stored.shape[0]
    raw = np.frombuffer(stored.view, np.uint8).reshape(-1, size)[tokens]
    shape = (len(tokens), stored.shape[1])
    return to_float32(RawTensor(stored.dtype, shape, memoryview(raw.tobytes())))


def _proposal(chain: _Chain[C] | None) -> Proposal:
    if chain is None or not chain.drafts or chain.confidence[0] < chain.one.least:
        return NOTHING
    return Proposal(tuple(chain.drafts), confidence=tuple(chain.confidence))
