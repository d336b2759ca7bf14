"""The methods of the service. Each is a request of its own inside the server (`transport.inner`) to
the route over HTTP that does the same: keys, bounds, records and errors are those of HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import grpc
import msgspec
from google.protobuf import json_format
from starlette.types import ASGIApp

from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.server.access.limits import Limits
from tidemill.server.grpc import tensors
from tidemill.server.grpc.messages import DATA_TYPES, METHODS, PACKAGE, message
from tidemill.server.transport.inner import EventData, InnerAnswer, ask

log = get_logger(__name__)

SERVICE = f"{PACKAGE}.GRPCInferenceService"

MAX_OPEN = 32
"""Requests of one stream that are answered at once; the next is read when one has ended."""

EMPTY_FINAL, FINAL = "triton_enable_empty_final_response", "triton_final_response"
"""Triton's parameters of a decoupled stream: asked for, every response says whether it is a
request's last."""

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_NOT_PASSED = ("grpc-", ":", "content-", "te", "user-agent", "host", "connection", "transfer-")
"""Beginnings of metadata that are not headers of the requests."""

Context = Any
"""A `grpc.aio.ServicerContext`."""


class Service:
    """See the module docstring.

    Args:
        app: the whole application.
        limits: bounds.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._waking: set[asyncio.Future[None]] = set()
        self._most = max(limits.max_prompts, limits.max_inputs)

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server takes."""
        methods = {}
        for name, (request, streams) in METHODS.items():
            make = grpc.stream_stream_rpc_method_handler if streams else (
                grpc.unary_unary_rpc_method_handler
            )  # fmt: skip
            methods[name] = make(
                getattr(self, name),
                request_deserializer=message(f"{request}Request").FromString,
                response_serializer=message(f"{name}Response").SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # -- the server and its models -------------------------------------------------------------

    async def ServerLive(self, request: Any, context: Context) -> Any:
        """The server is alive."""
        await self._get(context, "/v2/health/live")
        return message("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        """Every model can answer."""
        return message("ServerReadyResponse")(ready=await self._ready(context, "/v2/health/ready"))

    async def ModelReady(self, request: Any, context: Context) -> Any:
        """A model can answer."""
        path = f"{_path(request.name, request.version)}/ready"
        return message("ModelReadyResponse")(ready=await self._ready(context, path))

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        """The server and its extensions."""
        return _filled("ServerMetadataResponse", await self._get(context, "/v2"))

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        """A model's tensors."""
        found = await self._get(context, _path(request.name, request.version))
        return _filled("ModelMetadataResponse", found)

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        """The same in the form of Triton's model configuration; streams are decoupled."""
        found = await self._get(context, f"{_path(request.name, request.version)}/config")
        for tensor in (*found["input"], *found["output"]):
            tensor["data_type"] = DATA_TYPES[tensor["data_type"]]
        found["model_transaction_policy"] = {"decoupled": True}
        return _filled("ModelConfigResponse", {"config": found})

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        """Requests that have ended, of one model or of all."""
        named = _path(request.name, request.version) if request.name else "/v2/models"
        return _filled("ModelStatisticsResponse", await self._get(context, f"{named}/stats"))

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        """Every name and its state."""
        body = msgspec.json.encode({"ready": True} if request.ready else {})
        found = await self._post(context, "/v2/repository/index", body)
        return _filled("RepositoryIndexResponse", {"models": found})

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        """Load a model."""
        await self._load(request, context, "load")
        return message("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Unload a model."""
        await self._load(request, context, "unload")
        return message("RepositoryModelUnloadResponse")()

    # -- inference -----------------------------------------------------------------------------

    async def ModelInfer(self, request: Any, context: Context) -> Any:
        """Tensors to tensors."""
        try:
            return await self._infer(request, context)
        except _Failed as failed:
            return await failed.abort(context)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        """Texts in, responses as they come; each has its request's id."""
        made: asyncio.Queue[Any] = asyncio.Queue(MAX_OPEN)
        places = asyncio.Semaphore(MAX_OPEN)

        async def answer(request: Any) -> None:
            try:
                await self._stream(request, context, made.put)
            finally:
                places.release()

        async def read() -> None:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    await places.acquire()
                    group.create_task(answer(request))

        def ended(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                waking = asyncio.ensure_future(made.put(None))
                self._waking.add(waking)
                waking.add_done_callback(self._waking.discard)

        reading = asyncio.ensure_future(read())
        reading.add_done_callback(ended)
        try:
            while (response := await made.get()) is not None:
                yield response
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # -- how -----------------------------------------------------------------------------------

    async def _infer(self, request: Any, context: Context) -> Any:
        try:
            body, length = tensors.infer_body(request)
        except TidemillError as error:
            raise _Failed(400, error.message) from None
        path = f"{_path(request.model_name, request.model_version)}/infer"
        headers = [
            (b"content-type", b"application/octet-stream"),
            (tensors.LENGTH_HEADER.encode(), b"%d" % length),
        ]
        answer = await self._ask(context, "POST", path, body, headers)
        if answer.status != 200:
            raise _Failed.of(answer)
        length = int(answer.headers.get(tensors.LENGTH_HEADER, len(answer.body)))
        return tensors.infer_response(answer.body, length)

    async def _stream(self, request: Any, context: Context, put: Any) -> None:
        """Answer one request of a stream; errors are responses."""
        labelled = request.parameters.pop(EMPTY_FINAL, None) is not None
        made = message("ModelStreamInferResponse")

        async def respond(response: Any, *, final: bool) -> None:
            if labelled:
                tensors.set_parameters(response.parameters, {FINAL: final})
            await put(made(infer_response=response))

        try:
            if _is_text(request):
                await self._text(request, context, respond)
                if labelled:
                    await respond(_empty(request), final=True)
            else:
                await respond(await self._infer(request, context), final=True)
        except _Failed as failed:
            response = _empty(request)
            if labelled:
                tensors.set_parameters(response.parameters, {FINAL: True})
            await put(made(error_message=failed.message, infer_response=response))

    async def _text(self, request: Any, context: Context, respond: Any) -> None:
        try:
            body = tensors.stream_body(request, self._most)
        except TidemillError as error:
            raise _Failed(400, error.message) from None
        data = EventData()

        async def pass_on(part: bytes) -> None:
            for event in data.feed(part):
                document = json.loads(event)
                if "error" in document:
                    raise _Failed(500, document["error"])
                await respond(tensors.stream_response(event), final=False)

        path = f"{_path(request.model_name, request.model_version)}/generate_stream"
        headers = [(b"content-type", b"application/json")]
        answer = await self._ask(context, "POST", path, body, headers, on_part=pass_on)
        if answer.status != 200:
            raise _Failed.of(answer)

    async def _load(self, request: Any, context: Context, what: str) -> None:
        # KServe's own form of these messages has the model's name as the first field.
        name = request.model_name or request.repository_name
        body = msgspec.json.encode({"parameters": tensors.parameter_values(request.parameters)})
        await self._post(context, f"/v2/repository/models/{quote(name, safe='/@:')}/{what}", body)

    async def _ready(self, context: Context, path: str) -> bool:
        answer = await self._ask(context, "GET", path)
        if answer.status not in (200, 503):
            await _Failed.of(answer).abort(context)
        return answer.status == 200

    async def _get(self, context: Context, path: str) -> Any:
        return await self._json(context, await self._ask(context, "GET", path))

    async def _post(self, context: Context, path: str, body: bytes) -> Any:
        headers = [(b"content-type", b"application/json")]
        return await self._json(context, await self._ask(context, "POST", path, body, headers))

    async def _json(self, context: Context, answer: InnerAnswer) -> Any:
        if answer.status != 200:
            await _Failed.of(answer).abort(context)
        return json.loads(answer.body)

    async def _ask(
        self,
        context: Context,
        method: str,
        path: str,
        body: bytes = b"",
        headers: list[tuple[bytes, bytes]] | None = None,
        **more: Any,
    ) -> InnerAnswer:
        given = [
            (key.encode(), value.encode("latin-1", "replace"))
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str) and not key.startswith(_NOT_PASSED)
        ]
        return await ask(
            self._app,
            method,
            path,
            body,
            headers=[*given, (b"host", b"localhost"), *(headers or ())],
            client=_client(context.peer()),
            **more,
        )


class _Failed(Exception):
    """A request that was refused, or failed.

    Attributes:
        status: of HTTP.
        message: for the client.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}

    @classmethod
    def of(cls, answer: InnerAnswer) -> _Failed:
        """From an answer."""
        try:
            message = json.loads(answer.body)["error"]
        except (ValueError, KeyError, TypeError):
            message = f"HTTP status {answer.status}"
        return cls(answer.status, message, answer.headers)

    async def abort(self, context: Context) -> None:
        """End the call with the status that means the same; it raises."""
        default = (
            grpc.StatusCode.INTERNAL if self.status >= 500 else grpc.StatusCode.INVALID_ARGUMENT
        )
        trailing = tuple(
            (name, self.headers[name])
            for name in ("retry-after", "x-request-id")
            if name in self.headers
        )
        await context.abort(_CODES.get(self.status, default), self.message, trailing)


def _is_text(request: Any) -> bool:
    """Whether a request of a stream asks for generated text, which comes in parts."""
    from tidemill.server.dialects.kserve.tasks import GENERATE, task_of

    task = task_of([t.name for t in request.inputs], [o.name for o in request.outputs])
    if task is not None:
        return task is GENERATE
    return any(tensor.name == "text_input" for tensor in request.inputs)


def _empty(request: Any) -> Any:
    return message("ModelInferResponse")(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )


def _filled(name: str, document: Any) -> Any:
    """A message from a JSON document; what it does not have is left out."""
    return json_format.ParseDict(document, message(name)(), ignore_unknown_fields=True)


def _path(name: str, version: str) -> str:
    path = f"/v2/models/{name}"
    return f"{path}/versions/{version}" if version else path


def _client(peer: str) -> tuple[str, int] | None:
    """Address and port of ``ipv4:1.2.3.4:5`` or ``ipv6:%5B::1%5D:5``."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)
