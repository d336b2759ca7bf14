"""Sizes inside a JSON body, checked before it is validated.

The shape of the text (depth, number of containers and keys) is checked first, by a scan that
allocates no objects: a validator could report a million errors of a kilobyte each. The sizes of
fields follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.base.errors import TidemillError, bad_request
from tidemill.server.access.limits import Limits

_CHUNK = 2**18
"""Bytes that are scanned without releasing the GIL."""

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

# field -> bound on its number of items
_COUNTS = {
    "messages": "max_messages",
    "tools": "max_tools",
    "functions": "max_tools",
    "stop": "max_stop",
    "stop_sequences": "max_stop",
    "stop_token_ids": "max_stop_token_ids",
    "logit_bias": "max_logit_bias",
    "bad_words": "max_logit_bias",
}
# field -> bound on its value
_VALUES = {
    "n": "max_n",
    "best_of": "max_n",
    "beam_width": "max_n",
    "num_beams": "max_n",
    "logprobs": "max_logprobs",
    "top_logprobs": "max_logprobs",
}
# Fields that hold a schema or a grammar, or contain one.
_SCHEMAS = (
    *("response_format", "structured_outputs", "json_schema", "grammar"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)


def check_shape(body: bytes, limits: Limits) -> None:
    """Reject JSON text that is nested too deeply or has too many parts.

    Invalid JSON passes; the parser reports it.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    counts = dict.fromkeys((b"[", b"{", b":", b","), 0)
    nests: list[bytes] = []
    for bare in _outside_strings(body):
        for sign in counts:
            counts[sign] += bare.count(sign)
        for what, count, most in (
            ("objects and lists", counts[b"["] + counts[b"{"], limits.max_json_nodes),
            ("keys", counts[b":"], limits.max_json_nodes),
            ("values", counts[b","], limits.max_json_values),
        ):
            if count > most:
                raise bad_request(None, f"the body has more than {most} {what}")
        nests.append(bare.translate(_BRACKETS, _ALL_BUT_BRACKETS))
    nest = b"".join(nests)
    # Each round removes the innermost pairs, so the number of rounds is the depth.
    for _ in range(limits.max_json_depth):
        less = nest.replace(b"[]", b"")
        if len(less) == len(nest):
            return
        nest = less
    if b"[]" in nest:
        raise bad_request(
            None, f"the body is nested more deeply than {limits.max_json_depth} levels"
        )


def _outside_strings(body: bytes) -> Iterator[bytes]:
    # Without escapes, every quotation mark opens or closes a string. Escapes occur only in strings;
    # otherwise the text is invalid JSON and the counts do not matter.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = False
    for start in range(0, len(plain), _CHUNK):
        parts = plain[start : start + _CHUNK].split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0


def check_fields(document: Mapping[str, Any], limits: Limits) -> None:
    """Reject fields of a request that are too large; types are not checked.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field, the bound and what was sent.
    """
    for name, bound in _COUNTS.items():
        value, most = document.get(name), getattr(limits, bound)
        if isinstance(value, (list, dict)) and len(value) > most:
            raise _too_much(name, len(value), most, "items", name)
    for name, bound in _VALUES.items():
        value, most = document.get(name), getattr(limits, bound)
        if type(value) is int and value > most:
            # A number with thousands of digits is not repeated in the message.
            got = str(value) if value < 2**63 else "more than 64 bits hold"
            raise bad_request(name, f"{name} must be at most {most}, got {got}")
    for name in ("stop", "stop_sequences"):
        _check_stops(name, document.get(name), limits)
    for name, schema in _schemas(document):
        check_schema(name, schema, limits)


def _check_stops(name: str, stop: Any, limits: Limits) -> None:
    for text in stop if isinstance(stop, list) else [stop]:
        if isinstance(text, str) and len(text) > limits.max_stop_chars:
            raise _too_much(name, len(text), limits.max_stop_chars, "characters", name)


def _schemas(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _SCHEMAS:
        if document.get(name) is not None:
            yield name, document[name]
    for name in ("tools", "functions"):
        tools = document.get(name)
        for index, tool in enumerate(tools if isinstance(tools, list) else ()):
            yield f"{name}[{index}]", tool


def check_schema(name: str, schema: Any, limits: Limits) -> None:
    """Reject a schema or grammar that is too large; see `check_fields`."""
    if isinstance(schema, (str, bytes)):
        size, depth = len(schema), 0
    else:
        # `check_shape` has bounded the depth, so the recursion is bounded.
        size, depth = len(json.dumps(schema, ensure_ascii=False)), _depth(schema)
    if size > limits.max_schema_bytes:
        raise _too_much(name, size, limits.max_schema_bytes, "characters", name)
    if depth > limits.max_schema_depth:
        raise bad_request(
            name, f"{name} is nested {depth} levels deep; at most {limits.max_schema_depth}"
        )


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _too_much(
    subject: str, got: int, most: int, what: str, param: str | None = None
) -> TidemillError:
    return bad_request(param, f"{subject} has {got} {what}; at most {most} are taken")
