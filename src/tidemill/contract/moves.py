"""Moves: KV blocks that leave the device for a tier below it, and come back, beside running steps.

A move is no part of a `StepPlan`: a plan is rolled back and computed in parts when it fails, and
ends with its rows, while a move takes as long as its tier does. What they share is an order:
`BlockMoves.after`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

Name = tuple[bytes, bytes, bytes, tuple[tuple[int, bytes], ...]]
"""The content of a full block: digest, the parent's digest, packed token ids, and the media that
begin in it (`memory.prefix.BlockKey`)."""


class Tier(StrEnum):
    """Where blocks lie that left the device, the nearest first."""

    RAM = "ram"
    DISK = "disk"
    PEER = "peer"  # another engine


class RecordSizes(msgspec.Struct, frozen=True):
    """How a model's cache is cut into records, which all have the same size.

    Attributes:
        nbytes: of a record.
        state_parts: records that a recurrent state takes, the last of them padded; 0: the model
            has none.
        blocks: a block is a record; False: nothing is cached per token, the state is all there is.
    """

    nbytes: int
    state_parts: int = 0
    blocks: bool = True


class SaveBlock(msgspec.Struct, frozen=True, array_like=True):
    """Copy the content of a block, or of a part of a recurrent state, into tiers. It is
    complete, and no step writes to it before the save is cancelled.

    Attributes:
        save_id: unique for the engine's life.
        name: the content.
        blocks: the block of each cache group; empty: the content is in a tier, if anywhere.
        tiers: which ones; a tier that has it keeps what it has. PEER: copy it for those who asked
            for it (`MoveReport.offers`).
        part: of a state: which part; `blocks` is then the number of its snapshot alone. -1: it is a
            block.
    """

    save_id: int
    name: Name
    blocks: tuple[int, ...]
    tiers: tuple[Tier, ...]
    part: int = -1


class PeerLoad(msgspec.Struct, frozen=True, array_like=True):
    """What an engine tells those who may have it compute prompts (`RemotePrefill`).

    Attributes:
        pending: predicted seconds of the prompts that it has to compute.
        chunk: predicted seconds of a prompt's first `CHUNK_TOKENS` tokens alone; 0: not known yet.
        streams: running sequences that such a prompt would slow down.
    """

    pending: float = 0.0
    chunk: float = 0.0
    streams: int = 0


CHUNK_TOKENS = 512

MOST_NAMES = 2048
"""That are asked for at a time."""


class PrefillPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt whose blocks are wanted of an engine that may have to compute them.

    Attributes:
        before: its blocks before those wanted.
        salt, tenant, weight, priority, background: of the request.
    """

    before: tuple[Name, ...]
    salt: str
    tenant: str
    weight: float
    priority: int
    background: bool


class RemotePrefill(msgspec.Struct, frozen=True, array_like=True):
    """That another engine computes a prompt for this one (disaggregated prefill).

    Attributes:
        prompt: what it needs to know beside the blocks wanted.
        address: of the other engine, as it was given here.
        seconds: after so long what has not come is computed here.
    """

    prompt: PrefillPrompt
    address: str
    seconds: float


class LoadBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Bring blocks back, and after them a recurrent state. They are nobody else's until
    `LoadDone` is reported.

    Attributes:
        load_id: unique for the engine's life.
        names: contents of blocks, in the order of the sequence, and of the parts of the state.
        blocks: per block, that of each cache group that gets it.
        prefill: another engine computes those that it does not have; None: they are in a tier.
        snapshot: number of the snapshot that gets the state; -1: there is none.
        tokens: that the state covers.
    """

    load_id: int
    names: tuple[Name, ...]
    blocks: tuple[tuple[int, ...], ...]
    prefill: RemotePrefill | None = None
    snapshot: int = -1
    tokens: int = 0


class BlockMoves(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Moves to begin, and to end.

    Attributes:
        saves, loads: see there.
        after: a plan in flight: steps up to it may still write to the blocks of `loads`, so that
            those begin when they have ended; None: none is in flight.
        cancelled_saves: their blocks are about to be written: what is read of them from now on is
            discarded. Known before the plan that writes them is submitted.
        cancelled_loads: nobody waits for them any more; each is still reported.
    """

    saves: tuple[SaveBlock, ...] = ()
    loads: tuple[LoadBlocks, ...] = ()
    after: int | None = None
    cancelled_saves: tuple[int, ...] = ()
    cancelled_loads: tuple[int, ...] = ()


class TierTraffic(msgspec.Struct, frozen=True, array_like=True):
    """What was read of a tier for a load.

    Attributes:
        tier: which.
        blocks: read and found good.
        nbytes: of these, but for a peer's first one, and those that the peer had to compute.
        seconds: that took, until they were in the cache.
    """

    tier: Tier
    blocks: int
    nbytes: int
    seconds: float


class LoadDone(msgspec.Struct, frozen=True, array_like=True):
    """A load has ended.

    Attributes:
        load_id: of the load.
        blocks: so many of its first names have their content now; the others hold garbage.
        traffic: by tier.
    """

    load_id: int
    blocks: int
    traffic: tuple[TierTraffic, ...] = ()


class TierFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of a tier since the engine's start, and what it holds now.

    Attributes:
        held_bytes: of all blocks in it; of a tier that engines share, all of theirs.
        saved_blocks, loaded_blocks: written to it, and brought back from it.
        loaded_bytes, load_seconds: of those brought back.
        damaged_blocks: found to be damaged or of another model: computed again, never used.
        failed_saves: blocks that could not be written.
    """

    held_bytes: int = 0
    saved_blocks: int = 0
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    damaged_blocks: int = 0
    failed_saves: int = 0


class TierStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tier, for metrics.

    Attributes:
        tier: which.
        figures: the worker's counters.
        tokens: counter: tokens brought back from it instead of being computed.
        lost_blocks: counter: evicted before they were saved.
        prefills, lost_prefills: counters: prompts that another engine was given to compute, and
            those of them that did not come whole.
    """

    tier: Tier
    figures: TierFigures
    tokens: int = 0
    lost_blocks: int = 0
    prefills: int = 0
    lost_prefills: int = 0


class MoveReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has become of moves.

    Attributes:
        loads: that have ended.
        saves: ids of those that have ended, well or not.
        figures: by tier.
        offers: contents that other engines ask for, each to be answered with a `SaveBlock` to PEER.
        removed: digests of records that left the disk tier to make room.
    """

    loads: tuple[LoadDone, ...] = ()
    offers: tuple[Name, ...] = ()
    saves: tuple[int, ...] = ()
    figures: tuple[tuple[Tier, TierFigures], ...] = ()
    removed: tuple[bytes, ...] = ()
