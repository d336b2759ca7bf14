"""Requests to the engine, their life cycle, and their outputs."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.history import ChoiceHistory
from tidemill.contract.program import OutputProgram
from tidemill.contract.sampling import SamplingParams


class Status(StrEnum):
    """WAITING -> RUNNING <-> PREEMPTED -> FINISHED, and any of the first three -> FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


class FinishReason(StrEnum):
    """Why a choice ended. Exactly one terminal message carries one per choice."""

    STOP = "stop"  # an end token, a stop token id, or (set by the API process) a stop string
    LENGTH = "length"  # max_tokens, the context's end, or repetition under a constraint
    CANCELLED = "cancelled"
    ERROR = "error"


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """How a request that generates nothing turns its whole input into one vector.

    Attributes:
        kind: ``last``, ``mean`` or ``cls`` (the first token): which of the hidden states behind the
            last norm make it.
        head: the model's classification head is applied to it; the vector is that of its logits.
        second: position from which the tokens are of the second kind of text (BERT's token type 1);
            0: all are of the first.
    """

    kind: str
    head: bool = False
    second: int = 0


POOLINGS = ("last", "mean", "cls")


# No colon, which separates a base from an adapter, and no @, which begins a version.
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][\w.+/-]{0,127}", re.ASCII)
ADAPTER_NAME_RULE = "1 to 128 letters, digits and . _ - + /, the first a letter or digit"


class AdapterUse(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An adapter that a request is computed with.

    Attributes:
        name: what messages call it.
        path: the folder or file that it is read from.
        digest: hexadecimal, of its content; empty where that is not known yet.
        scale: its changes times this.
        nbytes: memory that it takes; 0: not known.
        pinned: once in memory it stays there.
        invocation: of an activated LoRA: the tokens from whose last occurrence in the prompt on it
            applies; before it the model is the base. Empty: it always applies.
        virtual_tokens: of a prompt adapter: how many vectors it puts in front of the prompt.
        prefix: these are keys and values of all layers (prefix tuning).
    """

    name: str
    path: str
    digest: str = ""
    scale: float = 1.0
    nbytes: int = 0
    pinned: bool = False
    invocation: tuple[int, ...] = ()
    virtual_tokens: int = 0
    prefix: bool = False


def adapters_key(uses: tuple[AdapterUse, ...]) -> str:
    """Identity of what a request's adapters compute: their digests and scales; empty for none."""
    return "+".join(
        use.digest if use.scale == 1.0 else f"{use.digest}*{use.scale!r}" for use in uses
    )


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request, as sent to the engine once.

    Times are seconds of `base.clock.monotonic`, a clock shared by all processes of a machine. A
    client on another machine must send the remaining time and have it added there.

    Attributes:
        request_id: unique within the client (the engine namespaces it by client).
        prompt_token_ids: the prompt; at least one token.
        sampling: resolved: `seed` and `max_tokens` are set.
        program: what the output must obey.
        priority: smaller runs earlier; requests of equal priority run first come, first served.
        arrival: when the API process received it.
        place: how many prompts or inputs of the same body stand before it.
        deadline: when the engine ends it, or None.
        cache_salt: separates tenants in the prefix index; equal salts share blocks.
        adapters: whose changes are added up; none: the base model.
        resume: per choice, tokens accepted before an engine death (journal replay).
        tenant: tenants share the engine by weight, independent of how many requests each sends.
        weight: of the tenant; twice the weight is twice the share.
        start_by: when its first token must be under computation at the latest, or None.
        pooling: the prompt is read and a vector of it returned; nothing is generated.
        speculation: one of `contract.speculation.BY_REQUEST`, or None: the engine's.
        prediction: tokens that the output is expected to have; drafts are taken from them as well.
        background: it may use only what no other request wants (`sched.planning`); tenants share
            that among their background requests alone.
        explain: what happens to it is told with its last outputs (`contract.history`).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    program: OutputProgram = OutputProgram()
    priority: int = 0
    arrival: float = 0.0
    place: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    adapters: tuple[AdapterUse, ...] = ()
    resume: tuple[tuple[int, ...], ...] = ()
    tenant: str = ""
    weight: float = 1.0
    start_by: float | None = None
    pooling: Pooling | None = None
    background: bool = False
    speculation: str | None = None
    prediction: tuple[int, ...] = ()
    explain: bool = False


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token under the raw logits, with the alternatives asked for.

    Attributes:
        token_id: the token.
        logprob: natural logarithm of its probability.
        top: the most likely (token id, logprob) pairs, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RequestError(msgspec.Struct, frozen=True, array_like=True):
    """An error as it crosses a socket: the parts of a `TidemillError`."""

    kind: str
    message: str
    param: str | None = None
    retryable: bool = False


def exception_of(error: RequestError | None) -> TidemillError:
    """The exception for a choice that the engine ended with an error."""
    if error is None:
        return TidemillError(ErrorKind.INTERNAL, "the engine ended the request without a reason")
    try:
        kind = ErrorKind(error.kind)
    except ValueError:
        kind = ErrorKind.INTERNAL
    return TidemillError(kind, error.message, param=error.param, retryable=error.retryable)


class RequestTimings(msgspec.Struct, frozen=True, array_like=True):
    """Seconds (monotonic) of a request's milestones in the engine; sent with its last message.

    `computed` is the time of its share of the steps, by tokens; of several choices each has what
    the ones that ended before it left.
    """

    received: float
    first_scheduled: float
    first_token: float
    finished: float
    preemptions: int = 0
    computed: float = 0.0

    def together(self, other: RequestTimings) -> RequestTimings:
        """Of several choices: from the first to come to the last to end. 0.0: it never came."""
        return RequestTimings(
            min(self.received, other.received),
            _earlier(self.first_scheduled, other.first_scheduled),
            _earlier(self.first_token, other.first_token),
            max(self.finished, other.finished),
            self.preemptions + other.preemptions,
            self.computed + other.computed,
        )


def _earlier(one: float, other: float) -> float:
    return min(one, other) if one and other else one or other


class ChoiceOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of one step (or the end) for one choice of one request.

    Attributes:
        request_id, choice: identify the choice.
        token_ids: newly accepted tokens, in order. An end token or stop token id that ended the
            choice is the last of them (`stop_token` repeats it): it counts in the usage, and its
            text is not part of the output.
        logprobs: one per token of `token_ids` when asked for.
        prompt_logprobs: when asked for, once per request: with the first tokens of whichever choice
            has them first; None for position 0. Over a socket a part of them may come ahead, in
            outputs of that choice without tokens (`contract.wire`).
        finish_reason: set in the choice's last message and only there.
        stop_token: the token that ended the choice, when one did.
        cached_tokens: prompt tokens found in the prefix cache (in the first message).
        error: what went wrong, when finish_reason is ERROR.
        timings: in the choice's last message.
        pooled: float32, little endian: the vector of a request with `pooling`, in its only message.
        drafted, drafts_accepted: drafts that were verified since the last output, and those of them
            that became tokens of the choice.
        scheduled: in a request's first message: when its prompt was begun to be computed.
        history: in the choice's last message, where the request asks for it.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    cached_tokens: int | None = None
    error: RequestError | None = None
    timings: RequestTimings | None = None
    pooled: bytes = b""
    drafted: int = 0
    drafts_accepted: int = 0
    scheduled: float = 0.0
    history: ChoiceHistory | None = None
