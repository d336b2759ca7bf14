"""RequestState and Sequence: the scheduler's state of a request and of each of its choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidemill.contract.request import (
    TRANSITIONS,
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    RequestError,
    Status,
    TokenLogprob,
)
from tidemill.memory.lease import Lease
from tidemill.memory.prefix import BlockKey, Media, block_key, media_within
from tidemill.sched.constraint import Constraint
from tidemill.sched.history import SequenceHistory

if TYPE_CHECKING:
    from tidemill.contract.plan import DraftsWanted, RowResult
    from tidemill.sched.beam_search import BeamSearch, Hypothesis
    from tidemill.sched.speculation.acceptance import Acceptance

OrderKey = tuple[int, float, int, int]

PROGRAM, ADAPTERS = "program", "adapters"


class Slice(NamedTuple):
    """A chunk computed over several steps, a few layers each: its tokens and the layers planned."""

    tokens: int
    layers: int


class Emission(NamedTuple):
    """An output and the client that receives it."""

    client: int
    output: ChoiceOutput


@dataclass(slots=True, eq=False)
class RequestState:
    """A request in the engine.

    Attributes:
        client, request: the client's id and its request.
        root: root digest of its block keys.
        received: on the scheduler's clock.
        media: digests of what changes within its prompt, by position: an activated adapter that
            begins to apply (later: images).
        choices: all its sequences, by choice.
        held: choices that wait for the leader's prompt, to be forked from it.
        prompt_logprobs: index p holds the logprob of prompt token p; None where not computed yet
            (index 0 stays None). Empty if not requested, and once sent.
        awaits: what it waits for, of `PROGRAM` (its constraint is compiled) and `ADAPTERS` (they
            are in memory); until then all its choices are held.
        adapter_slot: where its adapters are; 0: it has none.
        adapter_start: position from which they apply.
        boundary: position that no chunk of its prompt crosses: where its adapters begin to apply,
            or where keys and values that an adapter brings end; 0 without.
        virtual_tokens: of its sequences' tokens, how many stand for a prompt adapter's vectors.
        cached_tokens: prompt tokens found in the prefix cache at the leader's first admission,
            virtual ones included.
        beams: of a beam search; `choices` are then the sequences of its beams.
        compute_seconds: time of its share of the steps, since a choice ended last.
    """

    client: int
    request: EngineRequest
    root: bytes
    received: float
    media: Media = ()
    choices: list[Sequence] = field(default_factory=list)
    held: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    awaits: set[str] = field(default_factory=set)
    adapter_slot: int = 0
    adapter_start: int = 0
    boundary: int = 0
    virtual_tokens: int = 0
    cached_tokens: int | None = None
    beams: BeamGroup | None = None
    compute_seconds: float = 0.0

    @property
    def ready(self) -> bool:
        """It waits for nothing that is made outside of steps."""
        return not self.awaits

    @property
    def cached_of_prompt(self) -> int | None:
        """`cached_tokens` without virtual ones, as clients are told."""
        cached = self.cached_tokens
        return None if cached is None else max(0, cached - self.virtual_tokens)

    def slot_at(self, position: int) -> int:
        """The slot of the adapters that apply at a position; 0: the base model."""
        return self.adapter_slot if position >= self.adapter_start else 0

    @property
    def adapter_bytes(self) -> int:
        """What a step reads of its adapters; of a prompt adapter nothing."""
        return sum(use.nbytes for use in self.request.adapters if not use.virtual_tokens)

    def take_compute(self) -> float:
        """Its share of the steps' time that no ended choice has been told."""
        taken, self.compute_seconds = self.compute_seconds, 0.0
        return taken

    @property
    def key(self) -> tuple[int, str]:
        """Its unique key in the engine."""
        return self.client, self.request.request_id

    @property
    def open_choices(self) -> list[Sequence]:
        """Choices that have not ended."""
        return [seq for seq in self.choices if seq.status is not Status.FINISHED]


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request: computed tokens chase known tokens.

    Attributes:
        seq_id: its id in plans.
        owner, choice: its request, and its index among the request's choices.
        order: sort key, smaller runs earlier: priority, arrival, order of receipt, choice.
        tokens: known tokens: prompt, then accepted ones.
        lease: its blocks; a waiting fork may hold one, a running sequence always does.
        computed: tokens whose KV is in the cache, by committed steps.
        planned: the same, steps in flight included.
        slice: the chunk after `planned` whose first layers are computed; its blocks are allocated.
        pending: tokens that steps in flight will sample.
        epoch: counts preemptions and undone admissions. A row planned in an earlier epoch refers to
            blocks that are no longer held.
        keys: keys of its full blocks, computed as needed.
        snapshot_positions: where the state of a recurrent model is stored for other prompts.
        output_snapshot: key of the latest block boundary in its output whose state is stored.
        published: number of its blocks that are published in the prefix index.
        on_worker: its static data was sent to the executor.
        num_sent: number of its tokens that the executor has, the sampled ones included.
        drafters: names of what may propose drafts for it; empty: nothing does.
        asked: whom its newest row asks for drafts.
        drafts: proposed tokens after the known ones.
        drafts_by, confidence: who proposed them, and how certain of each (`RowResult`).
        verifying: drafts of its row in flight. No other row of it is then in flight.
        drafts_to_report: verified drafts, and those that came true, since its last output.
        acceptance: how likely its drafts come true.
        evidence: results that changed that.
        wanted: whom it asks, and what that was decided from.
        quiet_for: whatever its next token is, those who are asked as here will propose nothing
            after it.
        constraint: constrains its output; it has advanced over all accepted tokens.
        jumps: forced tokens are appended without being sampled.
        forces: forced tokens are sampled, for their logprobs, and are drafts.
        stop_ids: tokens that end it.
        unbounded: no max_tokens, so it may fill the context; a constrained output then ends with
            reason `length` once it repeats itself.
        banned: tokens that cannot be sampled before min_tokens.
        charged: positions charged to its tenant; recomputed positions are not charged again.
        last_row: id of the latest plan that has a row for it.
        serial: a row is planned only when the result of the one before it is known.
        fork_of: of a recurrent model: the sequence whose state its first row starts from, or -1.
        loads: loads from tiers that it has waited for since it was last admitted.
        brought: tokens that these have brought.
        lost: tokens that were computed when it was preempted last, until it is admitted again.
        background: it may use only what no other sequence wants.
        history: what happened to it; None: nobody asks for that.
    """

    seq_id: int
    owner: RequestState
    choice: int
    order: OrderKey
    tokens: list[int]
    prompt_len: int
    max_len: int
    stop_ids: frozenset[int]
    banned: tuple[int, ...]
    unbounded: bool = False
    status: Status = Status.WAITING
    lease: Lease | None = None
    computed: int = 0
    planned: int = 0
    slice: Slice | None = None
    pending: int = 0
    epoch: int = 0
    keys: list[BlockKey] = field(default_factory=list)
    snapshot_positions: tuple[int, ...] = ()
    output_snapshot: BlockKey | None = None
    published: int = 0
    on_worker: bool = False
    num_sent: int = 0
    drafters: tuple[str, ...] = ()
    asked: tuple[DraftsWanted, ...] = ()
    drafts: tuple[int, ...] = ()
    drafts_by: str = ""
    confidence: tuple[int, ...] = ()
    verifying: int = 0
    drafts_to_report: tuple[int, int] | None = None
    acceptance: Acceptance | None = None
    evidence: int = 0
    wanted: tuple[tuple[int, int], tuple[DraftsWanted, ...]] | None = None
    quiet_for: tuple[DraftsWanted, ...] = ()
    constraint: Constraint | None = None
    jumps: bool = False
    forces: bool = False
    first_sent: bool = False
    first_scheduled: float | None = None
    first_token: float | None = None
    preemptions: int = 0
    charged: int = 0
    last_row: int = -1
    serial: bool = False
    fork_of: int = -1
    loads: int = 0
    brought: int = 0
    lost: int = 0
    background: bool = False
    history: SequenceHistory | None = None

    @property
    def generated(self) -> int:
        """Tokens accepted so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def known(self) -> int:
        """Known tokens, those that steps in flight sample included."""
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Known tokens that no step has computed or planned."""
        return len(self.tokens) + self.pending - self.planned

    @property
    def needs_result(self) -> bool:
        """True if its next row depends on the result of its row in flight, not on the token alone
        that this one samples: it is `serial`, or it has drafts in flight, or may have some."""
        if self.serial or self.verifying:
            return True
        return bool(self.asked) and not quiet(self.asked, self.quiet_for)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while a requested prompt logprob is not computed."""
        logprobs = self.owner.prompt_logprobs
        return len(logprobs) > 1 and self.generated == 0 and None in logprobs[1:]

    @property
    def needs_every_position(self) -> bool:
        """True if every prompt position must be computed: cached prefixes cannot be used."""
        pooling = self.owner.request.pooling
        return self.needs_prompt_logprobs or (pooling is not None and pooling.kind != "last")

    def move_to(self, status: Status) -> None:
        """Change the status.

        Raises:
            RuntimeError: the transition is not allowed.
        """
        if status not in TRANSITIONS[self.status]:
            raise RuntimeError(f"sequence {self.seq_id} cannot go from {self.status} to {status}")
        self.status = status

    def keys_up_to(self, blocks: int, block_size: int) -> list[BlockKey]:
        """Keys of its first `blocks` blocks, all of which must be full of known tokens."""
        keys = self.keys
        while len(keys) < blocks:
            start = len(keys) * block_size
            parent = keys[-1].digest if keys else self.owner.root
            end = start + block_size
            keys.append(block_key(parent, self.tokens[start:end], self.media_within(start, end)))
        return keys[:blocks] if len(keys) > blocks else keys

    def media_within(self, start: int, end: int) -> Media:
        """Media that begin from `start` to `end` (exclusive), by position after `start`."""
        media = self.owner.media
        return media_within(media, start, end) if media else ()

    def forget_progress(self) -> None:
        """Reset the computed state after its blocks were freed."""
        self.lease = None
        self.slice = None
        self.computed = self.planned = self.published = 0
        self.epoch += 1


def quiet(asked: tuple[DraftsWanted, ...], quiet_for: tuple[DraftsWanted, ...]) -> bool:
    """True if those who propose nothing when they are asked the one way propose nothing when they
    are asked the other way."""
    if asked is quiet_for:
        return True
    return len(asked) == len(quiet_for) and all(
        one.drafter == other.drafter and one.least >= other.least
        for one, other in zip(asked, quiet_for, strict=True)
    )


class TokenChain(NamedTuple):
    """The logprobs of a beam's tokens, last first; beams share what they have in common."""

    last: TokenLogprob
    before: TokenChain | None

    def tokens(self) -> tuple[TokenLogprob, ...]:
        """In order of position."""
        found, link = [], self
        while True:
            found.append(link.last)
            if link.before is None:
                return tuple(reversed(found))
            link = link.before


@dataclass(slots=True, eq=False)
class Beam:
    """A live beam.

    Attributes:
        seq: its sequence. It is FINISHED while the group is preempted, except the first beam's.
        logprobs: of its generated tokens; None without, or if not requested.
    """

    seq: Sequence
    logprobs: TokenChain | None = None


class Ended(NamedTuple):
    """The output of a hypothesis."""

    tokens: tuple[int, ...]
    logprobs: TokenChain | None
    reason: FinishReason
    stop_token: int | None


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The beams of a request, which advance together: a round is decided once every live beam has
    its candidates (`sched.beams`).

    Invariants: all beams have equally many tokens. Either all their sequences run, or (before the
    prompt is computed, and after a preemption) at most the first one's does.

    Attributes:
        owner, search: the request, and its scores.
        candidates: how many a row returns.
        live: best first.
        ended: outputs of the search's hypotheses.
        results: candidates of this round, by sequence.
        open: choices without a final output.
        reserved: blocks (per group) to leave free at its admission for beams without blocks.
        error: why it cannot go on.
    """

    owner: RequestState
    search: BeamSearch
    candidates: int
    live: list[Beam]
    open: list[int]
    reserved: int
    ended: dict[Hypothesis, Ended] = field(default_factory=dict)
    results: dict[int, RowResult] = field(default_factory=dict)
    error: RequestError | None = None
    first_scheduled: float = 0.0
    first_token: float = 0.0

    @property
    def leader(self) -> Sequence:
        """The sequence that computes the prompt, alone."""
        return self.live[0].seq

    @property
    def running(self) -> bool:
        """Its first sequence runs."""
        return self.leader.status is Status.RUNNING

    @property
    def missing(self) -> int:
        """While it runs, how many sequences more it may have."""
        if not self.running:
            return 0
        return self.search.width - sum(b.seq.status is Status.RUNNING for b in self.live)
