"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.members import Body
from tidemill.server.dialects.permitted import find_model, model_slots
from tidemill.server.errors import reject
from tidemill.server.host.slot import Slot

# What is wrong with files that a request names is the request's fault.
_OF_FILES = (ErrorKind.NOT_FOUND, ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)


class LoadAdapterBody(Body, kw_only=True):
    """Body of POST /v1/load_lora_adapter.

    Attributes:
        lora_name: what requests call it.
        lora_path: a PEFT folder or a GGUF file on the server's machine.
        base_model_name: the model that it changes; default: the first one.
        load_inplace: taken; an adapter of the same name is always replaced, for new requests.
        pinned: it never leaves the memory.
    """

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool | None = None
    pinned: bool | None = None


class UnloadAdapterBody(Body, kw_only=True):
    """Body of POST /v1/unload_lora_adapter.

    Attributes:
        lora_name: what requests call it.
        lora_int_id: taken, without effect.
        base_model_name: the model that it changes; default: the first one that has such an adapter.
    """

    lora_name: str
    lora_int_id: int | None = None
    base_model_name: str | None = None


async def load_lora_adapter(context: ServerContext, request: Request) -> Response:
    """Load an adapter, after which requests may name it. It is verified whole against its base
    before the answer; on an error nothing is loaded. An adapter of the same name is replaced:
    requests that run finish with the old one."""
    body = await read_model(LoadAdapterBody, request, context.limits)
    name, host = body.lora_name, context.host
    slot = find_model(context, request, body.base_model_name)
    if host.has(name):
        raise bad_request("lora_name", f"{name[:80]!r} is the name of a model; choose another")
    if not body.lora_path.strip() or "\0" in body.lora_path:
        raise bad_request("lora_path", "lora_path is the path of a PEFT folder or a GGUF file")
    async with host.lease(slot.name) as model:
        if model.pipeline is not None:
            raise bad_request("base_model_name", "a pipeline takes no adapters: its models do")
        pinned = bool(body.pinned)
        try:
            await slot.adapters.load(model.client, name, body.lora_path, pinned=pinned)
        except TidemillError as error:
            if error.kind not in _OF_FILES:
                raise
            raise bad_request("lora_path", error.message) from error
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


async def unload_lora_adapter(context: ServerContext, request: Request) -> Response:
    """Forget an adapter; requests that run finish with it."""
    body = await read_model(UnloadAdapterBody, request, context.limits)
    slot = _owner(context, request, body)
    client = None if slot.loaded is None else slot.loaded.served.client
    slot.adapters.unload(client, body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _owner(context: ServerContext, request: Request, body: UnloadAdapterBody) -> Slot:
    name, base = body.lora_name, body.base_model_name
    slots = model_slots(context, request)
    if base is not None:
        slots = [find_model(context, request, base)]
    for slot in slots:
        if name in slot.adapters:
            return slot
    known = [one for slot in slots for one in slot.adapters]
    raise reject(
        404,
        f"no adapter is called {name[:80]!r}; loaded: {', '.join(known[:8]) or 'none'}",
        param="lora_name",
        code="adapter_not_found",
    )
