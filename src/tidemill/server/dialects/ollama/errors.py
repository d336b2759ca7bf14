"""Ollama's shape of an error: `{"error": "..."}`, within a stream as a line."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def error_body(problem: Problem) -> bytes:
    """The JSON document."""
    return msgspec.json.encode({"error": problem.whole_message})
