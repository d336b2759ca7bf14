"""What the scheduler knows about a request and about each of its choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.contract.request import (
    TRANSITIONS,
    ChoiceOutput,
    EngineRequest,
    Status,
    TokenLogprob,
)
from tidemill.memory.lease import Lease
from tidemill.memory.prefix import BlockKey, block_key
from tidemill.sched.constraint import Constraint

OrderKey = tuple[int, float, int, int]


class Slice(NamedTuple):
    """A chunk that is computed a few layers a step: its tokens, and the layers planned so far."""

    tokens: int
    layers: int


class Emission(NamedTuple):
    """An output and the client it is for."""

    client: int
    output: ChoiceOutput


@dataclass(slots=True, eq=False)
class RequestState:
    """A request in the engine.

    Attributes:
        client, request: whose it is, and what was asked.
        root: digest that its block identities start from.
        received: seconds of `base.clock.monotonic`.
        choices: all its sequences, by choice.
        held: choices that wait for the leader's prompt, to be forked from it.
        prompt_logprobs: index p holds the logprob of prompt token p; None where not computed yet
            (index 0 stays None). Empty when none were asked for, and once they were sent.
        ready: its constraint is compiled, or it has none; until then all its choices are held.
        cached_tokens: prompt tokens found in the prefix cache at the leader's first admission.
    """

    client: int
    request: EngineRequest
    root: bytes
    received: float
    choices: list[Sequence] = field(default_factory=list)
    held: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    ready: bool = True
    cached_tokens: int | None = None

    @property
    def key(self) -> tuple[int, str]:
        """What names it among all requests of the engine."""
        return self.client, self.request.request_id

    @property
    def open_choices(self) -> list[Sequence]:
        """Choices that have not ended."""
        return [seq for seq in self.choices if seq.status is not Status.FINISHED]


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request: computed tokens chase known tokens.

    Attributes:
        seq_id: its name toward the executor.
        owner, choice: whose it is.
        order: smaller runs earlier: priority, arrival, order of receipt, choice.
        tokens: known tokens: prompt, then accepted ones.
        lease: its blocks; a waiting fork may hold one, a running sequence always does.
        computed: tokens whose KV is in the cache, by committed steps.
        planned: the same, outstanding steps included.
        slice: the chunk behind `planned` whose first layers are computed; it has its blocks.
        pending: tokens that outstanding steps will sample.
        epoch: counts preemptions and undone admissions: what was planned in an earlier epoch says
            nothing about the blocks held now.
        keys: identities of its full blocks, as far as they were needed.
        marks: positions where its state is kept for other prompts, of a recurrent model.
        trail: the last boundary of its own output whose state is kept.
        published: how many of its blocks were offered to the prefix index.
        on_worker: the executor knows it.
        told: of its tokens, how many the executor knows (sampled ones it knows by itself).
        constraint: what its output must obey; it has advanced over all accepted tokens.
        jumps: forced tokens are appended without being sampled.
        stop_ids: tokens that end it.
        unbounded: it may run to the context's end, since its request says no max_tokens; then a
            constrained output ends by length once it repeats itself.
        banned: tokens that cannot be sampled before min_tokens.
        charged: positions its tenant has paid for; what is computed again is not paid for twice.
        last_row: id of the latest plan with a row of it.
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
    marks: tuple[int, ...] = ()
    trail: BlockKey | None = None
    published: int = 0
    on_worker: bool = False
    num_sent: int = 0
    constraint: Constraint | None = None
    jumps: bool = False
    first_sent: bool = False
    first_scheduled: float = 0.0
    first_token: float = 0.0
    preemptions: int = 0
    charged: int = 0
    last_row: int = -1

    @property
    def generated(self) -> int:
        """Tokens accepted so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def known(self) -> int:
        """Tokens known, counting those that outstanding steps sample."""
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Known tokens that no step computes yet."""
        return len(self.tokens) + self.pending - self.planned

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some prompt token's logprob was asked for and is not there."""
        logprobs = self.owner.prompt_logprobs
        return len(logprobs) > 1 and self.generated == 0 and None in logprobs[1:]

    @property
    def wants_every_position(self) -> bool:
        """Positions found in the cache would be missing: each is to be computed for itself."""
        pooling = self.owner.request.pooling
        return self.wants_prompt_logprobs or (pooling is not None and pooling.kind != "last")

    def move_to(self, status: Status) -> None:
        """Change state.

        Raises:
            RuntimeError: the life cycle has no such transition.
        """
        if status not in TRANSITIONS[self.status]:
            raise RuntimeError(f"sequence {self.seq_id} cannot go from {self.status} to {status}")
        self.status = status

    def keys_up_to(self, blocks: int, block_size: int) -> list[BlockKey]:
        """Identities of its first `blocks` blocks, all of them full of known tokens."""
        keys = self.keys
        while len(keys) < blocks:
            start = len(keys) * block_size
            parent = keys[-1].digest if keys else self.owner.root
            keys.append(block_key(parent, self.tokens[start : start + block_size]))
        return keys[:blocks] if len(keys) > blocks else keys

    def forget_progress(self) -> None:
        """Its blocks are gone: everything is to be computed again."""
        self.lease = None
        self.slice = None
        self.computed = self.planned = self.published = 0
        self.epoch += 1
