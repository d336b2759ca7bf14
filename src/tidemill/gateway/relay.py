"""One request from its body to the last byte of its answer: targets are tried until one answers,
and what it says is passed on as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.gateway.asked import Asked
from tidemill.gateway.config import HERE
from tidemill.gateway.counted import Counted, usage_part
from tidemill.gateway.fleet import Fleet, Route
from tidemill.gateway.here import Own, answer_here
from tidemill.gateway.metrics import GatewayMetrics
from tidemill.gateway.opened import Failed, Opened, Refused, message_of, open_answer
from tidemill.gateway.passage import Passage, fallback_note, noted
from tidemill.gateway.translate.translator import MALFORMED
from tidemill.gateway.wire.connection import Lost
from tidemill.gateway.wire.kinds import MESSAGES
from tidemill.generation.caller import Caller, Reservation
from tidemill.server.errors import Problem, Rejection, fail, problem_response, reject
from tidemill.server.transport.sink import AsgiSink
from tidemill.server.transport.stream import while_connected
from tidemill.telemetry.ways import Way

log = get_logger(__name__)

_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
FALLBACK = "x-tidemill-fallback"


class AnsweredHere(Exception):
    """The server itself was chosen.

    Attributes:
        route: to it.
    """

    def __init__(self, route: Route) -> None:
        super().__init__(HERE)
        self.route = route


class Relayed(Response):
    """The answer to a request, from whichever target gives it.

    Args:
        fleet: the targets.
        metrics: of the gateway.
        request: the client's.
        asked: what it asks for.
        caller: who asks.
        headers: that every target gets.
        own: the server's own answer, where it is one of the targets.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: GatewayMetrics,
        request: Request,
        asked: Asked,
        caller: Caller,
        headers: Mapping[bytes, bytes],
        own: Own | None = None,
    ) -> None:
        super().__init__()
        self._fleet = fleet
        self._metrics = metrics
        self._request = request
        self._asked = asked
        self._caller = caller
        self._forwarded = headers
        self._counted = Counted(asked.model, asked.prompt_tokens)
        self._tried: list[str] = []
        self._ways: list[Way] = []
        request.state.ways = self._ways
        self._reserved: Reservation | None = None
        self._own = own
        self._here: Route | None = None  # chosen: this server answers
        self._full = set[str]()  # models that this server has no room for
        self._refusal: list[Message] = []
        self._began = False  # the response has begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a client that leaves ends the request at its target."""
        while True:
            await while_connected(receive, self._serve(scope, receive, send))
            route, self._here = self._here, None
            if route is None or await self._answered_here(route, receive, send):
                return

    async def _answered_here(self, route: Route, receive: Receive, send: Send) -> bool:
        """Answer without targets; False: there is no room, and nothing was sent."""
        assert self._own is not None
        state, asked, note = self._request.state, self._asked, b""
        if hasattr(state, "generation"):
            del state.generation
        if route.asked.model != asked.model:
            self._name_fallback(route)
            note = fallback_note(asked.model, route.asked.model)
        refusal = await answer_here(route, self._own, self._request, receive, send, note)
        if refusal:
            self._full.add(route.asked.model)
            self._refusal = self._refusal or refusal
        return not refusal

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._request.state
        state.generation = self._counted
        sink = AsgiSink(send)
        try:
            async with AsyncExitStack() as stack:
                opened = await self._open(self._asked)
                stack.push_async_callback(opened.aclose)
                state.hold.close()
                self._describe(opened)
                if opened.connection is None:
                    await self._write_whole(sink, opened)
                else:
                    await self._write_stream(sink, opened, stack)
        except AnsweredHere as answered:
            self._here = answered.route
        except Refused as refused:
            await self._refuse(refused, scope, receive, send)
        except Exception as error:
            if isinstance(error, Failed):
                error = Rejection(error.problem)
            problem = fail(self._request, error)
            if self._refusal and not self._began:
                for message in self._refusal:
                    await send(message)
            elif self._began:
                await sink.write(self._failure(problem), more=False)
            else:
                await problem_response(problem, state.error_body)(scope, receive, send)
        finally:
            self._settle()

    # -- accounts ------------------------------------------------------------------------------

    async def _reserve(self) -> None:
        """Reserve what the answer of a target may use, once; the server's own answer does so
        itself."""
        quota, asked = self._caller.quota, self._asked
        if quota is None or self._reserved is not None:
            return
        most = asked.most or max(asked.expected, 1)
        self._reserved = await quota.reserve(asked.model, asked.prompt_tokens, asked.expected, most)

    def _settle(self) -> None:
        counted, reserved = self._counted, self._reserved
        if reserved is None:
            return
        if counted.admitted:
            reserved.settle(counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens)
        else:
            reserved.release()

    def _count(self, opened: Opened, answer: bytes, parts: int) -> None:
        counted = self._counted
        counted.admitted = True
        counted.read(answer, parts)
        opened.route.used(counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens)

    # -- targets -------------------------------------------------------------------------------

    async def _open(self, asked: Asked) -> Opened:
        """The answer of the first model, and of its targets, that gives one."""
        self._fleet.began()
        problem: Exception | None = None
        for model in self._fleet.order(asked.model):
            try:
                named = asked if model == asked.model else asked.named(model)
                return await self._open_model(named)
            except Rejection as error:
                problem = problem or error
                if error.problem.status < 429:
                    raise
            except Failed as error:
                problem = problem or error
            self._tried.clear()
        assert problem is not None
        raise problem

    async def _open_model(self, asked: Asked) -> Opened:
        routing = self._fleet.config.routing
        failed: Failed | None = None
        for _ in range(1 + routing.retries):
            if failed is not None and not self._fleet.may_retry():
                break
            try:
                route = await self._route(asked)
            except Rejection:
                if failed is None:
                    raise
                break
            if self._fleet.is_here(route.target):
                if len(self._ways) == 1:
                    self._ways.clear()  # it was nowhere else: nothing to explain
                raise AnsweredHere(route)
            try:
                await self._reserve()
            except BaseException:
                route.abandon()
                raise
            try:
                return await self._first_of(route, asked)
            except Failed as error:
                self._metrics.failed(route.target.name)
                self._end(route, error.reason)
                if route.target.health.opened is not None:
                    self._fleet.forget(route.target)
                failed = error
        assert failed is not None
        raise failed

    async def _route(self, asked: Asked) -> Route:
        tried = self._tried
        if asked.model in self._full:
            tried = [*tried, HERE]
        route = await self._fleet.route(asked, tried)
        self._tried.append(route.target.name)
        self._ways.append(Way(route.target.name, monotonic()))
        self._metrics.given(route.target.name)
        return route

    def _way(self, route: Route) -> Way:
        return next(way for way in reversed(self._ways) if way.target == route.target.name)

    def _end(self, route: Route, why: str) -> None:
        way = self._way(route)
        way.ended, way.why = monotonic(), why

    async def _first_of(self, route: Route, asked: Asked) -> Opened:
        """The answer of a target; where the configuration says so, or of a second one."""
        routing = self._fleet.config.routing
        if routing.hedge_seconds is None:
            return await open_answer(route, self._forwarded, routing)
        first = asyncio.ensure_future(open_answer(route, self._forwarded, routing))
        running = {first}
        try:
            await asyncio.wait(running, timeout=routing.hedge_seconds)
            if not first.done() and self._fleet.may_retry():
                second = await self._second(asked)
                if second is not None:
                    opening = open_answer(second, self._forwarded, routing)
                    running.add(asyncio.ensure_future(opening))
            left = set(running)
            while True:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                answered = next((one for one in done if one.exception() is None), None)
                if answered is not None or not left:
                    running.discard(answered or done.copy().pop())
                    return (answered or next(iter(done))).result()
        finally:
            for task in running:
                task.cancel()
            for found in await asyncio.gather(*running, return_exceptions=True):
                if isinstance(found, Opened):  # both answered at once
                    found.route.end()
                    await found.aclose()

    async def _second(self, asked: Asked) -> Route | None:
        self._full.add(asked.model)
        try:
            return await self._route(asked)
        except Rejection:
            return None

    # -- answers -------------------------------------------------------------------------------

    def _describe(self, opened: Opened) -> None:
        """Headers that say who answers."""
        state, route = self._request.state, opened.route
        state.model = self._counted.model = route.asked.model
        self._way(route).first = monotonic()
        answer = {**opened.headers, "x-tidemill-target": route.target.name}
        if route.asked.model != self._asked.model:
            self._name_fallback(route)
        state.answer_headers = {**getattr(state, "answer_headers", {}), **answer}

    def _name_fallback(self, route: Route) -> None:
        state = self._request.state
        answer = {FALLBACK: f"{self._asked.model} -> {route.asked.model}"}
        state.answer_headers = {**getattr(state, "answer_headers", {}), **answer}
        self._metrics.fallbacks.inc()

    async def _write_whole(self, sink: AsgiSink, opened: Opened) -> None:
        body, made = opened.first, opened.translator
        self._count(opened, usage_part(body), 0)
        opened.route.end(self._counted.completion_tokens)
        if made is not None:
            try:
                body = made.whole(body)
            except MALFORMED:
                message = f"the answer of the target {opened.route.target.name} is malformed"
                raise reject(502, message, code="target_failed") from None
        answered = opened.route.asked.model
        if answered != self._asked.model and b"{" in body:
            body = noted(body, fallback_note(self._asked.model, answered))
        kind = b"application/json" if made is not None else opened.content_type
        await sink.start(200, [(b"content-type", kind), (b"content-length", b"%d" % len(body))])
        self._counted.finished = True
        await sink.write(body, more=False)

    async def _write_stream(self, sink: AsgiSink, opened: Opened, stack: AsyncExitStack) -> None:
        passage = Passage(self._asked, opened)
        translated = opened.translator is not None
        kind = b"text/event-stream; charset=utf-8" if translated else opened.content_type
        await sink.start(200, [(b"content-type", kind), *_STREAM_HEADERS])
        self._began = True
        current = opened
        try:
            while True:
                try:
                    await self._pass_on(sink, passage, current)
                    if not passage.moved:
                        break
                except Lost as lost:
                    self._note_lost(current.route, lost)
                    if not passage.may_go_on:
                        raise reject(502, _broken(current.route), code="target_lost") from None
                current = await self._go_on(current, passage.again())
                stack.push_async_callback(current.aclose)
                stack.callback(current.route.end)
            last = passage.rest()
            self._counted.finished = True
        finally:
            self._count(opened, passage.ends.text, max(0, passage.ends.parts - 2))
            opened.route.end(self._counted.completion_tokens)
        await sink.write(last, more=False)

    async def _pass_on(self, sink: AsgiSink, passage: Passage, opened: Opened) -> None:
        """All parts of an answer.

        Raises:
            Lost: its target was lost.
        """
        connection, silence = opened.connection, self._fleet.config.routing.silence_seconds
        assert connection is not None
        # The first part by `send`: it takes the response's head with it.
        if out := passage.feed(opened.first):
            await sink.write(out)
        write: Callable[[bytes], bool] | None = self._request.scope.get("extensions", {}).get(
            "tidemill.write"
        )
        held: list[bytes] = []

        def push(data: bytes) -> bool:
            out = passage.feed(data)
            if not out:
                return True
            if write is not None and write(out):
                return True
            if write is None:
                held.append(out)
            return False

        while not await connection.push(push, silence):
            # Waits for the reader, and without `write` sends what there is.
            await sink.write(b"".join(held))
            held.clear()
        if held:
            await sink.write(b"".join(held))
        if not (passage.whole or passage.moved):
            raise Lost("its stream ended within an answer")

    def _note_lost(self, route: Route, lost: Lost) -> None:
        route.target.health.failed(monotonic(), str(lost))
        self._end(route, str(lost))
        self._metrics.lost(route.target.name)
        log.warning("target %s was lost within an answer: %s", route.target.name, lost)

    async def _go_on(self, lost: Opened, position: bytes) -> Opened:
        """The rest of an answer, of another target."""
        self._full.add(lost.route.asked.model)  # what is here cannot go on with it
        try:
            opened = await self._open_model(replace(lost.route.asked, position=position))
        except (Failed, Rejection, Refused):
            raise reject(502, _broken(lost.route), code="target_lost") from None
        if opened.connection is None or not opened.route.target.continues:
            await opened.aclose()
            raise reject(502, _broken(lost.route), code="target_lost")
        self._metrics.continued.inc()
        self._way(opened.route).first = monotonic()
        return opened

    # -- errors --------------------------------------------------------------------------------

    async def _refuse(self, refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an error of the target on; in another dialect, with its message."""
        state = self._request.state
        kind = "invalid_request_error"
        problem = Problem(refused.status, kind, message_of(refused.body), None, "refused")
        state.problem = problem
        response = problem_response(problem, state.error_body)
        if refused.same and refused.body:
            response = Response(refused.body, refused.status, media_type="application/json")
        await response(scope, receive, send)

    def _failure(self, problem: Problem) -> bytes:
        """The last event of a stream that fails, in the client's dialect."""
        body: bytes = self._request.state.error_body(problem)
        path = self._asked.path
        if path == MESSAGES or path == "/v1/responses":
            return b"event: error\ndata: " + body + b"\n\n"
        if path.startswith("/api/"):
            return body + b"\n"
        return b"data: " + body + b"\n\n"


def _broken(route: Route) -> str:
    return (
        f"the target {route.target.name} was lost within this answer, and no other can go on with "
        "it; send the request again"
    )
