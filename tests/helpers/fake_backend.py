"""A backend whose tokens prove that the right blocks were read.

The "KV cache" holds token ids. A row writes its tokens through its block table and then reads its
whole context back the same way; the next token is a hash of what was read. Any mix-up of blocks,
positions or histories therefore shows as a wrong token, and `expected_tokens` says which was right.
"""

from __future__ import annotations

import hashlib
import threading
import time
import zlib
from collections.abc import Callable

import numpy as np

from tidemill.backends.base import (
    LOGITS_ALL,
    LOGITS_NONE,
    NOT_REACHED,
    BackendMemory,
    BackendOptions,
    CandidateArrays,
    LogprobArrays,
    StepInputs,
    StepOutputs,
)
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError
from tidemill.models.spec import Attention, DecoderSpec, Layer, Mlp

UNWRITTEN = -7
STATE_BYTES = 40


def tiny_spec(vocab_size: int = 97, groups: int = 1, max_positions: int = 4096) -> DecoderSpec:
    """A spec of one or two cache groups; its numbers matter to no fake."""
    attn = Attention(heads=2, kv_heads=1, head_dim=8, rope=None)
    windowed = Attention(heads=2, kv_heads=1, head_dim=8, rope=None, window=64)
    mixers = [attn, windowed][:groups]
    return DecoderSpec(
        family="fake",
        vocab_size=vocab_size,
        hidden_size=16,
        max_positions=max_positions,
        layers=tuple(Layer(m, Mlp(32)) for m in mixers),
        norm_eps=1e-6,
        tied_embeddings=True,
    )


def state_of(context: list[int]) -> np.ndarray:
    """The recurrent state after these tokens."""
    data = np.array(context, np.int64).tobytes()
    return np.frombuffer(hashlib.blake2b(data, digest_size=STATE_BYTES).digest(), np.uint8)


def next_token(
    context: list[int],
    vocab: int,
    *,
    key: tuple[int, ...] = (),
    banned: frozenset[int] = frozenset(),
) -> int:
    """The fake model's next token after `context`, the first of its hashes that is not banned."""
    if len(banned) >= vocab:
        return -1
    seed = np.array([*context, -1, *key], np.int64).tobytes()
    attempt = 0
    while True:
        digest = hashlib.blake2b(seed + attempt.to_bytes(4, "little"), digest_size=8).digest()
        token = int.from_bytes(digest, "little") % vocab
        if token not in banned:
            return token
        attempt += 1


def expected_tokens(
    prompt: list[int] | tuple[int, ...],
    count: int,
    vocab: int,
    *,
    seed: int | None = None,
    choice: int = 0,
) -> list[int]:
    """What a request must get: greedy without `seed`, sampled with it."""
    tokens = list(prompt)
    for _ in range(count):
        key = () if seed is None else (seed, choice, len(tokens))
        tokens.append(next_token(tokens, vocab, key=key))
    return tokens[len(prompt) :]


def fake_candidates(context: list[int], vocab: int) -> list[tuple[int, float]]:
    """(token, score) of a beam after `context`, best first."""
    digest = hashlib.blake2b(np.array(context, np.int64).tobytes(), digest_size=8).digest()
    logits = np.random.default_rng(int.from_bytes(digest, "little")).normal(0, 2, vocab)
    scores = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    return list(zip(order.tolist(), scores[order].tolist(), strict=True))


def computed_tokens(x: StepInputs, layers: int) -> float:
    """Tokens of a step; some layers of a token count as that share of it."""
    tokens = float(len(x.token_ids))
    if x.slice is not None:
        cut = len(x.token_ids) - int(x.row_start[-2])
        tokens -= cut * (1 - (x.slice.end - x.slice.begin) / layers)
    return tokens


class FakeHandle:
    """Runs its step when asked for the result, or lazily before a later one."""

    def __init__(self, backend: FakeBackend, inputs: StepInputs) -> None:
        self._backend = backend
        self.inputs = inputs
        self.outputs: StepOutputs | None = None
        self.error: Exception | None = None

    def set_mask(self, row: int, draft: int, bits: np.ndarray) -> None:
        raise NotImplementedError

    def done(self, seconds: float = 0.0) -> bool:
        return self.outputs is not None

    def result(self) -> StepOutputs:
        self._backend.run_up_to(self)
        if self.error is not None:
            raise self.error
        assert self.outputs is not None
        return self.outputs


class FakeBackend:
    """See the module. `fail_next` steps fail after having written their garbage.

    Attributes:
        layers: how many a row's `LayerSlice` counts. While some are left, the row's blocks hold
            what nobody may read.
        slices: how many steps computed some layers of a row.
        on_step: called with each step's inputs before it runs.
        alter: called with each step's outputs, which it may change.
        fail_if: the exception that a step of these inputs fails with, if any.
        step_seconds: how long a step takes.
        given_back: what `give_back_blocks` was called with.
        cost: seconds that a step says it took, whatever it took.
    """

    def __init__(
        self, spec: DecoderSpec, block_size: int, *, step_seconds: float = 0.0, threads: int = 1
    ) -> None:
        self.spec = spec
        self.slices_layers = True
        self.verifies_drafts = True
        self.layers = len(spec.layers)
        self.slices = 0
        self._left: list[tuple[object, ...]] = []
        self.options = BackendOptions(
            dtype="float32",
            quantize="none",
            kv_dtype="float32",
            block_size=block_size,
            max_positions=spec.max_positions,
            threads=threads,
        )
        self.step_seconds = step_seconds
        self.fail_next = 0
        self.on_step: Callable[[StepInputs], None] | None = None
        self.cost: Callable[[StepInputs], float] | None = None
        self.fail_if: Callable[[StepInputs], Exception | None] = lambda inputs: None
        self.alter: Callable[[StepOutputs], object] = lambda outputs: None
        self.on_read: Callable[[], object] = lambda: None
        self.steps = 0
        self.closed = False
        self.awake = True
        self.limit: int | None = None
        self.given_back: list[tuple[int, list[int]]] = []
        self.recurrent = False  # rows read and write states, and these are checked
        self._caches: list[np.ndarray] = []
        self._states = np.zeros((0, STATE_BYTES), np.uint8)
        self._queue: list[FakeHandle] = []
        self._previous: dict[int, int] = {}
        self._lock = threading.Lock()

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """It has no weights to wait for."""
        on_loaded(None)
        return True

    def stop_loading(self) -> None:
        """See backends.base.Backend: there is nothing to stop."""

    def memory(self) -> BackendMemory:
        return BackendMemory(0, sum(c.nbytes for c in self._caches), "fake", "cpu")

    def allocate_cache(
        self,
        num_blocks: tuple[int, ...],
        kv_dtype: str | None = None,
        states: int = 2,
        *,
        unchecked: bool = False,
    ) -> None:
        size = self.options.block_size
        self._caches = [np.full((n, size), UNWRITTEN, np.int32) for n in num_blocks]
        self._states = np.zeros((states, STATE_BYTES), np.uint8)

    def limit_cache(self, blocks: int) -> None:
        self.limit = blocks

    def empty_cache(self) -> None:
        for cache in self._caches:
            cache[:] = UNWRITTEN
        self._states[:] = 0

    def start_profile(self, events: int) -> None:
        """It counts nothing."""

    def end_profile(self) -> None:
        return None

    def machine_rates(self) -> None:
        return None

    def release_weights(self) -> None:
        assert not self._queue
        self.awake = False

    def restore_weights(self) -> None:
        self.awake = True

    def submit(self, inputs: StepInputs) -> FakeHandle:
        assert self.awake, "a step without weights"
        handle = FakeHandle(self, inputs)
        self._queue.append(handle)
        assert len(self._queue) <= 2, "more than two steps outstanding"
        return handle

    def forget_steps(self) -> None:
        """Those submitted and not run yet vanish, as in a failure."""
        self._queue.clear()

    def run_up_to(self, handle: FakeHandle) -> None:
        with self._lock:
            while handle.outputs is None and handle.error is None:
                step = self._queue.pop(0)
                self._run(step)

    def _run(self, step: FakeHandle) -> None:
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.on_step is not None:
            self.on_step(step.inputs)
        failing = self.fail_if(step.inputs)
        if self.fail_next > 0:
            self.fail_next -= 1
            failing = TidemillError(ErrorKind.INTERNAL, "injected failure")
        try:
            outputs = self._compute(step.inputs)
        except AssertionError as error:
            step.error = TidemillError(ErrorKind.INTERNAL, f"fake backend: {error}")
            raise
        if failing is not None:
            for later in [step, *self._queue]:
                later.error = failing
            self._queue.clear()
            return
        self.steps += 1
        self.alter(outputs)
        step.outputs = outputs

    def _compute(self, x: StepInputs) -> StepOutputs:
        for cache, pairs in zip(self._caches, x.copies, strict=True):
            for source, target in pairs.tolist():
                cache[target] = cache[source]
        contexts = self._write(x)
        if self.recurrent:
            self._advance(x, contexts)
        vocab = self.spec.vocab_size
        sampled: list[int] = []
        read: list[list[int]] = []  # per sampled position, what stands before it
        self._previous = {}
        candidates = _no_candidates(x)
        for r in np.flatnonzero(x.sample).tolist():
            known = len(contexts[r]) - (0 if x.drafts is None else int(x.drafts[r]))
            drafts, reached = contexts[r][known:], True
            for j in range(len(drafts) + 1):
                read.append(contexts[r][: known + j])
                s = len(sampled)
                if candidates is not None and x.sampling.candidates[s]:  # type: ignore[index]
                    sampled.append(_fill_candidates(x, s, read[-1], vocab, candidates))
                    continue
                token = self._sample(x, s, read[-1], vocab) if reached else NOT_REACHED
                reached = j < len(drafts) and token == drafts[j]
                sampled.append(token)
            if not drafts:
                self._previous[r] = sampled[-1]
        wide = int(x.sampling.num_logprobs.max(initial=-1))
        logprobs = None
        if wide >= 0:
            logprobs = fake_logprobs(read, sampled, max(1, wide), vocab)
        taken = 0.0 if self.cost is None else self.cost(x)
        return StepOutputs(
            sampled=np.array(sampled, np.int32),
            logprobs=logprobs,
            targets=self._targets(x, contexts, vocab),
            seconds=(0.0, taken, 0.0, taken),
            candidates=candidates,
        )

    def _write(self, x: StepInputs) -> list[list[int]]:
        size = self.options.block_size
        contexts = []
        unfinished = self._resume_streams(x)
        writes: list[tuple[int, int, int]] = []
        for r in range(len(x.context_len)):
            tokens = x.token_ids[x.row_start[r] : x.row_start[r + 1]].copy()
            for i in np.flatnonzero(tokens < 0).tolist():
                tokens[i] = self._previous[-1 - int(tokens[i])]
            start = int(x.context_len[r])
            end = start + len(tokens)
            positions = np.arange(start, end)
            for group, cache in enumerate(self._caches):
                blocks = x.block_tables[group][r][positions // size]
                assert (blocks >= 0).all(), f"row {r} writes without a block"
                cache[blocks, positions % size] = UNWRITTEN if r == unfinished else tokens
                writes += [(group, b, p) for b, p in zip(blocks, positions % size, strict=True)]
            contexts.append((r, end))
        assert len(set(writes)) == len(writes), "two rows write the same slot"
        read = []
        for r, end in contexts:
            if r == unfinished:
                read.append([])
                continue
            everywhere = np.arange(end)
            texts = [
                cache[x.block_tables[g][r][everywhere // size], everywhere % size].tolist()
                for g, cache in enumerate(self._caches)
            ]
            assert all(t == texts[0] for t in texts), "cache groups disagree"
            assert UNWRITTEN not in texts[0], f"row {r} reads an unwritten slot"
            read.append(texts[0])
        return read

    def _advance(self, x: StepInputs, contexts: list[list[int]]) -> None:
        """A state is a digest of the tokens that it covers."""
        for r, (read, _) in enumerate(x.states.tolist()):
            start = int(x.context_len[r])
            want = state_of(contexts[r][:start])
            assert not start or np.array_equal(self._states[read], want), "another's state"
        for r, (_, written) in enumerate(x.states.tolist()):
            self._states[written] = state_of(contexts[r])
        for r, count, state in x.snapshots.tolist():
            self._states[state] = state_of(contexts[r][: int(x.context_len[r]) + count])

    def _resume_streams(self, x: StepInputs) -> int:
        """Which row has layers left after this step, if any; -1: none."""
        if x.slice is None:
            return -1
        self.slices += 1
        part, last = x.slice, len(x.context_len) - 1
        tokens = x.token_ids[x.row_start[last] :].tolist()
        tables = tuple(tuple(t[last][t[last] >= 0].tolist()) for t in x.block_tables)
        key = (part.sequence, int(x.context_len[last]), tuple(tokens), tables)
        assert 0 <= part.begin < part.end <= self.layers, "not some of the layers"
        if part.begin > 0:
            assert (*key, part.begin) in self._left, "no step left this row's input"
            self._left = [left for left in self._left if left[-1] == part.begin]
        else:
            self._left = []
        if part.end == self.layers:
            return -1
        assert not x.sample[last] and x.logits[last] == LOGITS_NONE
        self._left.append((*key, part.end))
        return last

    def _sample(self, x: StepInputs, s: int, context: list[int], vocab: int) -> int:
        p = x.sampling
        assert int(p.position[s]) == len(context), "position is not the sampled token's"
        bias = slice(int(p.bias_start[s]), int(p.bias_start[s + 1]))
        banned = frozenset(p.bias_id[bias][np.isneginf(p.bias_value[bias])].tolist())
        history = p.history[int(p.history_start[s]) : int(p.history_start[s + 1])].tolist()
        if history:
            assert history == context[: len(history)] and len(context) - len(history) <= 1
        key: tuple[int, ...] = ()
        if p.temperature[s] > 0:
            key = (int(p.seed[s]), int(p.choice[s]), len(context))
        return next_token(context, vocab, key=key, banned=banned)

    def _targets(
        self, x: StepInputs, contexts: list[list[int]], vocab: int
    ) -> LogprobArrays | None:
        seen: list[list[int]] = []
        targets: list[int] = []
        for r in np.flatnonzero(x.logits == LOGITS_ALL).tolist():
            for i in range(int(x.row_start[r]), int(x.row_start[r + 1])):
                if x.target_ids[i] >= 0:
                    position = int(x.context_len[r]) + i - int(x.row_start[r])
                    seen.append(contexts[r][: position + 1])
                    targets.append(int(x.target_ids[i]))
        assert (x.logits[np.flatnonzero(x.sample)] != LOGITS_NONE).all()
        wide = max(1, int(x.target_logprobs.max(initial=-1)))
        return fake_logprobs(seen, targets, wide, vocab) if targets else None

    def copy_blocks(self, group: int, pairs: np.ndarray) -> None:
        for source, target in pairs.tolist():
            self._caches[group][target] = self._caches[group][source]

    def give_back_blocks(self, group: int, blocks: np.ndarray) -> None:
        self._caches[group][blocks] = UNWRITTEN
        self.given_back.append((group, blocks.tolist()))

    def block_bytes(self) -> tuple[int, ...]:
        return tuple(cache[0].nbytes for cache in self._caches)

    def read_blocks(self, group: int, blocks: np.ndarray, out: np.ndarray) -> None:
        self.on_read()
        out[:] = self._caches[group][blocks].reshape(-1).view(np.uint8)

    def write_blocks(self, group: int, blocks: np.ndarray, data: np.ndarray) -> None:
        cache = self._caches[group]
        cache[blocks] = data.view(np.int32).reshape(len(blocks), cache.shape[1])

    def state_bytes(self) -> int:
        return STATE_BYTES if self.recurrent else 0

    def read_state(self, state: int, at: int, out: np.ndarray) -> None:
        self.on_read()
        out[:] = self._states[state, at : at + len(out)]

    def write_state(self, state: int, at: int, data: np.ndarray, tokens: int) -> None:
        self._states[state, at : at + len(data)] = data

    def checksum(self, data: np.ndarray) -> int:
        return zlib.crc32(data)

    def export_blocks(self, group: int, blocks: np.ndarray) -> object:
        raise NotImplementedError

    def import_blocks(self, group: int, blocks: np.ndarray, data: object) -> None:
        raise NotImplementedError

    def progress(self) -> int:
        return self.steps

    def close(self) -> None:
        self.closed = True


def fake_logprob(context: list[int], token: int) -> float:
    """A number that depends on the context and the token."""
    digest = hashlib.blake2b(np.array([*context, -2, token], np.int64).tobytes(), digest_size=4)
    return -int.from_bytes(digest.digest(), "little") / 2**28


def fake_logprobs(
    contexts: list[list[int]], tokens: list[int], wide: int, vocab: int
) -> LogprobArrays:
    """`fake_logprob` of each token, with alternatives 0 .. wide - 1."""
    n = len(tokens)
    chosen = np.array(
        [fake_logprob(c, t) for c, t in zip(contexts, tokens, strict=True)], np.float32
    )
    ids = np.tile(np.arange(wide, dtype=np.int32) % vocab, (n, 1)).astype(np.int32)
    values = np.tile(-np.arange(wide, dtype=np.float32), (n, 1)).astype(np.float32)
    return LogprobArrays(chosen, ids, values)


def _no_candidates(x: StepInputs) -> CandidateArrays | None:
    wanted = x.sampling.candidates
    if wanted is None:
        return None
    shape = len(wanted), int(wanted.max(initial=0))
    return CandidateArrays(
        np.full(shape, -1, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    )


def _fill_candidates(
    x: StepInputs, s: int, context: list[int], vocab: int, out: CandidateArrays
) -> int:
    wanted = x.sampling.candidates
    assert wanted is not None and int(x.sampling.position[s]) == len(context)
    found = fake_candidates(context, vocab)[: wanted[s]]
    out.ids[s, : len(found)] = [token for token, _ in found]
    out.scores[s, : len(found)] = [score for _, score in found]
    return found[0][0]
