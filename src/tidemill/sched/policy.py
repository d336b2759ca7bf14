"""Scheduling policy: the time and token budgets of a step, as constants and pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.contract.request import EngineRequest
from tidemill.contract.speculation import LOOKUP
from tidemill.sched.sequence import OrderKey, Sequence

# Until step times have been measured, a step with decode rows spends at most one part in so many
# of its token budget on prefill. Backends that report no times always use this rule.
MIXED_PREFILL_SHARE = 4

# The inter-token latency of a stream is one step. Without --max-itl-ms a step with prefill may take
# MIXED_SECONDS: readers hardly notice it, and even on a small machine the prefill chunk is large
# enough to amortize reading the weights. If decoding alone takes longer (a large model), the step
# may take MIXED_GROWTH times as long as its decode rows.
MIXED_SECONDS = 0.120
MIXED_GROWTH = 1.5

# While a single tenant is active, a short prompt (alone it takes at most BRIEF_PROMPT_SECONDS) may
# extend a step to BRIEF_SECONDS. Running streams see a longer gap now and then; in return the time
# to first token is not spread over many small chunks. Without this rule, a series of short prompts
# keeps the decode batch small: on a busy machine 4 of 16 ran at once, with first tokens after 15 s.
BRIEF_SECONDS = 0.180
BRIEF_PROMPT_SECONDS = 1.0

# A prompt within its tenant's deficit is urgent if its prefill takes at most URGENT_STEPS steps of
# URGENT_SECONDS. Its chunks are sized as if it were alone: running streams see a long step, and
# their decode rows get at most URGENT_DECODE_SECONDS of it.
URGENT_SECONDS = 0.450
URGENT_STEPS = 4
URGENT_GROWTH = 2.0
URGENT_DECODE_SECONDS = 0.050

# While several tenants compete, the decode rows of a step may take this long; streams beyond that
# take turns.
COMPETING_DECODE_SECONDS = 0.100

# Bounds of a step without decode rows. Prefill may use the whole token budget, but the next request
# waits for the end of the step; the bound is lower when competing tenants make that likely.
ALONE_SECONDS = 1.0
COMPETING_SECONDS = 0.150

# Background sequences. Beside others, a step may grow by this factor for them: decoding a few
# sequences reads all weights, and a few rows more cost little. Alone, a step of theirs ends soon,
# so that a request which comes meanwhile does not wait for it: after BACKGROUND_SECONDS, or, on a
# larger model, BACKGROUND_STEPS times what the least step takes.
BACKGROUND_GROWTH = 1.15
BACKGROUND_SECONDS = 0.010
BACKGROUND_STEPS = 3.0

# The minimum prefill chunk, however little time is left: it guarantees progress of a long prompt.
MIN_CHUNK = 8

# If fewer than SLICE_BELOW prompt tokens fit next to the decode rows, a longer chunk is computed
# over several steps, a few layers in each: attention over a long context costs nearly as much for a
# few tokens as for many. The chunk length (at most MAX_SLICE) is chosen so that SLICE_LAYERS layers
# fit into a step.
SLICE_BELOW = 64
SLICE_LAYERS = 3
MAX_SLICE = 256

# A stream with up to this many known but uncomputed tokens (jump-ahead decoding) is scheduled as
# decode; with more it is scheduled as prefill.
MAX_STREAM_TOKENS = 16


# The parts of one body (prompts, inputs, documents) are ordered as if they came one after the other
# at this distance, so that what its client asks meanwhile does not wait for hundreds of them. They
# wait for nothing themselves but what comes before them in this order, and so begin in the end.
PART_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the scheduler.

    Attributes:
        max_num_seqs: sequences that run concurrently and hold blocks.
        max_step_tokens: tokens computed per step.
        max_model_len: positions a request may use.
        vocab_size: for validating token ids; None disables the check.
        depth: plans that may be in flight (1 or 2).
        jump_ahead: append tokens that a constraint forces without sampling them; the output is
            the same either way.
        max_itl: predicted seconds that a step with decode rows may take; None: MIXED_SECONDS and
            the bounds after it.
        layers: the model's layers if the executor can compute a row's layers over several steps;
            else 0.
        whole_prompts: a prompt is computed in one step (bidirectional attention).
        generates: the model has an output layer.
        speculation: what drafts where a request does not say it
            (`contract.speculation.BY_REQUEST`); None: the executor verifies no drafts.
        drafters: the executor's.
        draft_states: drafts that a step may verify; None: any number.
        lookup_answers: lookup finds drafts in recent answers of the same tenant and cache salt.
        always_draft: verify whatever is proposed, whether it pays or not.
        pipelined: the executor computes two plans at the same time where the second takes no token
            of the first (`sched.pipelining`).
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
    speculation: str | None = None
    drafters: tuple[str, ...] = (LOOKUP,)
    draft_states: int | None = None
    lookup_answers: bool = False
    always_draft: bool = False
    pipelined: bool = False


def order_key(request: EngineRequest, receipt: int, choice: int) -> OrderKey:
    """Sort key within a tenant: the smaller key runs earlier and is preempted later."""
    due = request.arrival + PART_SECONDS * request.place
    return request.priority, due, receipt, choice


def is_decoding(seq: Sequence) -> bool:
    """True if the running sequence decodes: it has computed its prompt and is due in every step."""
    left = seq.remaining
    return left == 1 or (1 < left <= MAX_STREAM_TOKENS and seq.planned >= seq.prompt_len)


def prefill_tokens(max_step_tokens: int, block_size: int, decode_rows: int) -> int:
    """Prefill tokens of a step with `decode_rows` decode rows while no step has been measured."""
    left = max_step_tokens - decode_rows
    if decode_rows == 0:
        return left
    return max(0, min(left, max(block_size, max_step_tokens // MIXED_PREFILL_SHARE)))


def decode_seconds(limits: Limits, *, urgent: bool, competing: bool) -> float | None:
    """Seconds that the decode rows of a step may take; None: unbounded."""
    if not competing:
        return None
    bound = URGENT_DECODE_SECONDS if urgent else COMPETING_DECODE_SECONDS
    return bound if limits.max_itl is None else min(bound, limits.max_itl)


def step_seconds(
    limits: Limits, decode: float, *, urgent: bool, competing: bool, brief: bool
) -> float:
    """Seconds that a step may take, prefill included.

    Args:
        limits: the limits in force.
        decode: predicted seconds of its decode rows; 0 without any.
        urgent: the prefill is within its tenant's deficit (`step_budget.is_urgent`).
        competing: several tenants are active.
        brief: the prompt is short, and no other tenant's streams wait for it.
    """
    if decode == 0.0:
        return COMPETING_SECONDS if competing and not urgent else ALONE_SECONDS
    if limits.max_itl is not None:
        return limits.max_itl
    if urgent:
        return max(URGENT_SECONDS, URGENT_GROWTH * decode)
    return max(BRIEF_SECONDS if brief else MIXED_SECONDS, MIXED_GROWTH * decode)


def background_seconds(foreground: float, decode: float, least: float) -> float:
    """Seconds that a step with background sequences may take.

    Args:
        foreground: predicted seconds of the step's other rows; 0 without any.
        decode: predicted seconds of its decode rows.
        least: predicted seconds of a step of one token.
    """
    if foreground:
        return BACKGROUND_GROWTH * foreground
    return max(BACKGROUND_SECONDS, BACKGROUND_STEPS * least, MIXED_GROWTH * decode)


def admission_headroom(running: int) -> int:
    """Blocks that an admission leaves free for the growth of `running` sequences.

    Without this headroom a full cache admits a prompt only to preempt it a few steps later.
    """
    return running // 2
