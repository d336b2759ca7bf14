"""Request bodies: read within bounds, parsed once, and refused with the field named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic
from starlette.requests import ClientDisconnect, Request

from tidemill.server.errors import Problem, Refusal, refuse
from tidemill.server.limits import Limits

SHORT_BODY_BYTES = 2**16
"""Up to here parsing takes well under a millisecond."""

Model = TypeVar("Model", bound=pydantic.BaseModel)

# Fields of the dialects that exist elsewhere and are not built here: field -> what it asks for.
UNSUPPORTED = {
    "tools": "tool calling",
    "tool_choice": "tool calling",
    "tool_calls": "tool calling",
    "parallel_tool_calls": "tool calling",
    "functions": "tool calling",
    "function_call": "tool calling",
    "response_format": "structured output",
    "guided_json": "structured output",
    "guided_regex": "structured output",
    "guided_choice": "structured output",
    "guided_grammar": "structured output",
    "structured_outputs": "structured output",
    "grammar": "structured output",
    "json_schema": "structured output",
    "reasoning_effort": "a reasoning budget",
    "verbosity": "verbosity control",
    "prediction": "predicted outputs",
    "audio": "audio output",
    "modalities": "other modalities than text",
    "web_search_options": "web search",
    "suffix": "fill in the middle",
    "best_of": "best_of",
    "use_beam_search": "beam search",
    "length_penalty": "beam search",
    "store": "stored completions",
    "service_tier": "service tiers",
    "typical_p": "typical sampling",
    "mirostat": "mirostat sampling",
}


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a JSON request.

    Raises:
        Refusal: 415 for another content type, 413 when it is too long, 408 when it does not come.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        got = f"got {media!r}" if media else "the request has none"
        raise refuse(415, f"Content-Type must be application/json; {got}")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise refuse(415, f"Content-Encoding {coding!r} is not taken; send the body as it is")
    try:
        declared = int(request.headers.get("content-length", "0"))
    except ValueError:
        raise refuse(400, "Content-Length is not a number") from None
    if declared > limits.max_body_bytes:
        raise _too_long(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > limits.max_body_bytes:
                    raise _too_long(limits)
                parts.append(part)
    except TimeoutError:
        raise refuse(
            408, f"the body did not arrive within {limits.body_timeout:g} s", code="timeout"
        ) from None
    except ClientDisconnect:
        raise refuse(400, "the client closed the connection before the body was complete") from None
    return b"".join(parts)


def _too_long(limits: Limits) -> Refusal:
    return refuse(
        413,
        f"the body exceeds {limits.max_body_bytes} bytes; send a shorter prompt",
        # What is left of the body is not read, so the connection cannot be used again.
        headers={"Connection": "close"},
    )


async def read_model(model: type[Model], request: Request, limits: Limits) -> Model:
    """Read a body and validate it; a long one in a thread, so that streams are not held up.

    Raises:
        Refusal: see `read_body` and `parse_body`.
    """
    body = await read_body(request, limits)
    if len(body) <= SHORT_BODY_BYTES:
        return parse_body(model, body)
    return await asyncio.to_thread(parse_body, model, body)


def parse_body(model: type[Model], body: bytes) -> Model:
    """Validate a JSON body against `model`; a null where nothing may be means absent.

    Raises:
        Refusal: 400 naming the field.
    """
    try:
        valid = model.model_validate_json(body)
        _refuse_duplicates(body)
        return valid
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False, include_context=True)
    if all(e["type"] == "extra_forbidden" and e["input"] is None for e in errors):
        document = json.loads(body)
        for e in errors:
            _remove(document, e["loc"])
        return parse_body(model, json.dumps(document).encode())
    raise Refusal(_problem(errors, body))


def _refuse_duplicates(body: bytes) -> None:
    """Of two values for one key the parser takes the last; the other must not vanish silently."""
    json.loads(body, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        name = next(k for k, _ in pairs if k in seen or seen.add(k))[:64]  # type: ignore[func-returns-value]
        message = f"{name} is there twice in one object; send it once"
        raise Refusal(_bad(name, message, "duplicate_parameter"))
    return found


def _remove(document: Any, loc: Sequence[int | str]) -> None:
    parent, path = _walk(document, loc)
    if path and isinstance(parent, dict):
        parent.pop(path[-1], None)


def _walk(document: Any, loc: Sequence[int | str]) -> tuple[Any, list[int | str]]:
    """The container of the value at `loc`, and the part of `loc` that lies in the document.

    Pydantic's locations also hold the names of union branches; those are left out.
    """
    parent, here, path = None, document, []
    for index, step in enumerate(loc):
        inside = (isinstance(here, Mapping) and step in here) or (
            isinstance(here, list) and isinstance(step, int) and step < len(here)
        )
        if inside:
            parent, here = here, here[step]
            path.append(step)
        elif index == len(loc) - 1 and isinstance(here, Mapping):
            path.append(step)  # a missing field
    return parent, path


def field_name(path: Sequence[int | str]) -> str:
    """``messages[0].content`` for the path ("messages", 0, "content")."""
    name = ""
    for step in path:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += f".{step}" if name else step
    return name


def _problem(errors: Sequence[Any], body: bytes) -> Problem:
    # The first non-null complaint: nulls in unknown places are no mistake.
    first = next(e for e in errors if not (e["type"] == "extra_forbidden" and e["input"] is None))
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return _bad(None, f"the body is not valid JSON: {reason}", "invalid_json")
    if not first["loc"]:
        return _bad(None, "the body must be a JSON object", "invalid_type")
    try:
        _, path = _walk(json.loads(body), first["loc"])
    except (ValueError, RecursionError):
        path = list(first["loc"])
    param = field_name(path)
    if first["type"] == "extra_forbidden":
        return _unknown(param, str(path[-1]))
    if first["type"] == "missing":
        return _bad(param, f"{param} is required", "missing_required_parameter")
    if first["type"] == "unsupported":
        return _bad(param, f"{param}: {first['msg']}", "unsupported")
    code = "invalid_value" if first["type"] == "invalid_value" else "invalid_type"
    return _bad(param, f"{param}: {first['msg']}", code)


def _unknown(param: str, name: str) -> Problem:
    if name in UNSUPPORTED:
        message = f"{param} is not supported: this version does not do {UNSUPPORTED[name]}"
        return _bad(param, message, "unsupported")
    return _bad(param, f"{param} is not a field this server knows", "unknown_parameter")


def _bad(param: str | None, message: str, code: str) -> Problem:
    return Problem(400, "invalid_request_error", message, param, code)
