"""What happened to a sequence, noted while it happens, for requests that are to be explained.

Nothing is noted of rows that decode: a step of running streams alone does nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.contract.history import (
    ChoiceHistory,
    ChunkLimit,
    DrafterHistory,
    Preemption,
    PreemptionCause,
    PrefixLookup,
    PromptChunk,
)

MAX_CHUNKS = 256
"""Chunks that are listed of one sequence."""

MAX_PREEMPTIONS = 64


@dataclass(slots=True)
class SequenceHistory:
    """See `contract.history.ChoiceHistory`."""

    ready: float = 0.0
    grammar_known: bool = False
    mask_seconds: float = 0.0
    prefix: PrefixLookup | None = None
    chunks: list[PromptChunk] = field(default_factory=list)
    further_chunks: int = 0
    preemptions: list[Preemption] = field(default_factory=list)
    drafters: dict[str, tuple[int, int]] = field(default_factory=dict)
    adapters_ready: float = 0.0

    def planned(self, chunk: PromptChunk) -> None:
        """A step will compute a part of its known tokens."""
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(chunk)
        else:
            self.further_chunks += 1

    def undone(self, start: int) -> None:
        """The step of the latest chunk was rolled back, if that begins at `start`."""
        if self.further_chunks:
            self.further_chunks -= 1
        elif self.chunks and self.chunks[-1].start == start:
            self.chunks.pop()

    def preempted(self, at: float, cause: PreemptionCause, computed: int, by: str) -> None:
        """Its blocks were given back."""
        if len(self.preemptions) < MAX_PREEMPTIONS:
            self.preemptions.append(Preemption(at, cause, computed, by))

    def resumed(self, brought: int) -> None:
        """It is admitted again, with so many tokens brought from tiers."""
        if brought and len(self.preemptions) < MAX_PREEMPTIONS:
            last = self.preemptions[-1]
            self.preemptions[-1] = Preemption(last.at, last.cause, last.computed, last.by, brought)

    def verified(self, drafter: str, drafts: int, accepted: int) -> None:
        """A step verified drafts."""
        before = self.drafters.get(drafter, (0, 0))
        self.drafters[drafter] = before[0] + drafts, before[1] + accepted

    def told(self) -> ChoiceHistory:
        """For the client."""
        return ChoiceHistory(
            self.ready,
            self.grammar_known,
            self.mask_seconds,
            self.prefix,
            tuple(self.chunks),
            self.further_chunks,
            tuple(self.preemptions),
            tuple(DrafterHistory(name, *counts) for name, counts in self.drafters.items()),
            self.adapters_ready,
        )


def limit_of(
    tokens: int, *, rest: int, budget: int, least: int, timed: bool, layered: bool
) -> ChunkLimit:
    """Why a chunk has so many tokens.

    Args:
        tokens: of the chunk.
        rest: known tokens that are left to compute.
        budget: tokens that the step had left.
        least: the shortest chunk.
        timed: chunks are sized by predicted time.
        layered: some of its layers alone are computed.
    """
    if layered:
        return ChunkLimit.LAYERS
    if tokens >= rest:
        return ChunkLimit.PROMPT
    if not timed or tokens >= budget:
        return ChunkLimit.TOKENS
    return ChunkLimit.LEAST if tokens <= least else ChunkLimit.TIME
