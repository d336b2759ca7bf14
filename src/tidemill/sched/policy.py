"""The scheduler's rules of thumb, as numbers in one place."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.contract.request import EngineRequest
from tidemill.sched.sequence import OrderKey, Sequence

# Until steps have been measured, a step beside running streams spends at most this share of its
# token budget on prefill. Backends that report no times stay with it.
MIXED_PREFILL_SHARE = 4

# The gap between two tokens of a stream is one step. Without --max-itl-ms a step with prefill in it
# may take so long: hardly noticed by who reads along, and wide enough on a small machine for the
# weights' reading to be shared. A large model whose streams alone take longer gets half as much
# again for its prefill.
MIXED_SECONDS = 0.120
MIXED_GROWTH = 1.5

# While one tenant has the engine, its prompts that are soon read (alone in BRIEF_PROMPT_SECONDS)
# may make a step so long: its streams see a longer gap now and then, and newcomers' first tokens do
# not wait for many small chunks. Without this, short prompts one after another keep their streams
# few: on a busy machine 4 of 16 ran at once, with first tokens after 15 s.
BRIEF_SECONDS = 0.180
BRIEF_PROMPT_SECONDS = 1.0

# A prompt within what its tenant is owed is read as if it were alone, if that takes no more than a
# few such steps; the others' streams see a long step, and get no more of it than so much.
URGENT_SECONDS = 0.450
URGENT_STEPS = 4
URGENT_GROWTH = 2.0
URGENT_DECODE_SECONDS = 0.050

# While several tenants compete, the streams of a step take at most so long and take turns beyond.
COMPETING_DECODE_SECONDS = 0.100

# Nobody waits for a token: prefill takes the whole budget. Still bounded, because whoever comes
# next waits for the step's end; less so if that is to be expected soon.
ALONE_SECONDS = 1.0
COMPETING_SECONDS = 0.150

# However little time is left, a step computes so many tokens of a prefill: else a long one would
# never end.
MIN_CHUNK = 8

# Where fewer tokens of a prompt than this fit beside the streams, a longer chunk is computed, a few
# layers in each step: reading a long context for a handful of tokens costs nearly as much as for
# many. It is as long as lets so many layers fit into a step, within bounds.
SLICE_BELOW = 64
SLICE_LAYERS = 3
MAX_SLICE = 256

# A stream that knows up to so many tokens it has not computed (jump-ahead) goes on like one that
# knows one; more is a prefill.
MAX_STREAM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the scheduler.

    Attributes:
        max_num_seqs: sequences that hold blocks and run at once.
        max_step_tokens: tokens computed per step.
        max_model_len: positions a request may use.
        vocab_size: for checking token ids; None skips it.
        depth: plans that may be outstanding (1 or 2).
        jump_ahead: append tokens that a constraint forces without sampling them; the answers are
            the same either way.
        max_itl: seconds a step beside streams may take by prediction; None: as above.
        layers: of the model, if the executor can compute a row's layers in several steps; else 0.
        whole_prompts: a prompt is computed in one step (its tokens see those behind them).
        generates: the model has an output layer.
    """

    max_num_seqs: int
    max_step_tokens: int
    max_model_len: int
    vocab_size: int | None = None
    depth: int = 1
    jump_ahead: bool = True
    max_itl: float | None = None
    layers: int = 0
    whole_prompts: bool = False
    generates: bool = True


def order_key(request: EngineRequest, receipt: int, choice: int) -> OrderKey:
    """Smaller runs earlier among those of a tenant, and is preempted later."""
    return request.priority, request.arrival, receipt, choice


def streams(seq: Sequence) -> bool:
    """A running sequence is past its prompt: its next row is due in every step."""
    left = seq.remaining
    return left == 1 or (1 < left <= MAX_STREAM_TOKENS and seq.planned >= seq.prompt_len)


def prefill_room(max_step_tokens: int, block_size: int, decode_rows: int) -> int:
    """Tokens of prefill beside `decode_rows` running streams while no step has been measured."""
    left = max_step_tokens - decode_rows
    if decode_rows == 0:
        return left
    return max(0, min(left, max(block_size, max_step_tokens // MIXED_PREFILL_SHARE)))


def decode_seconds(limits: Limits, *, urgent: bool, competing: bool) -> float | None:
    """Seconds that the streams' rows of a step may take; None: all of them run."""
    if not competing:
        return None
    bound = URGENT_DECODE_SECONDS if urgent else COMPETING_DECODE_SECONDS
    return bound if limits.max_itl is None else min(bound, limits.max_itl)


def step_seconds(
    limits: Limits, decode: float, *, urgent: bool, competing: bool, brief: bool
) -> float:
    """Seconds that a step may take with its prefill.

    Args:
        limits: the scheduler's.
        decode: predicted seconds of its streams' rows; 0 when none run.
        urgent: the prefill is within what its tenant is owed.
        competing: several tenants want the engine.
        brief: the prompt is soon read, and nobody else's streams wait for it.
    """
    if decode == 0.0:
        return COMPETING_SECONDS if competing and not urgent else ALONE_SECONDS
    if limits.max_itl is not None:
        return limits.max_itl
    if urgent:
        return max(URGENT_SECONDS, URGENT_GROWTH * decode)
    return max(BRIEF_SECONDS if brief else MIXED_SECONDS, MIXED_GROWTH * decode)


def admission_headroom(running: int) -> int:
    """Blocks left free by an admission, so that running sequences can grow for a while.

    Without it a full cache admits a prompt only to preempt it a few steps later.
    """
    return running // 2
