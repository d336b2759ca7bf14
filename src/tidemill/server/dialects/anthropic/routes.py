"""The routes of Anthropic's dialect."""

from __future__ import annotations

from tidemill.server.dialects.anthropic import messages, models, schema
from tidemill.server.dialects.anthropic.errors import error_body
from tidemill.server.dialects.anthropic.translate import prompt_text
from tidemill.server.dialects.dialect import Dialect, Endpoint

ANTHROPIC = Dialect(
    "anthropic",
    (
        Endpoint(
            "POST",
            "/v1/messages",
            messages.create_message,
            schema.MessagesRequest,
            streams=("text/event-stream",),
        ),
        Endpoint(
            "POST",
            "/v1/messages/count_tokens",
            messages.count_tokens,
            schema.CountTokensRequest,
        ),
        Endpoint("GET", "/v1/models", models.anthropic_models),
        Endpoint("GET", "/v1/models/{model:path}", models.anthropic_model),
    ),
    error_body,
    prefixes=("/v1/messages",),
    render=prompt_text,
    not_served=dict.fromkeys(("/v1/messages/batches", "/v1/complete"), "/v1/messages"),
    header=messages.VERSION_HEADER,
    id_header="request-id",
)
