"""Request bodies: read within bounds and parsed once; errors name the field."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tidemill.server.access.limits import Limits
from tidemill.server.admission.bodies import Hold
from tidemill.server.dialects.bounds import check_fields, check_shape
from tidemill.server.dialects.id_lists import loads
from tidemill.server.dialects.members import InvalidField, Model, fill
from tidemill.server.errors import Problem, Rejection, reject
from tidemill.server.transport.turns import next_turn

SHORT_BODY_BYTES = 2**14
"""Up to this size parsing takes about a millisecond, whatever the content."""

LARGE_BODY_BYTES = 2**18
"""Larger bodies are parsed and tokenized one at a time."""

PART_BYTES = 2**16
"""A body without Content-Length is charged in steps of this size."""

_BARE = ("", "application/x-www-form-urlencoded")
_CHARSETS = {
    **dict.fromkeys(("", "utf-8", "utf8", "us-ascii", "ascii"), ""),
    **dict.fromkeys(("iso-8859-1", "iso8859-1", "latin1", "latin-1"), "iso-8859-1"),
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}
"""What ``charset=`` may say, and the codec for it; RFC 8259 knows UTF-8 alone."""

_POSITION = "x-tidemill-position"
"""`contract.position.HEADER`, which is imported when it is first sent."""

_BROWSER = frozenset({"origin", "referer", "sec-fetch-site", "sec-fetch-mode"})


async def read_body(request: Request, limits: Limits, *, bare: bool = False) -> bytes:
    """The body of a JSON request.

    Args:
        request: the request.
        limits: bounds.
        bare: accept the content type that ``curl -d`` sends by default as JSON. Not from a
            browser, where a page could send such a request to any server without a preflight.

    Raises:
        Rejection: 415 for another content type, 413 when it is too long, 408 when it does not
            arrive in time, 429 when all bodies in flight hold too much memory.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    bare = bare and media in _BARE and not _BROWSER.intersection(request.headers)
    if media != "application/json" and not media.endswith("+json") and not bare:
        got = f"got {media!r}" if media else "the request has none"
        if media == _BARE[1]:
            got += ", which curl sends without -H 'Content-Type: application/json'"
        raise reject(415, f"Content-Type must be application/json; {got}")
    decoder = _decoder(request)
    body = await read_bytes(request, limits)
    if (position := request.headers.get(_POSITION)) is not None:
        from tidemill.server.host.position import read_position  # few ask for it

        request.state.positions, body = read_position(position, body)
    return _as_utf8(body, decoder)


async def read_bytes(request: Request, limits: Limits) -> bytes:
    """A body of any kind.

    Raises:
        Rejection: see `read_body`.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise reject(415, f"Content-Encoding {coding!r} is not taken; send the body as it is")
    try:
        declared = int(request.headers.get("content-length", "0"))
    except ValueError:
        raise reject(400, "Content-Length is not a number") from None
    if declared > limits.max_body_bytes:
        raise _too_long(limits, str(declared))
    hold: Hold = request.state.hold
    # Charge the declared length before any byte arrives; otherwise charge as bytes arrive.
    hold.need(declared)
    body = bytearray()
    loop = asyncio.get_running_loop()
    ends = loop.time() + limits.body_timeout
    try:
        async with asyncio.timeout_at(ends) as clock:
            clock.reschedule(min(ends, loop.time() + limits.body_idle_timeout))
            async for part in request.stream():
                if len(body) + len(part) > limits.max_body_bytes:
                    raise _too_long(limits, f"more than {limits.max_body_bytes}")
                body += part
                if len(body) > hold.size:
                    hold.need(len(body) + PART_BYTES)
                clock.reschedule(min(ends, loop.time() + limits.body_idle_timeout))
    except TimeoutError:
        late = loop.time() >= ends
        seconds = limits.body_timeout if late else limits.body_idle_timeout
        what = "the body did not arrive" if late else "nothing more of the body arrived"
        raise reject(408, f"{what} within {seconds:g} s", code="timeout") from None
    except ClientDisconnect:
        raise reject(400, "the client closed the connection before the body was complete") from None
    return bytes(body)


def _decoder(request: Request) -> str:
    """The encoding that a request's content type says its body has; "" where that is UTF-8.

    Raises:
        Rejection: 415 for an encoding that is not known.
    """
    _, _, parameters = request.headers.get("content-type", "").partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'").lower()
            if charset not in _CHARSETS:
                known = ", ".join(_CHARSETS)
                raise reject(415, f"charset {charset[:32]!r} is not taken; known are {known}")
            return _CHARSETS[charset]
    return ""


def _as_utf8(body: bytes, decoder: str) -> bytes:
    """A body in UTF-8.

    Raises:
        Rejection: 400 where the body is not in the encoding that it was said to have.
    """
    if decoder:
        try:
            body = body.decode(decoder).encode()
        except UnicodeError:
            message = f"the body is not in the encoding that the content type says ({decoder})"
            raise Rejection(_bad(None, message, "invalid_json")) from None
    return body


def _too_long(limits: Limits, got: str) -> Rejection:
    # The connection discards the rest of the body for a short time (`server.transport.http`).
    return reject(
        413,
        f"the body has {got} bytes; at most {limits.max_body_bytes} are taken: send a shorter one",
    )


async def read_model(
    model: type[Model], request: Request, limits: Limits, *, bare: bool = False
) -> Model:
    """Read and validate a body; a long one in a thread, so that it does not delay streams.

    Args:
        model: the kind of body.
        request: whose body it is.
        limits: its bounds.
        bare: see `read_body`.

    Raises:
        Rejection: see `read_body` and `parse_body`.
        TidemillError: a bound of `limits` is exceeded.
    """
    body = await read_body(request, limits, bare=bare)
    names: dict[str, str] = {}
    request.state.sent_as = names  # later errors use the names as sent
    if len(body) <= SHORT_BODY_BYTES:
        await next_turn()
        read = parse_body(model, body, limits, names)
        _note_subject(request, read)
        return read
    if len(body) > LARGE_BODY_BYTES:
        hold: Hold = request.state.hold
        await hold.enter_lane()
    return await asyncio.to_thread(parse_body, model, body, limits, names)


def _note_subject(request: Request, body: object) -> None:
    """What an administrative act is done to, where its path does not say it; for the audit log."""
    if request.scope["state"].get("subject") == "":
        named = (getattr(body, name, None) for name in ("model", "name", "source"))
        request.state.subject = next((name for name in named if isinstance(name, str)), "")


def parse_body(
    model: type[Model], body: bytes, limits: Limits, names: dict[str, str] | None = None
) -> Model:
    """Validate a JSON body against `model`; a null for an unknown field means absent.

    Args:
        model: the kind of body.
        body: JSON text.
        limits: bounds of its parts.
        names: see `members.fill`.

    Raises:
        Rejection: 400 naming the field.
        TidemillError: a bound of `limits` is exceeded.
    """
    check_shape(body, limits)
    document = _load(body)
    check_fields(document, limits)
    try:
        return fill(model, document, names)
    except InvalidField as invalid:
        raise Rejection(_problem(invalid)) from None


def _load(body: bytes) -> dict[str, Any]:
    if body.startswith(codecs.BOM_UTF8):
        body = body[len(codecs.BOM_UTF8) :]  # as editors on Windows write it; RFC 8259 lets it pass
    try:
        if len(body) <= SHORT_BODY_BYTES:
            document = json.loads(
                body.decode(), object_pairs_hook=_unique, parse_constant=_no_number
            )
        else:
            document = loads(body, _no_number, object_pairs_hook=_unique)
        if _SURROGATE.search(body):
            # Only the strings are checked, since lists of ids can be long.
            texts = loads(body, _no_number, object_pairs_hook=_unique, ids=False)
            json.dumps(texts, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise Rejection(
            _bad(None, f"the body is not valid JSON: {where}", "invalid_json")
        ) from None
    except UnicodeDecodeError as error:
        message = (
            f"the body is not valid UTF-8 at byte {error.start}; send it as UTF-8, or name its "
            "encoding in the content type (application/json; charset=iso-8859-1)"
        )
        raise Rejection(_bad(None, message, "invalid_json")) from None
    except UnicodeEncodeError:
        message = "the body is not valid JSON: half of a surrogate pair stands alone in a string"
        raise Rejection(_bad(None, message, "invalid_json")) from None
    except (ValueError, RecursionError):
        message = "the body is not valid JSON: a number has too many digits"
        raise Rejection(_bad(None, message, "invalid_json")) from None
    if not isinstance(document, dict):
        raise Rejection(_bad(None, "the body must be a JSON object", "invalid_type"))
    return document


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _no_number(name: str) -> None:
    raise Rejection(_bad(None, f"the body is not valid JSON: it has no {name}", "invalid_json"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Duplicate keys are an error, since a dict would silently drop one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        name = next(k for k, _ in pairs if k in seen or seen.add(k))[:64]  # type: ignore[func-returns-value]
        message = f"{name} appears twice in one object; send it once"
        raise Rejection(_bad(name, message, "duplicate_parameter"))
    return found


def _problem(invalid: InvalidField) -> Problem:
    param = invalid.path
    if invalid.code == "unknown_parameter":
        return _bad(param, f"{param} {invalid.reason}", invalid.code)
    if invalid.code == "missing_required_parameter":
        return _bad(param, f"{param} is required", invalid.code)
    return _bad(param, f"{param}: {invalid.reason}", invalid.code)


def _bad(param: str | None, message: str, code: str) -> Problem:
    return Problem(400, "invalid_request_error", message, param, code)
