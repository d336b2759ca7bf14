"""The record of one API request: a table of facts, without any content."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Operation(StrEnum):
    """What a request wanted."""

    NONE = ""  # it was refused before that was known
    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"
    COUNT = "count"  # tokens are counted, nothing is computed
    RESUME = "resume"  # a stream is read again, whose record is its first request's
    ADMIN = "admin"  # an administrative act; it counts in no usage


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"  # by the client, or by the request's own deadline
    REFUSED = "refused"  # with an error of the client, or for lack of room
    FAILED = "failed"  # with an error of the server, before or within its answer


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What happened to one request.

    Times are microseconds of one clock. What is not known is None. New members have defaults:
    records of older versions are read as well.

    Attributes:
        id: the request's.
        at: arrival, milliseconds since the epoch.
        duration: until the last byte of the answer, or until its generation ended.
        organisation, team, key, user: ids of who asked; empty: none.
        client: the principal, as for fairness: ``key:NAME`` or ``addr:ADDRESS``.
        method, route: HTTP's, and the route's pattern; never the path.
        subject: of an administrative act, what it was done to.
        operation: what it wanted, an `Operation` (as text: enums take longer to read).
        model, version: that answered; empty where none was found.
        prompt, cached, generated, reasoning: tokens, as measured. `cached` counts among `prompt`,
            `reasoning` among `generated`.
        choices: how many it asked for, over all prompts.
        outcome: how it ended, an `Outcome`.
        finish: finish reasons of the choices that ended, each once.
        status: of the HTTP response; 499 where the client left before it.
        code: of the error, else empty.
        streamed: the answer was a stream.
        charged: its tokens count in usage and cost money (docs/usage.md).
        cost: billionths of the currency's unit; None: its model has no price.
        queued, prefill, decode: time in the engine until its first step, until its first token,
            and until its end.
        repeats: refusals that this one stands for, of the same client, route and reason.
        computed: compute time of its share of the engine's steps.
        energy: microjoules, as measured.
        estimated: microjoules by the operator's number, where nothing is measured.
        carbon: micrograms of carbon dioxide of either, by the configured intensity.
    """

    id: str
    at: int
    duration: int = 0
    organisation: str = ""
    team: str = ""
    key: str = ""
    user: str = ""
    client: str = ""
    method: str = "POST"
    route: str = ""
    subject: str = ""
    operation: str = Operation.NONE.value
    model: str = ""
    version: str = ""
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    reasoning: int = 0
    choices: int = 0
    outcome: str = Outcome.FINISHED.value
    finish: str = ""
    status: int = 0
    code: str = ""
    streamed: bool = False
    charged: bool = False
    cost: int | None = None
    repeats: int = 1
    queued: int | None = None
    prefill: int | None = None
    decode: int | None = None
    computed: int | None = None
    energy: int | None = None
    estimated: int | None = None
    carbon: int | None = None
