"""SequenceSlots: the worker's state of sequences as arrays over slots, gathered in each step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.contract.plan import NewSequence
from tidemill.contract.request import Pooling
from tidemill.worker.sampler_options import RowOptions, row_options

_NEG_INF = np.float32(-np.inf)
# Below it float32 may know only zero; all so small keep the likeliest token and no other.
_LEAST_TOP_P = 1e-30
BAN_BIAS = -100.0  # the API's spelling of a ban


class SequenceSlots:
    """Sequences in slots: tokens, block tables and sampling parameters, one array row each.

    A slot belongs to one sequence from `add` to `remove`. Arrays grow by doubling; what they hold
    beyond a row's length is meaningless.

    Args:
        groups: cache groups.
        max_len: positions a sequence may have.
        block_size: tokens per block.
        slots: initial capacity in sequences.
    """

    def __init__(self, groups: int, max_len: int, block_size: int, slots: int) -> None:
        self._max_len = max_len
        blocks = -(-max_len // block_size)
        # Zero pages are not touched until used, so generous rows cost address space only.
        self.tokens = np.zeros((slots, max_len + 1), np.int32)
        self.tables = tuple(np.full((slots, blocks), -1, np.int32) for _ in range(groups))
        self.table_len = np.zeros(slots, np.int32)
        self.seq_id = np.full(slots, -1, np.int64)
        self.length = np.zeros(slots, np.int32)
        self.prompt_len = np.zeros(slots, np.int32)
        self.virtual = np.zeros(slots, np.int32)
        self.floats = np.zeros((slots, 6), np.float32)
        self.top_k = np.zeros(slots, np.int32)
        self.seed = np.zeros(slots, np.uint64)
        self.choice = np.zeros(slots, np.int32)
        self.num_logprobs = np.full(slots, -1, np.int32)
        self.prompt_logprobs = np.full(slots, -1, np.int32)
        self.penalized = np.zeros(slots, bool)
        self.min_tokens = np.zeros(slots, np.int32)
        self.biased = np.zeros(slots, bool)
        self.candidates = np.zeros(slots, np.int32)
        self.num_beams = 0
        self.bias: dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]] = {}
        self.banned: dict[int, NDArray[np.int32]] = {}
        self.pooling: dict[int, Pooling] = {}
        self.extras: dict[int, RowOptions] = {}
        self._slot: dict[int, int] = {}
        self._free = list(range(slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._slot

    def slot(self, seq_id: int) -> int:
        """The slot of a known sequence."""
        return self._slot[seq_id]

    def add(self, new: NewSequence) -> int:
        """Give a sequence a slot and fill in its static data."""
        self.remove(new.seq_id)
        if not self._free:
            self._double()
        slot = self._free.pop()
        self._slot[new.seq_id] = slot
        count = len(new.token_ids)
        self.tokens[slot, :count] = new.token_ids
        self.length[slot] = count
        self.prompt_len[slot] = new.prompt_len
        self.virtual[slot] = new.virtual_tokens
        self.seq_id[slot] = new.seq_id
        self.table_len[slot] = 0
        s = new.sampling.filled()
        self.floats[slot] = (
            s.temperature,
            max(s.top_p or 0.0, _LEAST_TOP_P),
            s.min_p,
            s.presence_penalty,
            s.frequency_penalty,
            s.repetition_penalty,
        )
        self.top_k[slot] = max(0, s.top_k or 0)
        self.seed[slot] = (s.seed or 0) % 2**64  # as the bits of a signed integer
        self.choice[slot] = new.choice
        self.num_logprobs[slot] = -1 if s.logprobs is None else s.logprobs
        self.prompt_logprobs[slot] = -1 if s.prompt_logprobs is None else s.prompt_logprobs
        self.penalized[slot] = s.penalized
        self.candidates[slot] = new.candidates
        self.num_beams += new.candidates > 0
        self._add_bias(slot, new)
        if (options := row_options(s)) is not None:
            self.extras[slot] = options
        if new.pooling is not None:
            self.pooling[slot] = new.pooling
        return slot

    def _add_bias(self, slot: int, new: NewSequence) -> None:
        bias = new.sampling.logit_bias
        if bias:
            values = np.fromiter(bias.values(), np.float32, len(bias))
            values[values <= BAN_BIAS] = _NEG_INF
            self.bias[slot] = (np.fromiter(bias.keys(), np.int32, len(bias)), values)
        if new.banned_until:
            self.banned[slot] = np.array(new.banned_until, np.int32)
        self.min_tokens[slot] = new.sampling.min_tokens if new.banned_until else 0
        self.biased[slot] = bool(bias)

    def bias_of(self, slot: int, position: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Token ids and the biases added to their logits when `position` is sampled."""
        ids, values = self.bias.get(slot, _NO_BIAS)
        if position - self.prompt_len[slot] < self.min_tokens[slot]:
            banned = self.banned[slot]
            ids = np.concatenate([ids, banned])
            values = np.concatenate([values, np.full(len(banned), _NEG_INF, np.float32)])
        return ids, values

    def learn(self, slot: int, start: int, token_ids: tuple[int, ...]) -> None:
        """Store known tokens from position `start` on that no step sampled; idempotent."""
        end = start + len(token_ids)
        self.tokens[slot, start:end] = token_ids
        self.length[slot] = end

    def append_block_ids(self, slot: int, new_blocks: tuple[tuple[int, ...], ...]) -> None:
        """Append to the slot's block tables; every group gets equally many."""
        start = int(self.table_len[slot])
        end = start + len(new_blocks[0])
        for table, blocks in zip(self.tables, new_blocks, strict=True):
            table[slot, start:end] = blocks
        self.table_len[slot] = end

    def truncate_blocks(self, slot: int, count: int) -> None:
        """Keep the first `count` entries of the slot's block tables."""
        for table in self.tables:
            table[slot, count : self.table_len[slot]] = -1
        self.table_len[slot] = count

    def remove(self, seq_id: int) -> None:
        """Forget a sequence; an unknown one is ignored, so that messages may be repeated."""
        slot = self._slot.pop(seq_id, None)
        if slot is None:
            return
        self.truncate_blocks(slot, 0)
        self.seq_id[slot] = -1
        self.num_beams -= int(self.candidates[slot]) > 0
        self.candidates[slot] = 0
        self.bias.pop(slot, None)
        self.banned.pop(slot, None)
        self.pooling.pop(slot, None)
        self.extras.pop(slot, None)
        self._free.append(slot)

    def _double(self) -> None:
        count = len(self.length)
        used = int(self.length.max(initial=0)) + 1
        tokens = np.zeros((2 * count, self.tokens.shape[1]), np.int32)
        tokens[:count, :used] = self.tokens[:, :used]
        self.tokens = tokens
        self.tables = tuple(
            np.concatenate([table, np.full_like(table, -1)]) for table in self.tables
        )
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.seq_id[count:] = -1
        self._free.extend(range(2 * count - 1, count - 1, -1))


_NO_BIAS = (np.zeros(0, np.int32), np.zeros(0, np.float32))
_COLUMNS = (
    *("table_len", "seq_id", "length", "prompt_len", "floats", "top_k", "seed", "choice"),
    *(
        "virtual",
        "num_logprobs",
        "prompt_logprobs",
        "penalized",
        "min_tokens",
        "biased",
        "candidates",
    ),
)
