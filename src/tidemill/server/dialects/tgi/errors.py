"""TGI's shape of an error: `{"error", "error_type"}`."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem

_BY_STATUS = {
    401: "authentication",
    403: "authentication",
    408: "incomplete_generation",
    429: "overloaded",
    503: "overloaded",
}


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}


def error_body(problem: Problem) -> bytes:
    """The JSON document. Types are those that huggingface_hub knows, and ``authentication``."""
    failed = "generation" if problem.status >= 500 else "validation"
    kind = _BY_STATUS.get(problem.status, failed)
    return msgspec.json.encode({"error": problem.whole_message, "error_type": kind})
