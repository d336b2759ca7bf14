"""Mutations: of bytes, and of JSON documents."""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = [
    b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x00\x00\x00\x00\x00\x00\x00\x80",
    b"\x01\x00\x00\x00", b"\x00\x00\x00\x40\x00\x00\x00\x00",
]  # fmt: skip
_TEXTS = [
    b"99999999999999999999", b"-1", b"1e308", b"[" * 300, b"{" * 50, b'"' * 3, b"null", b"NaN",
    b"\\ud800", b"0.0000001", b"true", b"[]", b"{}", b",", b":",
]  # fmt: skip
_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, -1e308, "", "x" * 3000, "\x00", [], {}, [[]],
    [-1], {"a": {"a": {}}}, ["a"] * 50, [2**62, 2**62, 2**62],
]  # fmt: skip


def mutate_bytes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A few changes of `data`, some with pieces of `other`."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        # Headers come first, and decide.
        at = min(at, rng.choice((64, 1024, len(out))))
        kind = rng.randrange(8)
        if kind == 0 and out:
            at = min(at, len(out) - 1)
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[min(at, len(out) - 1)] = rng.randrange(256)
        elif kind == 2:
            word = rng.choice(_WORDS)
            out[at : at + len(word)] = word
        elif kind == 3:
            del out[at : at + rng.choice((1, 4, 8, 100))]
        elif kind == 4:
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start : start + rng.choice((1, 8, 64, 512))]
        elif kind == 5:
            length = rng.choice((1, 8, 64))
            out[at:at] = out[at : at + length] * rng.choice((1, 2, 30))
        elif kind == 6:
            text = rng.choice(_TEXTS)
            out[at : at + rng.choice((0, 1, len(text)))] = text
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


def mutate_json(document: Any, rng: random.Random) -> bytes:
    """The document with one or a few of its values replaced, moved, left out or doubled."""
    changed = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 2, 3))):
        nodes: list[tuple[Any, Any]] = []
        _collect(changed, nodes)
        if not nodes:
            break
        parent, key = rng.choice(nodes)
        kind = rng.randrange(5)
        if kind < 3:
            parent[key] = json.loads(json.dumps(rng.choice(_VALUES)))
        elif kind == 3:
            del parent[key]
        else:
            other_parent, other_key = rng.choice(nodes)
            parent[key] = json.loads(json.dumps(other_parent.get(other_key) if isinstance(
                other_parent, dict) else other_parent[other_key]))  # fmt: skip
    return json.dumps(changed).encode()


def _collect(value: Any, nodes: list[tuple[Any, Any]], depth: int = 0) -> None:
    if depth > 12 or len(nodes) > 400:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        nodes.append((value, key))
        if isinstance(inner, dict | list):
            _collect(inner, nodes, depth + 1)
