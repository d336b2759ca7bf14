"""An inference: texts, embeddings and scores as tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.generation.caller import Caller
from tidemill.generation.request import EmbedRequest, ScoreRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import SHORT_BODY_BYTES, parse_body, read_bytes, read_model
from tidemill.server.dialects.kserve.answer import OCTETS, InferFormat, head_of
from tidemill.server.dialects.kserve.models import info_of, model_of
from tidemill.server.dialects.kserve.options import generate_request, merged, read_options
from tidemill.server.dialects.kserve.schema import KserveInfer, KserveOptions
from tidemill.server.dialects.kserve.tasks import (
    EMBED,
    GENERATE,
    OPTIONS,
    SCORE,
    VERSION,
    Task,
    task_of,
    tasks_of,
)
from tidemill.server.dialects.kserve.tensors import Output, read_inputs, write_outputs
from tidemill.server.dialects.respond import GeneratedAnswer, ModelAnswer
from tidemill.server.dialects.vectors import VectorForm, embed, score_pairs
from tidemill.server.errors import reject
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel

HEADER_LENGTH = "inference-header-content-length"
"""Of bodies in which bytes follow the JSON text: the length of that text."""


@dataclass(frozen=True, slots=True)
class _Inference:
    """One request, read."""

    context: ServerContext
    request: Request
    model: str
    body: KserveInfer
    tensors: Mapping[str, list[Any]]
    caller: Caller
    arrival: float

    @property
    def head(self) -> dict[str, Any]:
        """See `head_of`."""
        return head_of(self.model, self.body.id)

    @property
    def wanted(self) -> list[str]:
        """Names of the outputs that are asked for."""
        return [output.name for output in self.body.outputs or ()]

    def binary(self, name: str) -> bool:
        """Whether an output's data are bytes behind the JSON text."""
        asked = self.body.parameters
        every = asked is not None and bool(asked.binary_data_output)
        for output in self.body.outputs or ():
            own = output.parameters
            if output.name == name and own is not None and own.binary_data is not None:
                return own.binary_data
        return every

    def texts(self, name: str, most: int) -> list[str]:
        """The elements of an input of texts."""
        found = self.tensors[name]
        if not all(isinstance(text, str) for text in found):
            raise bad_request(name, f"the datatype of {name} must be BYTES")
        if not 1 <= len(found) <= most:
            raise bad_request(name, f"{name} must have 1 to {most} elements, got {len(found)}")
        return found

    def response(self, *outputs: Output) -> Response:
        """The answer with these tensors."""
        pieces, length = write_outputs(self.head, outputs, self.binary)
        if length is None:
            return Response(pieces[0], media_type="application/json")
        headers = {HEADER_LENGTH: str(length)}
        return Response(b"".join(pieces), headers=headers, media_type=OCTETS.decode())


async def answer_inference(context: ServerContext, request: Request) -> Response:
    """The answer to an inference, once it is read and its task is known.

    Raises:
        Rejection, TidemillError: the request is wrong.
    """
    arrival = monotonic()
    name = model_of(context, request)
    body, raw = await _read(context, request)
    for field, own in (("model_name", name), ("model_version", VERSION)):
        if (said := getattr(body, field)) not in (None, "", own):
            raise bad_request(field, f"{field} is {said[:64]!r}, and the path says {own!r}")
    most = max(context.limits.max_prompts, context.limits.max_inputs)
    if len(raw) <= SHORT_BODY_BYTES:
        tensors = read_inputs(body, raw, most)
    else:
        tensors = await asyncio.to_thread(read_inputs, body, raw, most)
    asked = body.parameters
    timeout = None if asked is None or asked.timeout is None else asked.timeout / 1e6
    caller = caller_of(request, timeout, arrival)
    found = _Inference(context, request, name, body, tensors, caller, arrival)
    task = task_of(tensors, found.wanted)
    if task is None:
        task = tasks_of(await info_of(context, name))[0]
    _check_names(task, tensors, found.wanted)
    return _ANSWERS[task.name](found)


def _generated(found: _Inference) -> Response:
    texts = found.texts("text_input", found.context.limits.max_prompts)
    options = merged([found.body.parameters, _option_tensors(found.tensors)])
    made: list[InferFormat] = []

    async def make_format(model: ServedModel, generation: Generation) -> InferFormat:
        wanted, head = found.wanted, found.head
        made.append(InferFormat(generation, head, texts, options, wanted, found.binary))
        return made[0]

    asked = generate_request(texts, options, found.caller, found.arrival)
    context, request = found.context, found.request
    answer_id = new_id("infer")
    answer = GeneratedAnswer(context, request, found.model, asked, answer_id, make_format, None)
    return _WithLength(answer, made)


def _embedded(found: _Inference) -> Response:
    context, request = found.context, found.request
    options = merged([found.body.parameters])
    texts = found.texts("text_input", context.limits.max_inputs)
    asked = EmbedRequest(
        inputs=texts,
        dimensions=options.dimensions,
        param="text_input",
        caller=found.caller,
        arrival=found.arrival,
    )

    async def work(model: ServedModel) -> Response:
        binary = found.binary("embedding")
        form = VectorForm(not binary, binary, "" if binary else "the output as binary data")
        run = await embed(context, request, model, asked, form)
        numbers: list[float] = []
        async for _, vector in run.embeddings():
            numbers += vector.tolist()
        return found.response(Output("embedding", "FP32", (len(texts), run.length), numbers))

    return ModelAnswer(context, request, found.model, work)


def _scored(found: _Inference) -> Response:
    documents = found.texts("documents", found.context.limits.max_inputs)
    asked = ScoreRequest(
        firsts=found.texts("query", 1),
        seconds=documents,
        pairs=[(0, j) for j in range(len(documents))],
        params=("query", "documents"),
        caller=found.caller,
        arrival=found.arrival,
    )

    async def work(model: ServedModel) -> Response:
        values = (await score_pairs(found.request, model, asked)).values
        return found.response(Output("score", "FP32", (len(values),), values))

    return ModelAnswer(found.context, found.request, found.model, work)


_ANSWERS: Mapping[str, Callable[[_Inference], Response]] = {
    GENERATE.name: _generated,
    EMBED.name: _embedded,
    SCORE.name: _scored,
}


class _WithLength(Response):
    """The answer to a generation, with the length of its JSON text where bytes follow it.

    Args:
        answer: writes it.
        made: its format, once it is made.
    """

    def __init__(self, answer: GeneratedAnswer, made: Sequence[InferFormat]) -> None:
        super().__init__()
        self._answer = answer
        self._made = made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""

        async def with_length(message: Message) -> None:
            length = self._made[0].json_length if self._made else None
            if message["type"] == "http.response.start" and length is not None:
                headers = [*message["headers"], (HEADER_LENGTH.encode(), b"%d" % length)]
                message = {**message, "headers": headers}
            await send(message)

        await self._answer(scope, receive, with_length)


async def _read(context: ServerContext, request: Request) -> tuple[KserveInfer, bytes]:
    """The JSON part of a body, and the bytes behind it."""
    header = request.headers.get(HEADER_LENGTH)
    if header is None:
        return await read_model(KserveInfer, request, context.limits, bare=True), b""
    data = await read_bytes(request, context.limits)
    if not (header.isascii() and header.isdigit()) or not 0 < int(header[:20]) <= len(data):
        raise reject(400, f"{HEADER_LENGTH} must be the JSON part's length, at most {len(data)}")
    length = int(header)
    if length <= SHORT_BODY_BYTES:
        return parse_body(KserveInfer, data[:length], context.limits), data[length:]
    text = data[:length]
    return await asyncio.to_thread(parse_body, KserveInfer, text, context.limits), data[length:]


def _check_names(task: Task, tensors: Mapping[str, list[Any]], wanted: Sequence[str]) -> None:
    """Raise BAD_REQUEST unless all tensors are the task's, and its own inputs are there."""
    needed = [slot.name for slot in task.inputs]
    optional = [slot.name for slot in OPTIONS] if task is GENERATE else []
    outputs = [slot.name for slot in task.outputs]
    for name in needed:
        if name not in tensors:
            raise bad_request("inputs", f"inputs: {name} is missing; {task.name} needs it")
    for name in tensors:
        if name not in needed and name not in optional:
            what = f"inputs: {name[:64]!r} is no input of {task.name}"
            raise bad_request("inputs", f"{what}; known are {', '.join((*needed, *optional))}")
    for name in wanted:
        if name not in outputs or wanted.count(name) > 1:
            what = f"outputs: {name[:64]!r} is no output of {task.name}, or is named twice"
            raise bad_request("outputs", f"{what}; known are {', '.join(outputs)}")


def _option_tensors(tensors: Mapping[str, list[Any]]) -> KserveOptions:
    """The options among the inputs."""
    document: dict[str, Any] = {}
    for slot in OPTIONS:
        if slot.name not in tensors:
            continue
        values = tensors[slot.name]
        if slot.shape == (1,) and len(values) != 1:
            raise bad_request(slot.name, f"{slot.name} must have one element, got {len(values)}")
        document[slot.name] = values if slot.shape != (1,) else values[0]
    if document.pop("stream", False):
        raise bad_request("stream", "stream: an inference is one answer; use generate_stream")
    return read_options(document, "")
