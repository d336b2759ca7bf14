"""Remote prefill: whether another engine computes a prompt for this one.

The two ways are compared by one sum: the seconds until the prompt's blocks are here, and what the
streams that run where it is computed wait for it meanwhile, taken together. The other engine's
blocks travel while it computes the next ones, so that the longer of the two counts, and the last
step's blocks. Nothing is decided here that an answer depends on: what does not come is computed.
"""

from __future__ import annotations

from collections.abc import Sequence as TypingSequence

from tidemill.contract.moves import (
    CHUNK_TOKENS,
    MOST_NAMES,
    PeerLoad,
    PrefillPrompt,
    RemotePrefill,
    Tier,
)
from tidemill.memory.prefix import BlockKey
from tidemill.memory.tiers import PROBE_BLOCKS, Tiers
from tidemill.sched.cost import computing
from tidemill.sched.sequence import Sequence
from tidemill.sched.state import State

ADVANTAGE = 0.8
"""The other engine must take less than this part of what it takes here: neither is known exactly,
and two engines with equal work must not pass it to each other."""

PATIENCE = 3.0
LEAST_SECONDS = 2.0
"""What has not come after so many times what was predicted, and after this, is computed here."""


def load_of(state: State) -> PeerLoad:
    """What this engine has to do, for those who might have it compute prompts. On any thread."""
    chunk = computing(state.cost, 0, CHUNK_TOKENS, CHUNK_TOKENS) if state.cost.ready else 0.0
    tokens, streams = _prompts(state)
    tokens += sum(line.queue.tokens for line in state.lines)
    # Nobody needs to hear of small changes.
    return PeerLoad(round(tokens / CHUNK_TOKENS * chunk, 2), float(f"{chunk:.2g}"), streams)


def _prompts(state: State) -> tuple[int, int]:
    """Tokens of running sequences' prompts that are to be computed; sequences that have none."""
    left = [seq.remaining for seq in list(state.running)]
    return sum(tokens for tokens in left if tokens > 1), sum(tokens <= 1 for tokens in left)


class RemotePrefills:
    """See the module docstring.

    Args:
        state: of the scheduler.
        tiers: what bringing takes, and which engines compute prompts for this one.
    """

    def __init__(self, state: State, tiers: Tiers) -> None:
        self._state = state
        self._tiers = tiers

    def choose(
        self,
        seq: Sequence,
        found: int,
        keys: TypingSequence[BlockKey],
        below: TypingSequence[Tier],
        bring: int,
    ) -> RemotePrefill | None:
        """Which engine computes the blocks of a sequence that it does not have; None: this one.

        Args:
            seq: it fits into the free blocks, and has none.
            found: how many of its first blocks are on the device.
            keys: its further blocks.
            below: the tiers of the first of these.
            bring: how many of these would be brought, if the rest was computed here.
        """
        assert self._tiers.peer_loads is not None
        state, request, loads = self._state, seq.owner.request, self._tiers.peer_loads()
        if not loads or not state.cost.ready or found + len(keys) > MOST_NAMES:
            return None
        if request.adapters or seq.owner.media or seq.owner.virtual_tokens:
            return None  # they are this machine's
        size, step = state.memory.block_size, state.limits.max_step_tokens
        end = (found + len(keys)) * size
        tokens, streams = _prompts(state)
        own_chunk = computing(state.cost, 0, CHUNK_TOKENS, CHUNK_TOKENS)
        alone = computing(state.cost, (found + bring) * size, end, step)
        here = tokens / CHUNK_TOKENS * own_chunk + alone * (1 + streams)
        if bring:
            here += self._tiers.seconds(below[:bring])
        at_peers = next((i for i, tier in enumerate(below) if tier is not Tier.PEER), len(below))
        left = computing(state.cost, (found + at_peers) * size, end, step)
        whole = self._tiers.seconds((Tier.PEER,) * len(keys))
        last = self._tiers.seconds((Tier.PEER,) * min(len(keys), max(1, step // size)))
        best, best_took, best_cost = "", 0.0, ADVANTAGE * here
        near = ""  # what would be chosen if the way took no time
        for address, load in loads:
            there = left * load.chunk / own_chunk if load.chunk and own_chunk else left
            took = load.pending + max(there + last, whole)
            if took + there * load.streams < best_cost:
                best, best_took, best_cost = address, took, took + there * load.streams
            if load.pending + there * (1 + load.streams) < ADVANTAGE * here:
                near = address
        if best:
            return _asked(seq, seq.keys_up_to(found, size), best, PATIENCE * best_took)
        now = state.clock()
        full = found + len(keys) >= PROBE_BLOCKS
        if near and full and not at_peers and self._tiers.may_probe(Tier.PEER, now):
            first = seq.keys_up_to(PROBE_BLOCKS, size)
            self._tiers.probe(Tier.PEER, first, now, _asked(seq, (), near, LEAST_SECONDS))
        return None


def _asked(
    seq: Sequence, before: TypingSequence[BlockKey], address: str, seconds: float
) -> RemotePrefill:
    request = seq.owner.request
    prompt = PrefillPrompt(
        *(tuple(before), request.cache_salt, request.tenant, request.weight, request.priority),
        seq.background,
    )
    return RemotePrefill(prompt, address, max(LEAST_SECONDS, seconds))
