"""JSON schemas of the bodies' untyped members, for the OpenAPI document.

`text.constraints`, `text.tools` and `text.conversation`, which the offline API shares, validate
these members; this module describes what they accept.
"""

from __future__ import annotations

from typing import Any

JsonSchema = dict[str, Any]

_STRING: JsonSchema = {"type": "string"}
_BOOLEAN: JsonSchema = {"type": "boolean"}
_STRINGS: JsonSchema = {"type": "array", "items": _STRING, "minItems": 1}
_NULL: JsonSchema = {"type": "null"}
_ANYTHING: JsonSchema = {}
_ANY_SCHEMA: JsonSchema = {"anyOf": [{"type": "object"}, _BOOLEAN]}


def _object(required: dict[str, JsonSchema], optional: dict[str, JsonSchema]) -> JsonSchema:
    maybe = {name: _or_null(schema) for name, schema in optional.items()}
    return {
        "type": "object",
        "properties": {**required, **maybe},
        "required": list(required),
        "additionalProperties": False,
    }


def _or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, _NULL]}


def _array(items: JsonSchema, least: int = 0) -> JsonSchema:
    return {"type": "array", "items": items, "minItems": least}


_KIND_FUNCTION: JsonSchema = {"const": "function"}
_NAMED: JsonSchema = _object({"name": _STRING}, {})
_REFERENCE: JsonSchema = _object({"type": _KIND_FUNCTION, "function": _NAMED}, {})
_FUNCTION: JsonSchema = _object(
    {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}},
    {
        "description": _STRING,
        "parameters": {"type": "object"},
        "strict": _BOOLEAN,
        "return": {},
        "response": {},
    },
)

TOOLS: JsonSchema = _or_null(
    _array(_object({"function": _FUNCTION}, {"type": _KIND_FUNCTION, "cache_control": {}}))
)
TOOL_CHOICE: JsonSchema = {
    "anyOf": [
        {"enum": ["none", "auto", "required", "any", None]},
        _REFERENCE,
        _object(
            {
                "type": {"const": "allowed_tools"},
                "allowed_tools": _object(
                    {"mode": {"enum": ["auto", "required"]}, "tools": _array(_REFERENCE, 1)}, {}
                ),
            },
            {},
        ),
    ]
}
TOOL_CALLS: JsonSchema = _or_null(
    _array(
        _object(
            {
                "function": _object(
                    {"name": _STRING},
                    {
                        "arguments": {"anyOf": [_STRING, {"type": "object"}]},
                        **dict.fromkeys(
                            ("parsed_arguments", "description", "parameters", "strict"), _ANYTHING
                        ),
                    },
                )
            },
            {
                "id": _STRING,
                "type": _KIND_FUNCTION,
                "index": {"type": "integer"},
                **dict.fromkeys(
                    (
                        *("cache_control", "extra_content", "provider_specific_fields"),
                        *("thought_signature", "status"),
                    ),
                    _ANYTHING,
                ),
            },
        )
    )
)

_STRUCTURE: JsonSchema = _object({"begin": _STRING, "end": _STRING}, {"schema": _ANY_SCHEMA})
_TAG: JsonSchema = _object(
    {
        "begin": _STRING,
        "content": _object({"type": {"const": "json_schema"}, "json_schema": _ANY_SCHEMA}, {}),
        "end": _STRING,
    },
    {"type": {"const": "tag"}},
)
_TRIGGERED: JsonSchema = _object(
    {"type": {"const": "triggered_tags"}, "triggers": _STRINGS, "tags": _array(_TAG, 1)}, {}
)
_KIND_TAG: JsonSchema = {"const": "structural_tag"}
_BY_STRUCTURES: dict[str, JsonSchema] = {
    "structures": _array(_STRUCTURE, 1),
    "triggers": _STRINGS,
}

JSON_SCHEMA: JsonSchema = _or_null({"anyOf": [_STRING, {"type": "object"}, _BOOLEAN]})
RESPONSE_FORMAT: JsonSchema = {
    "anyOf": [
        _NULL,
        _object({"type": {"enum": ["text", "json_object"]}}, {}),
        _object(
            {
                "type": {"const": "json_schema"},
                "json_schema": _object(
                    {"schema": _ANY_SCHEMA},
                    {"name": _STRING, "description": _STRING, "strict": _BOOLEAN},
                ),
            },
            {},
        ),
        _object({"type": _KIND_TAG, **_BY_STRUCTURES}, {}),
        _object({"type": _KIND_TAG, "format": _TRIGGERED}, {}),
    ]
}
STRUCTURED_OUTPUTS: JsonSchema = _or_null(
    _object(
        {},
        {
            "json": {"anyOf": [_STRING, {"type": "object"}]},
            "regex": _STRING,
            "choice": _STRINGS,
            "grammar": _STRING,
            "json_object": _BOOLEAN,
            "structural_tag": {
                "anyOf": [
                    _STRING,
                    _object(_BY_STRUCTURES, {"type": _KIND_TAG}),
                    _object({"format": _TRIGGERED}, {"type": _KIND_TAG}),
                ]
            },
        },
    )
)
