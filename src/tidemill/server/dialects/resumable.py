"""Streams that a client may resume, of any dialect that streams server-sent events.

A request with the header ``X-Resumable-Stream: true`` (or any, where the server says so) gets
events with ids, and its generation goes on for a while when the client leaves. The same request
again, with ``Last-Event-ID`` as the client got it last, gets what it missed and the rest, from the
same generation. Another request with that id is refused, rather than answered with what it did not
ask for.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.request import GenerateRequest
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.respond import RESUMING
from tidemill.server.errors import reject
from tidemill.server.recording import record_until
from tidemill.server.transport.detached import Detached, Work
from tidemill.server.transport.framing import Framing
from tidemill.server.transport.stream import KEEP_ALIVE_SECONDS
from tidemill.telemetry.record import Operation

HEADER, LAST = RESUMING

RESUME_SECONDS = 60.0
"""How long a stream is generated without a reader, and kept after its end."""

MAX_STREAMS = 32
"""Of one client that are generated or kept."""

MAX_ALL = 256
"""Of all clients."""


class _Kept(NamedTuple):
    """A stream that can be resumed: whose it is, what it answers (`_digest`), and its parts."""

    owner: str
    asked: bytes
    stream: Detached


class Resumable:
    """The streams of one server that can be resumed."""

    def __init__(self, context: ServerContext) -> None:
        self._bound = context.limits.max_stored_bytes // 64
        self._streams: dict[str, _Kept] = {}

    def full(self, owner: str) -> bool:
        """There is no place for a further stream of a client. Streams that have ended make place,
        the oldest first: many short answers in a minute are no reason to reject one more."""
        self._forget_old()
        mine = [name for name, kept in self._streams.items() if kept.owner == owner]
        return not (
            self._has_place(mine, MAX_STREAMS) and self._has_place(list(self._streams), MAX_ALL)
        )

    def _has_place(self, names: list[str], most: int) -> bool:
        if len(names) < most:
            return True
        ended = [(at, name) for name in names if (at := self._streams[name].stream.ended_at)]
        if not ended:
            return False
        del self._streams[min(ended)[1]]
        return True

    def begin(
        self, owner: str, asked: bytes, identity: str, work: Work, framing: Framing
    ) -> Detached:
        """Generate a stream that answers what was asked (`_digest`).

        Raises:
            Rejection: 429.
        """
        if self.full(owner):
            raise reject(
                429,
                f"{len(self._streams)} streams can be resumed; at most {MAX_STREAMS} of a client "
                f"and {MAX_ALL} of all may be: send the request without {HEADER}, or "
                f"again within {RESUME_SECONDS:.0f} s",
                code="overloaded",
                headers={"Retry-After": "1"},
            )
        stream = Detached(self._bound, f"{identity}:".encode(), RESUME_SECONDS, framing)
        self._streams[identity] = _Kept(owner, asked, stream)
        stream.start(work)
        return stream

    def drop(self, identity: str) -> None:
        """Forget a stream that never began."""
        self._streams.pop(identity, None)

    def find(self, owner: str, asked: bytes, last: str) -> tuple[Detached, int]:
        """The stream of an event's id, and the number of the next event.

        Raises:
            TidemillError, Rejection: the id is none, its stream is not kept, or it answers another
                request.
        """
        kept, number = self._find_kept(owner, last)
        if kept.asked != asked:
            raise bad_request(
                "Last-Event-ID",
                "Last-Event-ID: that stream answers another request (route or body); send the "
                "request that began it, or this one without the header",
            )
        return kept.stream, number + 1

    async def cancel(self, owner: str, last: str) -> None:
        """End the generation of the stream of an event's id; one that has ended stays as it is.

        Raises:
            TidemillError, Rejection: the id is none, or its stream is not kept.
        """
        kept, _ = self._find_kept(owner, last)
        await kept.stream.cancel()

    def _find_kept(self, owner: str, last: str) -> tuple[_Kept, int]:
        self._forget_old()
        identity, _, number = last.rpartition(":")
        if not (identity and number.isascii() and number.isdigit() and len(number) < 10):
            raise bad_request("Last-Event-ID", "Last-Event-ID is not the id of an event")
        kept = self._streams.get(identity)
        if kept is None or kept.owner != owner or int(number) + 1 < kept.stream.log.first:
            raise reject(
                404,
                "Last-Event-ID: the stream is no longer kept; send the request without it",
                param="Last-Event-ID",
                code="stream_not_found",
            )
        return kept, int(number)

    def _forget_old(self) -> None:
        now = monotonic()
        for identity, (_, _, stream) in list(self._streams.items()):
            if stream.ended_at is not None and now - stream.ended_at > RESUME_SECONDS:
                del self._streams[identity]


def _digest(request: Request, model: str | None, asked: GenerateRequest) -> bytes:
    """Of what makes two requests the same, but for who sends them and when."""
    same = (request.url.path, model, asked.messages, asked.prompts, asked.sampling, asked.output)
    return blake2b(repr(same).encode(errors="surrogatepass"), digest_size=16).digest()


async def resumed(
    context: ServerContext,
    request: Request,
    model: str | None,
    generated: GenerateRequest,
    identity: str,
    work: Work,
    framing: Framing,
    *,
    asked: bool,
) -> tuple[Detached, int] | None:
    """The stream that a request resumes or begins, and the number of the first event to send; None
    where nobody asked and there is no place: then it ends with its client.

    Args:
        context: the server's.
        request: whose stream it is.
        model: that it names.
        generated: what it asks for.
        identity: of the answer, if it is generated now.
        work: generates it.
        framing: of its parts.
        asked: the request has one of the headers; else the server wants it.

    Raises:
        Exception: what failed before the first event.
    """
    if not framing.events:
        raise bad_request(
            "X-Resumable-Stream",
            "X-Resumable-Stream: this stream is of lines, which have no ids: it cannot be resumed",
        )
    streams, owner = context.kept(Resumable), principal_of(request).client_id
    what, last = _digest(request, model, generated), request.headers.get(LAST)
    if last:
        request.state.operation = Operation.RESUME
        return streams.find(owner, what, last)
    wanted = request.headers.get(HEADER, "").strip().lower()
    if not asked and streams.full(owner):
        return None
    if asked and wanted not in ("true", "1"):
        raise bad_request("X-Resumable-Stream", "X-Resumable-Stream must be true or absent")
    stream = streams.begin(owner, what, identity, work, framing)
    record_until(request, stream)
    try:
        await stream.settled(KEEP_ALIVE_SECONDS)
    except BaseException:
        streams.drop(identity)
        await stream.cancel()
        raise
    return stream, 0


async def cancel_stream(context: ServerContext, request: Request) -> Response:
    """End a stream that may be resumed, by the id of any of its events: a client that only leaves
    has its generation go on, so that it can come back. Its blocks are free within one step."""
    event: str = request.path_params["event"]
    await context.kept(Resumable).cancel(principal_of(request).client_id, event)
    return Response(status_code=204)


ENDPOINTS = (Endpoint("DELETE", "/v1/streams/{event}", cancel_stream),)
