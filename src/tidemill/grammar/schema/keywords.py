"""The table of JSON Schema's keywords: enforced, annotations, and rejected."""

from __future__ import annotations

MAX_DEPTH = 60
MAX_NODES = 20_000
MAX_ENUM = 10_000
"""Limits of a schema: nesting levels, nodes, values of an enum. It then compiles in about 0.1 s."""

# Limits of one object. Every optional property can come next, and the parser limits the items of a
# state (2,000 per row, four per property).
MAX_PROPERTIES = 2_000
MAX_OPTIONAL = 450

MAX_ALL_OF = 500
"""Parts of one allOf."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "id", "$anchor", "$vocabulary", "contentEncoding",
    "contentMediaType", "contentSchema", "externalDocs", "xml",
})  # fmt: skip
ENFORCED = frozenset({
    "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "minLength", "maxLength",
    "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions", "minProperties",
    "maxProperties", "uniqueItems", "propertyNames", "discriminator", "nullable", "not",
})  # fmt: skip
# Keyword -> what to write instead.
REJECTED = {
    "if": "use anyOf with one alternative per case",
    "then": "use anyOf with one alternative per case",
    "else": "use anyOf with one alternative per case",
    "contains": "describe the items with items or prefixItems",
    "minContains": "describe the items with items or prefixItems",
    "maxContains": "describe the items with items or prefixItems",
    "dependentRequired": "use anyOf with one alternative per set of properties",
    "dependentSchemas": "use anyOf with one alternative per set of properties",
    "dependencies": "use anyOf with one alternative per set of properties",
    "unevaluatedProperties": "use additionalProperties in one flat object",
    "unevaluatedItems": "use items with prefixItems",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "$dynamicAnchor": "use $anchor and $ref",
    "$recursiveAnchor": "use $ref",
}
# Neutral values of keywords.
TRIVIAL: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "nullable": (False,),
    "not": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}),
    "$recursiveAnchor": (False,),
}

REF_SIBLINGS = frozenset({"$ref", "$defs", "definitions"})
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
LISTS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
ONE = frozenset({"additionalProperties", "additionalItems", "items", "propertyNames", "not"})


def is_annotation(key: str) -> bool:
    """The keyword does not affect validation; vendor extensions (``x-...``) never do."""
    return key in ANNOTATIONS or key.startswith("x-")
