"""OpenAI's shape of an error: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem


def error_body(problem: Problem) -> bytes:
    """The JSON document."""
    error = {
        "message": problem.message,
        "type": problem.type,
        "param": problem.param,
        "code": problem.code,
    }
    return msgspec.json.encode({"error": error})
