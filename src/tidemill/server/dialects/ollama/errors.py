"""Ollama's shape of an error: `{"error": "..."}`, within a stream as a line."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem


def error_body(problem: Problem) -> bytes:
    """The JSON document."""
    return msgspec.json.encode({"error": problem.whole_message})
