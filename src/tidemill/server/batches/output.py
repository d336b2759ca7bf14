"""The lines of a batch's output and error files, as OpenAI's API has them."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.store.batches import Outcome, Result

FILES = {
    "output_file_id": ("output", (Outcome.SUCCEEDED,)),
    "error_file_id": ("error", (Outcome.FAILED, Outcome.EXPIRED)),
}
"""Per column of a batch: what its file is called, and the outcomes of the lines in it."""

_ENDED = {
    Outcome.EXPIRED: ("batch_expired", "the batch expired before this line was answered"),
    Outcome.CANCELLED: ("batch_cancelled", "the batch was cancelled before this line was answered"),
}


def output_line(batch_id: str, result: Result) -> bytes:
    """A line, with its line end."""
    response: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    if result.status is None:
        code, message = _ENDED[result.outcome]
        error = {"code": code, "message": message}
    else:
        response = {
            "status_code": result.status,
            "request_id": result.request_id,
            "body": _document(result.answer),
        }
    line = {
        "id": f"batch_req_{batch_id.rpartition('_')[2]}_{result.number}",
        "custom_id": result.custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(line) + b"\n"


def _document(answer: bytes) -> Any:
    """A JSON text as it is; anything else as a string."""
    try:
        msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return answer.decode("utf-8", "replace")
    return msgspec.Raw(answer)
