"""Constraints made to be slow, as the fields of a chat request."""

from __future__ import annotations

from typing import Any


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for i in range(depth):
        schema = {"type": "object", "properties": {f"k{i}": schema}, "required": [f"k{i}"]}
    return schema


def forms(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


def branches(depth: int) -> dict[str, Any]:
    """anyOf in anyOf, every branch alike up to its end."""
    if depth == 0:
        return {"type": "string", "pattern": "^(a|aa|aaa)*b$"}
    return {"anyOf": [{"type": "object", "properties": {"k": branches(depth - 1), f"n{i}": {}}}
                      for i in range(3)]}  # fmt: skip


HOSTILE: dict[str, dict[str, Any]] = {
    "counted": {"guided_regex": "((a{1,500}){1,500}){1,500}b"},
    "ambiguous": {"guided_regex": "(a|a|aa|(a|aa)*)*(a|b)*a(a|b){12}c"},
    "alternatives": {"guided_regex": "|".join(f"{'x' * (i % 97)}{i}.*y" for i in range(3000))},
    "classes": {"guided_regex": r"(\w|\p{L}|\d){1,900}[\w\s]*!"},
    "deep": forms(nested(58)),
    "deeper": forms(nested(400)),
    "wide": forms({"type": "object", "properties": {f"p{i}": {"type": "string"}
                                                    for i in range(6000)}}),
    "enum": forms({"enum": [f"value {i} {'x' * 12}" for i in range(9999)]}),
    "anyof": forms(branches(6)),
    "patterns": forms({"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": f"^(a|b)*a(a|b){{{i % 9 + 6}}}$"}
        for i in range(40)}}),
    "lengths": forms({"type": "array", "items": {"type": "string", "maxLength": 100000},
                      "maxItems": 100000}),
    "multiple": forms({"type": "number", "multipleOf": 0.000013, "minimum": 0.1}),
    "grammar": {"guided_grammar": 'start: a\na: a a | "x" | "x" a "x" | '},
    "recursion": {"guided_grammar": "start: " + " | ".join(f"r{i}" for i in range(400)) + "\n"
                  + "\n".join(f'r{i}: "a" r{(i * 7) % 400} | r{(i * 3) % 400} "b" | "c"'
                              for i in range(400))},
    "choice": {"guided_choice": ["a" * i for i in range(1, 2000)]},
}  # fmt: skip
