"""Errors name fields as the client sent them."""

from __future__ import annotations

import pytest

from tidemill.server.errors import Problem, named_as_sent, reject

NAMES = {
    "max_tokens": "max_output_tokens",
    "messages[2]": "input[1]",
    "messages[2].tool_call_id": "input[1].call_id",
    "response_format": "text.format",
}


@pytest.mark.parametrize(
    ("param", "message", "sent", "told"),
    [
        (
            "max_tokens",
            "max_tokens is 0",
            "max_output_tokens",
            "max_output_tokens: max_tokens is 0",
        ),
        (
            "messages[2].content",
            "messages[2].content is required",
            "input[1].content",
            "input[1].content is required",
        ),
        ("messages[2]", "messages[2] is wrong", "input[1]", "input[1] is wrong"),
        (
            "messages[2].tool_call_id",
            "messages[2].tool_call_id 'x' is no call",
            "input[1].call_id",
            "input[1].call_id 'x' is no call",
        ),
        (
            "response_format.schema.properties.a",
            "the keyword is unknown",
            "text.format.schema.properties.a",
            "text.format.schema.properties.a: the keyword is unknown",
        ),
        ("messages[22].content", "wrong", "messages[22].content", "wrong"),
        ("max_tokens_x", "wrong", "max_tokens_x", "wrong"),
        (None, "wrong", None, "wrong"),
    ],
)
def test_named_as_sent(param: str | None, message: str, sent: str | None, told: str) -> None:
    problem = named_as_sent(Problem(400, "invalid_request_error", message, param), NAMES)
    assert (problem.param, problem.message) == (sent, told)


def test_what_this_side_did_wrong_is_no_invalid_request() -> None:
    kinds = {status: reject(status, "no").problem.type for status in (400, 404, 502, 503, 508)}
    assert {status for status, kind in kinds.items() if kind == "server_error"} == {502, 503, 508}
