"""Drafts from a smaller model of the same vocabulary.

It runs in this worker, with weights and a KV cache of its own. All sequences that want drafts are
drafted for together, one step per position, and each position is sampled with the sequence's own
parameters and the same random key as the target's: the sampler draws by Gumbel noise per token, so
both models draw the same token about as often as any coupling of the two distributions can
(Daliri et al. 2024).

What the draft model has not seen of a sequence (its prompt; tokens that others drafted) it reads
when it is next asked, at most `CATCH_UP` tokens in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tidemill.backends.base import Backend
from tidemill.contract.plan import LogitsWanted, NewSequence, Row, RowResult
from tidemill.contract.program import OutputProgram
from tidemill.worker.runner import Runner
from tidemill.worker.speculate.blocks import DraftBlocks, block_keys
from tidemill.worker.speculate.drafter import NOTHING, Int32, Proposal, Wanted
from tidemill.worker.speculate.rounds import Rounds, drafts_of

CATCH_UP = 512
"""Tokens that a call reads beyond one per sequence: clients wait for the call."""

AT_ONCE = 64
"""Unread tokens up to which a sequence's first token waits for drafts of the second."""


@dataclass(slots=True)
class _State:
    """What the draft model has of a sequence.

    Attributes:
        new: its static data.
        cached: known tokens that may come from blocks of other sequences.
        blocks: its blocks, in order.
        keys: of its first full blocks; those of blocks that can be found.
        known: known tokens at the last proposal; 0: it has not begun.
        computed: positions whose KV is right if the drafts came true.
        drafts: proposed at `known`.
    """

    new: NewSequence
    cached: int
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    known: int = 0
    computed: int = 0
    drafts: tuple[int, ...] = ()

    def settle(self, tokens: Int32) -> None:
        """Positions computed for drafts that did not come true count no more."""
        for i, draft in enumerate(self.drafts):
            position = self.known + i
            if position >= self.computed:
                break
            if position >= len(tokens) or tokens[position] != draft:
                self.computed = position
                break
        self.drafts = ()
        # The last known token is computed in any case: what follows it is sampled.
        self.computed = min(self.computed, len(tokens) - 1)


class ModelDrafter:
    """See the module and `drafter.LoadedDrafter`.

    Args:
        backend: the draft model's, its cache allocated.
        max_len: positions a sequence may have.
        blocks: of its cache, in each group.
        vocab: of the target; other tokens are not proposed.
    """

    reads_hidden = False

    def __init__(self, backend: Backend, max_len: int, blocks: int, vocab: int) -> None:
        self.backend = backend
        self._rounds = Rounds(Runner(backend, max_len))
        self._blocks = DraftBlocks(blocks)
        self._size = backend.options.block_size
        self._groups = len(backend.spec.cache_groups())
        self._max_len = max_len
        self._vocab = vocab
        self._states: dict[int, _State] = {}
        self._finished: list[int] = []

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter."""
        self._states[new.seq_id] = _State(_drafted(new, self.backend.spec.vocab_size), cached)

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter. The step's threads are busy, so nothing is read meanwhile."""

    def forget(self, seq_id: int) -> None:
        """See Drafter."""
        if (state := self._states.pop(seq_id, None)) is not None:
            self._blocks.release(state.blocks)
            self._finished.append(seq_id)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        left = CATCH_UP
        rows: list[Row] = []
        new: list[NewSequence] = []
        lengths: dict[int, int] = {}
        for one in wanted:
            row, length = self._begin(one, left + 1)
            if row is None:
                continue
            left -= row.count - 1
            rows.append(row)
            if length:
                lengths[one.seq_id] = length
            if (state := self._states[one.seq_id]).known == 0:
                new.append(msgspec.structs.replace(state.new, token_ids=tuple(one.tokens.tolist())))
            state.known = len(one.tokens)
        finished, self._finished = tuple(self._finished), []
        ends = {one.seq_id: len(one.tokens) for one in wanted}
        least = {one.seq_id: one.least for one in wanted}
        found = self._rounds.draft(rows, ends, lengths, least, new=tuple(new), finished=finished)
        for row in rows:
            self._states[row.seq_id].computed = row.start + row.count
        return [self._end(one, found.get(one.seq_id, [])) for one in wanted]

    def limit_cache(self, blocks: int) -> None:
        """See LoadedDrafter."""
        self._blocks.limit(blocks)
        self.backend.limit_cache(blocks)

    def empty_cache(self) -> None:
        """See LoadedDrafter."""
        self._blocks.forget()
        self.backend.empty_cache()

    def release_weights(self) -> None:
        """See LoadedDrafter."""
        self.backend.release_weights()

    def restore_weights(self) -> None:
        """See LoadedDrafter."""
        self.backend.restore_weights()

    def stop_loading(self) -> None:
        """See LoadedDrafter."""
        self.backend.stop_loading()

    def weight_bytes(self) -> int:
        """See LoadedDrafter."""
        return self.backend.memory().weight_bytes

    def kv_bytes(self) -> int:
        """See LoadedDrafter."""
        return self.backend.memory().kv_bytes

    def unloaded_bytes(self) -> int:
        """See LoadedDrafter."""
        return self.backend.memory().promised_bytes

    def progress(self) -> int:
        """See LoadedDrafter."""
        return self.backend.progress()

    def close(self) -> None:
        """See LoadedDrafter."""
        self.backend.close()

    def _begin(self, one: Wanted, most: int) -> tuple[Row | None, int]:
        """The row that computes what is known of a sequence, up to `most` tokens, and how many
        tokens may be drafted after it."""
        state, tokens = self._states[one.seq_id], one.tokens
        count, before = len(tokens), state.known
        if before == 0 and not state.blocks:
            if int(tokens.max()) >= self.backend.spec.vocab_size:
                return None, 0  # the draft model does not have all tokens of the target's
            self._reuse(state, tokens)
        state.settle(tokens)
        unread = count - state.computed
        first = count - state.new.prompt_len <= 1
        if most < 1 or count >= self._max_len or (first and unread > AT_ONCE):
            return None, 0
        whole = unread <= most
        length = min(one.most, self._max_len - count) if whole else 0
        end = count + length - 1 if whole else state.computed + most
        missing = -(-end // self._size) - len(state.blocks)
        if missing > 0:
            blocks = self._blocks.take(missing)
            if not blocks:
                return None, 0
            state.blocks += blocks
        table = state.blocks[-(-state.computed // self._size) if before else 0 :]
        return Row(
            seq_id=one.seq_id,
            start=state.computed,
            count=min(unread, most),
            new_blocks=(tuple(table),) * self._groups if table else (),
            new_token_ids=tuple(tokens[before:].tolist()) if before else (),
            new_token_start=before,
            logits=LogitsWanted.LAST if whole else LogitsWanted.NONE,
            sample=whole,
        ), length

    def _reuse(self, state: _State, tokens: Int32) -> None:
        """Begin with blocks of other sequences that begin alike."""
        most = min(state.cached, len(tokens) - 1) // self._size
        state.keys = block_keys(tokens[: most * self._size], self._size)
        state.blocks = self._blocks.find(state.keys)
        del state.keys[len(state.blocks) :]
        state.computed = len(state.blocks) * self._size

    def _end(self, one: Wanted, results: list[RowResult]) -> Proposal:
        """The proposal of what was sampled, and the sequence's state after it."""
        state, count = self._states[one.seq_id], len(one.tokens)
        if state.known != count:
            return NOTHING  # it had no row
        drafts, confidence = drafts_of(results, self._vocab, one.least)
        if results:
            state.computed = count + max(0, len(drafts) - 1)
        state.drafts = drafts
        self._publish(state, one.tokens)
        return Proposal(drafts, confidence=confidence)

    def _publish(self, state: _State, tokens: Int32) -> None:
        full = min(state.computed, len(tokens)) // self._size
        before = len(state.keys)
        if full > before:
            state.keys = block_keys(tokens[: full * self._size], self._size, state.keys)
            for i in range(before, full):
                self._blocks.publish(state.blocks[i], state.keys[i])


def _drafted(new: NewSequence, vocab: int) -> NewSequence:
    """A sequence as the draft model computes it: without what only the target's answer has, and
    without tokens that it does not know."""
    sampling = new.sampling
    return NewSequence(
        seq_id=new.seq_id,
        request_id=new.request_id,
        choice=new.choice,
        token_ids=(),
        prompt_len=new.prompt_len,
        sampling=msgspec.structs.replace(
            sampling,
            logprobs=0,
            prompt_logprobs=None,
            logit_bias={t: b for t, b in sampling.logit_bias.items() if t < vocab},
            bad_words_ids=tuple(w for w in sampling.bad_words_ids if max(w, default=0) < vocab),
        ),
        banned_until=tuple(token for token in new.banned_until if token < vocab),
        program=OutputProgram(),
        virtual_tokens=new.virtual_tokens,
    )
