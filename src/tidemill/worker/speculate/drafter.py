"""The interface of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tidemill.contract.plan import Drafting, NewSequence

Int32 = NDArray[np.int32]


class Wanted(NamedTuple):
    """Drafts wanted for a sequence.

    Attributes:
        seq_id: the sequence.
        tokens: int32: all its known tokens; a view that is valid during the call.
        most: the most drafts that can be used.
        least: nothing is proposed whose first draft has a lower confidence.
        adapter_slot: see `Row`.
        end: position after the last token of its row in the step, drafts included: its blocks reach
            so far. A longer block table may be out of date.
        hidden: float32 [hidden_size]: the final hidden state that the last known token was sampled
            from, for a drafter that `reads_hidden`.
    """

    seq_id: int
    tokens: Int32
    most: int
    least: int = 0
    adapter_slot: int = 0
    end: int = 0
    hidden: NDArray[np.float32] | None = None


class Proposal(NamedTuple):
    """Drafts of a sequence.

    Attributes:
        token_ids: expected to follow the known tokens; may be empty.
        quiet: whatever the next token is, none will be proposed after it.
        confidence: see `RowResult`.
    """

    token_ids: tuple[int, ...] = ()
    quiet: bool = False
    confidence: tuple[int, ...] = ()


NOTHING = Proposal()


class Drafted(NamedTuple):
    """What drafters did after a step.

    Attributes:
        proposals: by sequence, who proposed what; of those who were asked.
        drafting: the time of each.
    """

    proposals: dict[int, tuple[str, Proposal]]
    drafting: tuple[Drafting, ...]


class Drafter(Protocol):
    """Proposes drafts. What it proposes never changes an answer, so it may be wrong, and may be
    asked again for the same tokens after a step failed.

    Attributes:
        reads_hidden: it drafts from the model's final hidden states.
    """

    @property
    def reads_hidden(self) -> bool: ...

    def add(self, new: NewSequence, cached: int) -> None:
        """A sequence begins, perhaps again with more known tokens. The model found its first
        `cached` tokens in its own cache, so that the drafter may use what it has of them too."""

    def read(self, seq_id: int, tokens: Int32) -> None:
        """Read a sequence's known tokens (int32, a view) while a step computes."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Drafts for each sequence, in order."""

    def forget(self, seq_id: int) -> None:
        """A sequence has ended."""


FINAL = -1
"""In `LayerReader.layers`: the final hidden state."""


@runtime_checkable
class LayerReader(Protocol):
    """A drafter that reads hidden states of every token that the model computes.

    Attributes:
        layers: ascending: layers in front of which it reads the residual stream; 0: the embedding;
            `FINAL`: behind the last norm.
    """

    layers: tuple[int, ...]

    def learn(self, seq_id: int, start: int, tokens: Int32, streams: NDArray[np.float32]) -> None:
        """Tokens of a sequence have been computed and stay.

        Args:
            seq_id: the sequence.
            start: position of the first.
            tokens: int32: all known tokens of the sequence; a view that is valid during the call.
            streams: float32 [layers, tokens, hidden_size]; it may be kept.
        """


class LoadedDrafter(Drafter, Protocol):
    """A drafter that holds memory beside the model: weights, and perhaps a cache. What is done to
    the model's memory is done to it as well (`Backend`'s methods of the same names)."""

    def limit_cache(self, blocks: int) -> None:
        """Use so many blocks at most."""

    def empty_cache(self) -> None:
        """Forget what all blocks hold; no sequence is there."""

    def release_weights(self) -> None:
        """Return the memory of the weights to the system."""

    def restore_weights(self) -> None:
        """Map the weights again."""

    def stop_loading(self) -> None:
        """Cancel loading."""

    def weight_bytes(self) -> int:
        """Bytes of its weights."""

    def kv_bytes(self) -> int:
        """Bytes of its cache."""

    def unloaded_bytes(self) -> int:
        """Bytes of weights that are not in memory yet, while they load."""

    def progress(self) -> int:
        """A counter that advances while it drafts."""

    def close(self) -> None:
        """Free everything."""
