"""The routes of TGI's dialect."""

from __future__ import annotations

from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.tgi import generate
from tidemill.server.dialects.tgi.errors import ERROR_SCHEMA, error_body
from tidemill.server.dialects.tgi.info import info
from tidemill.server.dialects.tgi.schema import TgiGenerateRequest, TgiRequest, TgiStreamRequest

_EVENTS = ("text/event-stream",)

TGI = Dialect(
    "tgi",
    (
        Endpoint("POST", "/generate", generate.generate, TgiGenerateRequest),
        Endpoint(
            "POST", "/generate_stream", generate.generate_stream, TgiStreamRequest, streams=_EVENTS
        ),
        Endpoint("POST", "/", generate.generate_either, TgiRequest, streams=_EVENTS),
        Endpoint("GET", "/info", info),
    ),
    error_body,
    error_schema=ERROR_SCHEMA,
    prefixes=("/generate",),
)
