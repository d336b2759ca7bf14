"""Errors are as each dialect's part of the OpenAPI document says."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tidemill.server.app import DIALECTS
from tidemill.server.dialects.dialect import Dialect
from tidemill.server.errors import Problem

PROBLEMS = [
    Problem(400, "invalid_request_error", "n must be 1", "n", "invalid_value"),
    Problem(401, "invalid_request_error", "a key is required", None, "invalid_api_key"),
    Problem(404, "invalid_request_error", "there is no such model", "model", "model_not_found"),
    Problem(429, "rate_limit_error", "the queue is full", None, "overloaded"),
    Problem(500, "server_error", "internal error", None, "internal_error"),
    Problem(503, "server_error", "the engine is being replaced", None, "engine_unavailable"),
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_error_has_the_shape_that_is_described(dialect: Dialect) -> None:
    for problem in PROBLEMS:
        document = json.loads(dialect.error_body(problem))
        if dialect is not DIALECTS[0]:
            assert dialect.error_schema, "the first dialect's would be described"
            strict = {**dialect.error_schema, "additionalProperties": False}
            jsonschema.validate(document, strict)
        assert problem.message in json.dumps(document)
        assert problem.param is None or problem.param in json.dumps(document)
