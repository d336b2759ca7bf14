"""The KServe protocol over gRPC: calls become requests inside the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers.live_server import fake_context
from helpers.pki import make_pki
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import TidemillError
from tidemill.contract.request import RequestError
from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.app import build_app
from tidemill.server.grpc.messages import METHODS, message
from tidemill.server.grpc.serve import GrpcServer
from tidemill.server.grpc.service import SERVICE
from tidemill.server.transport.listen import bind
from tidemill.server.transport.tls import Certificates

KEY = "a-key-that-is-long-enough-for-anyone"


class Client:
    """Calls methods by name."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __call__(self, name: str, request: Any = None, **more: Any) -> Any:
        asked = METHODS[name][0]
        call = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=message(f"{asked}Request").SerializeToString,
            response_deserializer=message(f"{name}Response").FromString,
        )
        return await call(request or message(f"{asked}Request")(), timeout=20, **more)

    def stream(self) -> Any:
        """A decoupled stream."""
        return self._channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=message("ModelInferRequest").SerializeToString,
            response_deserializer=message("ModelStreamInferResponse").FromString,
        )(timeout=20)


@asynccontextmanager
async def served(
    engine: ScriptedEngine | None = None,
    security: Security | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Client]:
    """A client of a running server."""
    context = fake_context(engine or ScriptedEngine(), limits=limits)
    server = GrpcServer(build_app(context, security), context.limits, "127.0.0.1", 0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield Client(channel)
    finally:
        await server.stop(0)


def asking(*texts: str, **more: Any) -> Any:
    """A request for text."""
    request = message("ModelInferRequest")(model_name="tiny", **more)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[len(texts)])
    tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    return request


def texts_of(response: Any, name: str = "text_output") -> list[str]:
    """The elements of an output of texts."""
    (index,) = [i for i, output in enumerate(response.outputs) if output.name == name]
    data, found = response.raw_output_contents[index], []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return found


async def test_what_there_is() -> None:
    async with served() as call:
        assert (await call("ServerLive")).live and (await call("ServerReady")).ready
        assert (await call("ModelReady", message("ModelReadyRequest")(name="tiny"))).ready
        server = await call("ServerMetadata")
        assert server.name == "tidemill" and "statistics" in server.extensions
        named = message("ModelMetadataRequest")(name="tiny", version="1")
        model = await call("ModelMetadata", named)
        assert model.inputs[0].name == "text_input" and list(model.versions) == ["1"]
        config = (await call("ModelConfig", message("ModelConfigRequest")(name="tiny"))).config
        kinds = {tensor.name: tensor.data_type for tensor in config.input}
        assert kinds["text_input"] == 13 and kinds["max_tokens"] == 8
        assert config.model_transaction_policy.decoupled
        (card,) = (await call("RepositoryIndex")).models
        assert (card.name, card.state) == ("tiny", "READY")


async def test_text_by_contents_and_by_raw_bytes() -> None:
    async with served() as call:
        request = asking("flow", "ebb", id="7")
        request.parameters["exclude_input_in_output"].bool_param = True
        request.parameters["max_tokens"].int64_param = 5
        found = await call("ModelInfer", request)
        assert found.id == "7" and found.model_name == "tiny"
        assert [len(text) for text in texts_of(found)] == [5, 5]
        raw = message("ModelInferRequest")(model_name="tiny", id="8")
        raw.inputs.add(name="text_input", datatype="BYTES", shape=[2])
        raw.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
        raw.inputs.add(name="exclude_input_in_output", datatype="BOOL", shape=[1])
        data = [b"\4\0\0\0flow\3\0\0\0ebb", (5).to_bytes(4, "little"), b"\1"]
        raw.raw_input_contents.extend(data)
        raw.outputs.add(name="text_output")
        again = await call("ModelInfer", raw)
        assert [output.name for output in again.outputs] == ["text_output"]
        counted = (await call("ModelStatistics")).model_stats[0]
        assert counted.inference_count == 2 and counted.inference_stats.success.ns > 0


async def test_vectors_and_scores() -> None:
    async with served() as call:
        request = asking("flow")
        request.outputs.add(name="embedding")
        found = await call("ModelInfer", request)
        assert list(found.outputs[0].shape) == [1, 8] and len(found.raw_output_contents[0]) == 32
        request = message("ModelInferRequest")(model_name="tiny")
        for name, texts in (("query", [b"sea"]), ("documents", [b"a", b"b"])):
            tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(texts)])
            tensor.contents.bytes_contents.extend(texts)
        found = await call("ModelInfer", request)
        assert found.outputs[0].name == "score" and len(found.raw_output_contents[0]) == 8


async def test_streams_answer_several_requests_at_once() -> None:
    async with served() as call:
        whole = {}
        requests = {}
        for name in ("flow", "ebb"):
            request = requests[name] = asking(name, id=name)
            request.parameters["seed"].int64_param = 3
            request.parameters["exclude_input_in_output"].bool_param = True
            whole[name] = texts_of(await call("ModelInfer", request))[0]
        stream = call.stream()
        for request in requests.values():
            request.outputs.add(name="finish_reason")
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            await stream.write(request)
        await stream.write(asking("a", id="wrong", model_version="3"))
        await stream.done_writing()
        parts: dict[str, list[str]] = {"flow": [], "ebb": []}
        reasons, ended, errors = [], [], []
        async for response in stream:
            found = response.infer_response
            if response.error_message:
                errors.append((found.id, response.error_message))
            elif found.parameters["triton_final_response"].bool_param:
                ended.append(found.id)
                assert not found.outputs
            else:
                parts[found.id] += texts_of(found)
                names = [output.name for output in found.outputs]
                reasons += texts_of(found, "finish_reason") if "finish_reason" in names else []
        assert {name: "".join(texts) for name, texts in parts.items()} == whole
        assert sorted(ended) == ["ebb", "flow"] and reasons == ["stop", "stop"]
        ((identity, error),) = errors
        assert identity == "wrong" and "version" in error


async def test_vectors_in_a_stream() -> None:
    async with served() as call:
        stream, request = call.stream(), asking("flow", "ebb")
        request.outputs.add(name="embedding")
        await stream.write(request)
        await stream.done_writing()
        (response,) = [response async for response in stream]
        assert list(response.infer_response.outputs[0].shape) == [2, 8]


async def test_a_stream_whose_engine_fails_says_so() -> None:
    engine = ScriptedEngine(fail_after=2, error=RequestError("internal", "x"))
    async with served(engine) as call:
        stream = call.stream()
        await stream.write(asking("flow", id="1"))
        await stream.done_writing()
        responses = [response async for response in stream]
        assert responses[-1].error_message and responses[-1].infer_response.id == "1"


async def _refused(call: Client, name: str, request: Any, **more: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(name, request, **more)
    return caught.value


async def test_errors_have_the_status_that_means_the_same() -> None:
    code = grpc.StatusCode
    async with served(limits=Limits(max_body_bytes=4096)) as call:
        for request, wanted, named in (
            (asking("a", model_version="2"), code.NOT_FOUND, "version"),
            (asking(""), code.INVALID_ARGUMENT, "text_input"),
            (asking("a" * 300), code.INVALID_ARGUMENT, "text_input"),
            (asking("a" * 5000), code.RESOURCE_EXHAUSTED, "4096"),
            (message("ModelInferRequest")(model_name="dodo"), code.NOT_FOUND, "dodo"),
        ):
            error = await _refused(call, "ModelInfer", request)
            assert error.code() is wanted and named in error.details(), error
            assert dict(error.trailing_metadata()).get("x-request-id", "").startswith("req-")
        wrong = asking("a")
        wrong.raw_input_contents.extend([b"a", b"b"])
        error = await _refused(call, "ModelInfer", wrong)
        assert error.code() is code.INVALID_ARGUMENT and "raw_input_contents" in error.details()
        half = message("ModelInferRequest")(model_name="tiny")
        half.inputs.add(name="text_input", datatype="FP16", shape=[1])
        assert "comes raw" in (await _refused(call, "ModelInfer", half)).details()
        several = call.stream()
        await several.write(asking("a", "b"))
        await several.done_writing()
        (response,) = [response async for response in several]
        assert "one text" in response.error_message


async def test_keys_are_metadata() -> None:
    async with served(security=Security(keys=StaticKeys((KEY,)))) as call:
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            error = await _refused(call, "ModelInfer", asking("a"), metadata=metadata)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "key" in error.details()
        given = (("authorization", f"Bearer {KEY}"),)
        assert texts_of(await call("ModelInfer", asking("a"), metadata=given))


async def test_a_client_that_leaves_ends_its_request() -> None:
    engine = ScriptedEngine(lambda request, choice: [97] * 200, step_seconds=0.05)
    async with served(engine) as call:
        stream = call.stream()
        await stream.write(asking("flow"))
        async for _ in stream:
            break
        stream.cancel()
        async with asyncio.timeout(20):
            while not engine.cancelled:
                await asyncio.sleep(0.02)


async def test_tls(tmp_path: Path) -> None:
    pki, context = make_pki(tmp_path), fake_context(ScriptedEngine())
    certificates = Certificates(pki / "server.pem", pki / "server.key", pki / "ca.pem")
    server = GrpcServer(build_app(context), context.limits, "127.0.0.1", 0, certificates)
    await server.start()
    try:
        authority = (pki / "ca.pem").read_bytes()
        known = grpc.ssl_channel_credentials(
            authority, (pki / "client.key").read_bytes(), (pki / "client.pem").read_bytes()
        )
        place = f"localhost:{server.port}"
        async with grpc.aio.secure_channel(place, known) as channel:
            assert (await Client(channel)("ServerLive")).live
        nobody = grpc.ssl_channel_credentials(authority)
        async with grpc.aio.secure_channel(place, nobody) as channel:
            error = await _refused(Client(channel), "ServerLive", None)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(0)


async def test_a_port_in_use_is_said() -> None:
    taken, context = bind("127.0.0.1", 0), fake_context(ScriptedEngine())
    with taken, pytest.raises(TidemillError, match="--grpc-port"):
        port = taken.getsockname()[1]
        await GrpcServer(build_app(context), context.limits, "127.0.0.1", port).start()
