"""What the engine did with one choice of a request: sent with its last message, where it is asked.

Times are seconds of `base.clock.monotonic`. There is no content in it: positions and counts alone.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ChunkLimit(StrEnum):
    """Why a chunk of a prompt was no longer."""

    PROMPT = "prompt"  # it is the rest of the prompt
    TOKENS = "tokens"  # the step's tokens were used up
    TIME = "time"  # more would make the step longer than it may be
    LEAST = "least"  # the step's time is used up; this is the least that is computed alone
    LAYERS = "layers"  # some layers of it at a time, because streams wait for the step


class Miss(StrEnum):
    """Why no more tokens of a prompt were found in the prefix cache."""

    NONE = "none"  # all were found but the last one, or block, which is always computed
    OFF = "off"  # the server has no prefix cache
    EVERY_POSITION = "every_position"  # the request needs a result of each position
    SHORT = "short"  # the rest is less than a block
    EVICTED = "evicted"  # it was there; its block was given to another sequence since
    IN_FLIGHT = "in_flight"  # another request was computing the same at that moment
    PARTED = "parted"  # another text follows there in what is cached
    LONGER = "longer"  # nothing longer was computed before
    OTHER_SALT = "other_salt"  # it is cached for another tenant, which is not shared
    OTHER_ADAPTER = "other_adapter"  # it is cached for another adapter
    STATE = "state"  # of a recurrent model: no state is kept at that position
    NO_ROOM = "no_room"  # a block that begins alike could not be copied: no block was free
    NEW = "new"  # nothing that begins like it is cached


class PreemptionCause(StrEnum):
    """Why a running sequence gave its blocks back."""

    GROWTH = "growth"  # an older sequence, or one of a tenant with less, needed its blocks
    TENANT = "tenant"  # a tenant below its share had nothing running
    FOREGROUND = "foreground"  # it runs in the background, and another request came
    OUT_OF_MEMORY = "out_of_memory"  # a step did not fit into the machine's memory


class PrefixLookup(msgspec.Struct, frozen=True, array_like=True):
    """What was found of a prompt in the prefix cache, at its first admission.

    Attributes:
        cached: tokens found.
        miss: why not more, a `Miss`.
        position: of the first token that was not found.
        known: tokens that were the same up to where another text follows (PARTED).
    """

    cached: int
    miss: str
    position: int
    known: int = 0


class PromptChunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of the known tokens that one step computed. A last token that is left alone is none:
    it is computed as those of running streams are.

    Attributes:
        at: it was planned.
        step: id of the step.
        start, tokens: positions.
        limit: why no more, a `ChunkLimit`.
        streams: rows of running streams in the same step.
        step_seconds: that the step might take, where that was what limited it; 0: not known.
        layers: how many of the model's were computed; 0: all.
    """

    at: float
    step: int
    start: int
    tokens: int
    limit: str
    streams: int = 0
    step_seconds: float = 0.0
    layers: int = 0


class Preemption(msgspec.Struct, frozen=True, array_like=True):
    """A preemption.

    Attributes:
        at: when.
        cause: a `PreemptionCause`.
        computed: tokens whose blocks were given back; those still cached are found again.
        by: the engine's id of the request that it happened for; empty: none.
        brought: of these, tokens whose blocks came back from a tier below the cache (a swap).
    """

    at: float
    cause: str
    computed: int
    by: str = ""
    brought: int = 0


class DrafterHistory(msgspec.Struct, frozen=True, array_like=True):
    """Drafts of one drafter: verified ones, and those that became tokens."""

    name: str
    drafted: int
    accepted: int


class ChoiceHistory(msgspec.Struct, frozen=True, array_like=True):
    """What happened to one choice.

    Attributes:
        ready: its grammar was compiled, and it could be queued; 0: it had none.
        adapters_ready: its adapters were in memory; 0: it had none, or did not wait for them.
        grammar_known: the grammar was compiled before.
        mask_seconds: its share of computing token masks, beside the steps.
        prefix: of the choice that computed the prompt.
        chunks: in order; of a preempted choice also those that computed tokens again.
        further_chunks: chunks that are not listed.
        preemptions: in order.
        drafters: what proposed drafts that were verified.
    """

    ready: float = 0.0
    grammar_known: bool = False
    mask_seconds: float = 0.0
    prefix: PrefixLookup | None = None
    chunks: tuple[PromptChunk, ...] = ()
    further_chunks: int = 0
    preemptions: tuple[Preemption, ...] = ()
    drafters: tuple[DrafterHistory, ...] = ()
    adapters_ready: float = 0.0
