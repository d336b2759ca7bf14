"""Bodies of the batches of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tidemill.server.dialects.members import Body, checked, wrong_value

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
"""What the lines of a batch may ask."""

WINDOW_SECONDS = {"24h": 86400}
MAX_METADATA, MAX_NAME, MAX_VALUE = 16, 64, 512


def _check_endpoint(value: Any) -> None:
    if value not in ENDPOINTS:
        raise wrong_value(f"must be one of {', '.join(ENDPOINTS)}, got {value[:64]!r}")


def _check_window(value: Any) -> None:
    if value not in WINDOW_SECONDS:
        raise wrong_value(f"must be {' or '.join(WINDOW_SECONDS)}, got {value[:32]!r}")


def _check_metadata(value: Any) -> None:
    if len(value) > MAX_METADATA:
        raise wrong_value(f"has {len(value)} entries; at most {MAX_METADATA} are taken")
    for name, text in value.items():
        if len(name) > MAX_NAME or len(text) > MAX_VALUE:
            raise wrong_value(
                f"names have at most {MAX_NAME} characters and values at most {MAX_VALUE}"
            )


class ExpiresAfter(Body, kw_only=True):
    """When a batch's files are removed."""

    anchor: str = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=3600, le=2592000)]


class BatchRequest(Body, kw_only=True):
    """Body of POST /v1/batches.

    Attributes:
        input_file_id: of a file with the purpose ``batch``: a JSON object a line, with custom_id,
            method (POST), url (the same as `endpoint`) and body.
        endpoint: what every line asks.
        completion_window: after it, lines without an answer expire.
        metadata: kept and returned.
        output_expires_after: when the output and error files are removed.
    """

    input_file_id: str
    endpoint: Annotated[str, checked(_check_endpoint)]
    completion_window: Annotated[str, checked(_check_window)]
    metadata: Annotated[dict[str, str], checked(_check_metadata)] | None = None
    output_expires_after: ExpiresAfter | None = None
