"""`logit_bias`: a map, or llama.cpp's list of pairs; tokens by their ids or by their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from tidemill.server.dialects.members import checked, wrong_type, wrong_value

MAX_TEXT_CHARS = 1024
_BANNED = -100.0
_INT32 = 2**31

Biases = tuple[dict[int, float], tuple[tuple[str, float], ...]]
"""Token id -> bias, and pairs of a text and the bias of each of its tokens."""


def biases_of(value: Any) -> Biases:
    """The biases of a request; `false` bans a token.

    Keys of a map are ids where they are numbers, and texts else. In pairs, numbers are ids and
    strings are texts.

    Raises:
        InvalidField: it is no map and no list of pairs.
    """
    ids: dict[int, float] = {}
    texts: list[tuple[str, float]] = []
    for token, bias in _pairs(value):
        if type(bias) not in (int, float) and bias is not False:
            raise wrong_type(f"the bias of {str(token)[:32]} must be a number or false")
        amount = _BANNED if bias is False else float(bias)
        if isinstance(token, str):
            if not 1 <= len(token) <= MAX_TEXT_CHARS:
                raise wrong_value(f"texts have 1 to {MAX_TEXT_CHARS} characters")
            texts.append((token, amount))
        elif type(token) is int and 0 <= token < _INT32:
            ids[token] = amount
        else:
            raise wrong_value(f"a token is an id from 0 on or a text, got {str(token)[:32]}")
    return ids, tuple(texts)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return [(_key(key), bias) for key, bias in value.items()]
    if not isinstance(value, list):
        raise wrong_type("expected an object, or a list of pairs of a token and its bias")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise wrong_type("expected pairs of a token and its bias")
    return [(pair[0], pair[1]) for pair in value]


def _key(key: str) -> int | str:
    # int() would take signs, spaces, underscores and other scripts' digits.
    if key.isascii() and key.isdigit() and len(key) < 20:
        return int(key)
    if key.strip().lstrip("+-").isdigit():
        raise wrong_value(f"a key that is a number must be a token id such as '42', got {key[:32]}")
    return key


def _check(value: Any) -> None:
    biases_of(value)


_NUMBER = {"type": "number"}
_BIAS = {"anyOf": [_NUMBER, {"const": False}]}
_PAIR = {"type": "array", "prefixItems": [{"type": ["integer", "string"]}, _BIAS]}

LogitBias = Annotated[
    Any,
    checked(
        _check,
        {
            "anyOf": [
                {"type": "object", "additionalProperties": _BIAS},
                {"type": "array", "items": _PAIR},
                {"type": "null"},
            ]
        },
    ),
]


def bans_of(value: Any) -> dict[int, float]:
    """Banned tokens: a list of ids, or a text of ids with commas between them, as
    text-generation-webui has it.

    Raises:
        InvalidField: it is neither.
    """
    ids = value
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        ids = [int(part) if part.isascii() and part.isdigit() else part for part in parts]
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < _INT32 for i in ids):
        raise wrong_type('expected a list of token ids, or "1, 2, 3"')
    return dict.fromkeys(ids, _BANNED)


def _check_bans(value: Any) -> None:
    bans_of(value)


_IDS = {"type": "array", "items": {"type": "integer"}}
TokenBans = Annotated[
    Any, checked(_check_bans, {"anyOf": [_IDS, {"type": "string"}, {"type": "null"}]})
]
