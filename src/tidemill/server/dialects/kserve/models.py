"""What is served: the server, its models, their tensors, states and numbers of requests."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.contract.request import FinishReason
from tidemill.contract.wire import EngineInfo
from tidemill.generation.choices import TOOL_CALLS
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import parse_body, read_bytes
from tidemill.server.dialects.kserve.schema import KserveIndex, KserveLoad
from tidemill.server.dialects.kserve.tasks import GENERATE, OPTIONS, VERSION, tasks_of
from tidemill.server.dialects.kserve.tasks import Slot as Tensor
from tidemill.server.dialects.permitted import find_model, model_slots
from tidemill.server.errors import reject
from tidemill.server.host.served import check_is_model
from tidemill.server.host.slot import Slot, State
from tidemill.server.transport.pieces import json_response

EXTENSIONS = (
    "binary_tensor_data",
    "generate",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
_STATES = {
    State.UNLOADED: "UNAVAILABLE",
    State.LOADING: "LOADING",
    State.LOADED: "READY",
    State.ASLEEP: "READY",
    State.UNLOADING: "UNLOADING",
}
_ENDED = (FinishReason.STOP.value, FinishReason.LENGTH.value, TOOL_CALLS)


def model_of(context: ServerContext, request: Request) -> str:
    """The name in a path; a version behind it must be the one that there is.

    Raises:
        Rejection: 404.
    """
    name: str = request.path_params["model"]
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise reject(404, f"every model has the version {VERSION} alone, got {version[:32]!r}")
    find_model(context, request, name)
    return name


async def info_of(context: ServerContext, name: str) -> EngineInfo:
    """What the engine of a model says of it; one that is not loaded is loaded."""
    slot = context.host.find(name)
    if slot.loaded is None:
        await context.host.load(slot)
    assert slot.loaded is not None
    check_is_model(slot.loaded.served)
    return slot.loaded.served.info


async def server(context: ServerContext, request: Request) -> Response:
    """The server and its extensions."""
    return json_response(
        {"name": "tidemill", "version": context.version, "extensions": list(EXTENSIONS)}
    )


async def live(context: ServerContext, request: Request) -> Response:
    """The server is alive."""
    return json_response({"live": True})


async def ready(context: ServerContext, request: Request) -> Response:
    """Every model can answer; one that is loaded on demand can."""
    problem = context.host.draining or next(filter(None, map(_problem, context.host.slots)), None)
    if problem is not None:
        raise reject(503, f"not ready: {problem}", code="not_ready")
    return json_response({"ready": True})


async def model_ready(context: ServerContext, request: Request) -> Response:
    """A model can answer; one that is loaded on demand can."""
    name = model_of(context, request)
    problem = context.host.draining or _problem(context.host.find(name))
    if problem is not None:
        raise reject(503, f"{name} is not ready: {problem}", code="not_ready")
    return json_response({"name": name, "ready": True})


async def metadata(context: ServerContext, request: Request) -> Response:
    """A model's tensors: those of everything it does."""
    name = model_of(context, request)
    info = await info_of(context, name)
    inputs, outputs = _tensors(info)
    return json_response(
        {
            "name": name,
            "versions": [VERSION],
            "platform": f"tidemill_{info.backend}",
            "inputs": [_described(t) for t in inputs],
            "outputs": [_described(t) for t in outputs],
        }
    )


async def config(context: ServerContext, request: Request) -> Response:
    """The same in the form of Triton's model configuration."""
    name = model_of(context, request)
    inputs, outputs = _tensors(await info_of(context, name))
    options = {slot.name for slot in OPTIONS}
    return json_response(
        {
            "name": name,
            "platform": "",
            "backend": "tidemill",
            "max_batch_size": 0,
            "input": [{**_configured(t), "optional": t.name in options} for t in inputs],
            "output": [_configured(t) for t in outputs],
            "model_transaction_policy": {"decoupled": False},
        }
    )


async def index(context: ServerContext, request: Request) -> Response:
    """Every name and its state."""
    body = parse_body(KserveIndex, await _bytes(context, request), context.limits)
    found = [
        {
            "name": name,
            "version": VERSION,
            "state": _STATES[slot.state],
            "reason": "" if slot.error is None else slot.error.message,
        }
        for slot in model_slots(context, request)
        for name in slot.names
        if not body.ready or _STATES[slot.state] == "READY"
    ]
    return json_response(found)


async def load(context: ServerContext, request: Request) -> Response:
    """Load a model; the answer comes when it is loaded."""
    slot = await _named(context, request)
    await context.host.load(slot)
    return json_response({})


async def unload(context: ServerContext, request: Request) -> Response:
    """Unload a model; the answer comes when the requests that use it have ended and it is."""
    slot = await _named(context, request)
    await context.host.unload(slot)
    return json_response({})


async def statistics(context: ServerContext, request: Request) -> Response:
    """Requests that have ended, of one model or of all."""
    if "model" in request.path_params:
        names = [model_of(context, request)]
    else:
        names = [slot.name for slot in model_slots(context, request)]
    return json_response({"model_stats": [_counted(context, name) for name in names]})


async def _named(context: ServerContext, request: Request) -> Slot:
    """The model of a path; the body is checked."""
    name = model_of(context, request)
    parse_body(KserveLoad, await _bytes(context, request), context.limits)
    return context.host.find(name)


async def _bytes(context: ServerContext, request: Request) -> bytes:
    """A body, which may be absent; clients send it without a content type."""
    return await read_bytes(request, context.limits) or b"{}"


def _problem(slot: Slot) -> str | None:
    """Why a model cannot answer; None where it can."""
    if slot.loaded is not None and slot.loaded.served.pipeline is None:
        return slot.loaded.served.client.problem
    return None if slot.error is None else slot.error.message


def _tensors(info: EngineInfo) -> tuple[list[Tensor], list[Tensor]]:
    """All inputs and outputs of a model, each once."""
    tasks = tasks_of(info)
    inputs = [t for task in tasks for t in task.inputs]
    outputs = [t for task in tasks for t in task.outputs]
    if GENERATE in tasks:
        inputs += OPTIONS
    return list(dict.fromkeys(inputs)), list(dict.fromkeys(outputs))


def _described(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _configured(tensor: Tensor) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": list(tensor.shape)}


def _counted(context: ServerContext, name: str) -> dict[str, Any]:
    registry, model = context.metrics.registry, context.host.find(name).name
    ended = {
        reason: int(registry.get_sample_value(_REQUESTS, {"model": model, "reason": reason}) or 0)
        for reason in _reasons(context, model)
    }
    done = sum(ended.get(reason, 0) for reason in _ENDED)
    seconds = registry.get_sample_value("tidemill_e2e_seconds_sum", {"model": model}) or 0.0
    return {
        "name": name,
        "version": VERSION,
        "inference_count": done,
        "execution_count": done,
        "inference_stats": {
            "success": {"count": done, "ns": int(seconds * 1e9)},
            "fail": {"count": sum(ended.values()) - done, "ns": 0},
        },
        "batch_stats": [],
    }


_REQUESTS = "tidemill_requests_total"


def _reasons(context: ServerContext, model: str) -> set[str]:
    return {
        sample.labels["reason"]
        for metric in context.metrics.requests.collect()
        for sample in metric.samples
        if sample.labels.get("model") == model and sample.name == _REQUESTS
    }
