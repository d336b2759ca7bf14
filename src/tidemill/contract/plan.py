"""StepPlan and StepResult: the messages between the scheduler and an executor.

There are no phases: a row moves a sequence's computed tokens toward its known tokens, whether that
is the first chunk of a prompt, one decoded token, a resumption after preemption or the
verification of a draft. A sequence is one choice of one request. Its static data travels once (in
`StepPlan.new`); afterwards only differences do. Building a plan mutates nothing that a failed step
cannot undo. Some fields of a row are empty until the capability that fills them exists:
`worker.inputs.UNSUPPORTED` lists them, and a row that has one is rejected by its name.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tidemill.contract.program import OutputProgram
from tidemill.contract.request import Pooling, TokenLogprob
from tidemill.contract.sampling import SamplingParams

MOST_CONFIDENT = 7
"""The highest class of `RowResult.confidence`."""


class LogitsWanted(StrEnum):
    """The tokens of a row for which the output projection is computed."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sequence the executor has not seen: its static data.

    Attributes:
        seq_id: the executor's name for it, unique for the engine's life.
        request_id, choice: whose it is.
        token_ids: known tokens: the prompt, then tokens accepted before (a fork, a replay).
        prompt_len: how many of them are the prompt.
        virtual_tokens: how many of these stand for the vectors of a prompt adapter; they are token
            ids in name alone, and penalties do not count them.
        sampling: resolved (seed is set).
        banned_until: while fewer than `sampling.min_tokens` tokens are generated, these ids
            (end tokens and stop ids) cannot be sampled.
        program: what the output must obey.
        pooling: its vector is returned with the row that computes its last token; it samples
            nothing.
        candidates: above 0 it is a beam: its sampling rows return so many candidates instead of a
            token. The token that it continues with comes as a known one.
        drafters: what may propose drafts for it (`contract.speculation.DRAFTERS`); empty: nothing.
        prediction: tokens that its output is expected to have, for the drafters.
        answers_of: whose recent answers the drafters may read beside its own texts, and whose its
            answer becomes; empty: nobody's.
    """

    seq_id: int
    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    prompt_len: int
    sampling: SamplingParams
    banned_until: tuple[int, ...] = ()
    program: OutputProgram = OutputProgram()
    pooling: Pooling | None = None
    candidates: int = 0
    drafters: tuple[str, ...] = ()
    prediction: tuple[int, ...] = ()
    answers_of: str = ""
    virtual_tokens: int = 0


class EmbeddingOverride(msgspec.Struct, frozen=True):
    """Vectors (an image) in place of token embeddings from `start` on. Those of a prompt adapter
    are not sent: the executor has them under `Row.adapter_slot`.

    Attributes:
        start: first position replaced.
        digest: identity of the vectors (part of the block hash).
        data: float32, row-major [count, hidden_size], little endian.
    """

    start: int
    digest: bytes
    data: bytes


class LayerRange(msgspec.Struct, frozen=True, array_like=True):
    """Layers `begin` to `end` (exclusive), of the model's."""

    begin: int
    end: int


class DraftsWanted(msgspec.Struct, frozen=True, array_like=True):
    """What a drafter may propose for what follows a row's tokens.

    Attributes:
        drafter: one of its sequence's.
        most: the most drafts.
        least: nothing whose first draft it holds for less certain than this class
            (`RowResult.confidence`).
    """

    drafter: str
    most: int
    least: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence's share of a step.

    Attributes:
        seq_id: whose row.
        start: position of the first token computed; equals the tokens computed so far.
        count: known tokens computed (without drafts); start + count <= known tokens, or one more
            when `input_from` is set.
        new_blocks: per cache group, block ids appended to the sequence's block table.
        new_token_ids: known tokens that the executor does not have: forced ones, which no step
            sampled.
        new_token_start: position of the first of them.
        input_from: id of a plan in flight; the row's single token is the one that this plan samples
            for the sequence.
        layers: the layers computed in this step; None: all. A row whose last layer comes in a later
            step (a row of the same sequence, start and count) has no logits and no result but its
            errors. Only a plan's last row may be cut like this, and one sequence at a time.
        draft_token_ids: guesses at the tokens that follow the known ones, of a row that samples.
            They are computed as well, and each position is sampled as in a step of its own as long
            as the token is the draft that comes next: the result has the drafts that came true and
            one token more. Not with `input_from` or `layers`.
        drafts_wanted: who is asked for drafts of what follows the row's tokens, in this order until
            one proposes some; empty: nobody.
        state_from: of a recurrent model, the snapshot that the row starts from, where its sequence
            has no state yet; -1 for none.
        fork_of: of a recurrent model, the sequence whose state before `start` the row starts from,
            where its own has none; -1 for none.
        snapshots: positions within the row (behind its first token), ascending, at which the state
            is kept, and the snapshot each goes to.
        logits: which logits are computed. Any row that samples has LAST; prompt logprobs take ALL.
        sample: the row's last logits are sampled and the token becomes known.
        mask_announced: sampling waits for `handle.set_mask` of this row, for a mask per position
            that is sampled.
        adapter_slot: the slot that the row's adapters were loaded into (`Executor.load_adapters`);
            0: the base model.
        embedding_overrides: see `EmbeddingOverride`.
        hidden_states: names of hidden states to return: ``final`` (behind the last norm), or
            ``layer.N``, the residual stream in front of layer N. Not with `layers`.
    """

    seq_id: int
    start: int
    count: int
    new_blocks: tuple[tuple[int, ...], ...] = ()
    new_token_ids: tuple[int, ...] = ()
    new_token_start: int = 0
    input_from: int | None = None
    layers: LayerRange | None = None
    draft_token_ids: tuple[int, ...] = ()
    drafts_wanted: tuple[DraftsWanted, ...] = ()
    state_from: int = -1
    fork_of: int = -1
    snapshots: tuple[tuple[int, int], ...] = ()
    logits: LogitsWanted = LogitsWanted.NONE
    sample: bool = False
    mask_announced: bool = False
    adapter_slot: int = 0
    embedding_overrides: tuple[EmbeddingOverride, ...] = ()
    hidden_states: tuple[str, ...] = ()


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Copy one block's content (copy on write), before the step's rows run."""

    group: int
    source: int
    target: int


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything one step does.

    Attributes:
        step_id: increases by one with every plan.
        new: sequences first seen here.
        rows: the step's rows; a sequence has at most one.
        copies: block copies made before the rows run, in order.
        preempted: sequences whose block tables the executor empties (their tokens stay).
        finished: sequences the executor forgets, before anything else.
    """

    step_id: int
    new: tuple[NewSequence, ...] = ()
    rows: tuple[Row, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    preempted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step, drafts included."""
        return sum(row.count + len(row.draft_token_ids) for row in self.rows)


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A token that a beam may continue with.

    Attributes:
        token_id: the token.
        score: what it adds to the beam's score: its logprob after bans, bias and penalties.
        logprob: under the raw logits.
    """

    token_id: int
    score: float
    logprob: float


class RowResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a row.

    Attributes:
        seq_id: whose row.
        token_ids: accepted tokens: one of a sampling row, one more for each draft that came true;
            none of another row. Tokens computed: those of the row, and these without the last.
        draft_token_ids: proposed to follow `token_ids`, as `Row.drafts_wanted` asks.
        drafter: who proposed them; empty: nobody.
        confidence: per draft a class from 0 to `MOST_CONFIDENT`: how certain the drafter is of it,
            where the ones before came true. Empty: 0 for all. What a class means is the drafter's.
        quiet: whatever token comes next, those who were asked will propose no drafts after it.
        logprobs: one per accepted token, when asked for.
        prompt_logprobs: for a row with logits ALL: for each of its computed positions p whose
            next token is known, the logprob of the token at p + 1, in order of p.
        hidden_states: name -> float32 bytes, row-major [tokens, hidden_size], of the row's tokens
            and of the drafts that came true.
        pooled: float32 bytes: the vector of a sequence with `pooling`, once it is whole.
        candidates: of a beam's sampling row, best first; none if the mask or bans left no token.
            `logprobs` then has one entry, whose `top` holds for each of them.
        error: the row failed alone; the sequence ends with it.
        error_kind, error_param: the kind (`ErrorKind`) and field of that error.
    """

    seq_id: int
    token_ids: tuple[int, ...] = ()
    draft_token_ids: tuple[int, ...] = ()
    drafter: str = ""
    confidence: tuple[int, ...] = ()
    quiet: bool = False
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    hidden_states: dict[str, bytes] = {}
    pooled: bytes = b""
    candidates: tuple[Candidate, ...] = ()
    error: str | None = None
    error_kind: str = "internal"
    error_param: str | None = None


class StepTimings(msgspec.Struct, frozen=True, array_like=True):
    """Seconds: from submission to start, of compute, of sampling, and the whole."""

    queued: float = 0.0
    forward: float = 0.0
    sampling: float = 0.0
    total: float = 0.0


class Drafting(msgspec.Struct, frozen=True, array_like=True):
    """What a drafter did after a step.

    Attributes:
        drafter: its name.
        seconds: time it took.
        rows: sequences that it was asked for.
        longest: drafts that it had for one of them, the most.
    """

    drafter: str
    seconds: float
    rows: int
    longest: int


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Per row of the plan, in its order, the result; the step's timings, and those of its
    drafters."""

    step_id: int
    rows: tuple[RowResult, ...]
    timings: StepTimings = StepTimings()
    drafting: tuple[Drafting, ...] = ()
