"""The scheduler's rules of thumb, as numbers in one place."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.contract.request import EngineRequest
from tidemill.sched.sequence import OrderKey

# While streams run, a step spends at most this share of its token budget on prefill: the gap
# between two tokens of a stream is one step, and a step's time grows with its tokens. A quarter of
# the default budget is already wide enough for matrix products to run at full speed.
MIXED_PREFILL_SHARE = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the scheduler.

    Attributes:
        max_num_seqs: sequences that hold blocks and run at once.
        max_step_tokens: tokens computed per step.
        max_model_len: positions a request may use.
        vocab_size: for checking token ids; None skips it.
        depth: plans that may be outstanding (1 or 2).
    """

    max_num_seqs: int
    max_step_tokens: int
    max_model_len: int
    vocab_size: int | None = None
    depth: int = 1


def order_key(request: EngineRequest, receipt: int, choice: int) -> OrderKey:
    """Smaller runs earlier, and is preempted later."""
    return request.priority, request.arrival, receipt, choice


def prefill_room(max_step_tokens: int, block_size: int, decode_rows: int) -> int:
    """Tokens a step may spend on prefill beside `decode_rows` running streams."""
    left = max_step_tokens - decode_rows
    if decode_rows == 0:
        return left
    return max(0, min(left, max(block_size, max_step_tokens // MIXED_PREFILL_SHARE)))


def admission_headroom(running: int) -> int:
    """Blocks left free by an admission, so that running sequences can grow for a while.

    Without it a full cache admits a prompt only to preempt it a few steps later.
    """
    return running // 2
