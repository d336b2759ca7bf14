"""The routes of the Open Inference Protocol, with and without a version in the path."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.server.access.keys import Role
from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.kserve import handlers, models, schema
from tidemill.server.dialects.kserve.errors import ERROR_SCHEMA, error_body

_EVENTS = ("text/event-stream",)
_ADMINS = frozenset({Role.ADMIN})
_MODEL = "/v2/models/{model:path}"


def _of_models(base: str) -> Iterator[Endpoint]:
    yield Endpoint("GET", f"{base}/ready", models.model_ready)
    yield Endpoint("GET", f"{base}/config", models.config)
    yield Endpoint("GET", f"{base}/stats", models.statistics)
    yield Endpoint("POST", f"{base}/infer", handlers.infer, schema.KserveInfer)
    yield Endpoint("POST", f"{base}/generate", handlers.generate, schema.KserveGenerate)
    yield Endpoint(
        "POST",
        f"{base}/generate_stream",
        handlers.generate_stream,
        schema.KserveStream,
        streams=_EVENTS,
    )
    yield Endpoint("GET", base, models.metadata)


KSERVE = Dialect(
    "kserve",
    (
        Endpoint("GET", "/v2", models.server),
        Endpoint("GET", "/v2/health/live", models.live),
        Endpoint("GET", "/v2/health/ready", models.ready),
        Endpoint("GET", "/v2/models/stats", models.statistics),
        *_of_models(_MODEL + "/versions/{version}"),
        *_of_models(_MODEL),
        Endpoint("POST", "/v2/repository/index", models.index),
        Endpoint("POST", "/v2/repository/models/{model:path}/load", models.load, roles=_ADMINS),
        Endpoint("POST", "/v2/repository/models/{model:path}/unload", models.unload, roles=_ADMINS),
    ),
    error_body,
    error_schema=ERROR_SCHEMA,
    prefixes=("/v2/models", "/v2/repository", "/v2/health"),
)
