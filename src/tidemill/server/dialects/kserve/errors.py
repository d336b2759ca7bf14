"""The protocol's shape of an error: `{"error"}`."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem


def error_body(problem: Problem) -> bytes:
    """The JSON document; the message names the field."""
    message, param = problem.message, problem.param
    if param and param not in message:
        message = f"{param}: {message}"
    return msgspec.json.encode({"error": message})
