"""The `response` object: what a request asked for, as it was understood, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.clock import wall
from tidemill.base.ids import created_at
from tidemill.contract.sampling import SamplingParams
from tidemill.server.dialects.openai.responses.schema import ResponseRequest
from tidemill.server.dialects.openai.responses.tools import Tools
from tidemill.server.errors import Problem
from tidemill.server.host.generation import Generation

Response = dict[str, Any]

# status of an HTTP error -> code of a response's error; the type has few
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


@dataclass(slots=True)
class Answered:
    """The parts of a response that follow from the request.

    Attributes:
        id: of the response.
        body: the request's.
        tools: of the request.
        model: the name that the answer carries.
        fingerprint: see `ServedModel.fingerprint`.
        conversation: to which it belongs.
        sampling: resolved; None before the request is prepared.
        notices: what the client should know: tools that were left out, items that were dropped.
        created: seconds since the epoch.
    """

    id: str
    body: ResponseRequest
    tools: Tools
    model: str = ""
    fingerprint: str = ""
    conversation: str | None = None
    sampling: SamplingParams | None = None
    notices: list[dict[str, Any]] = field(default_factory=list)
    created: float = field(default_factory=lambda: int(created_at()))

    def document(self, status: str, output: list[dict[str, Any]], **more: Any) -> Response:
        """The object, with the members that clients' types require.

        Args:
            status: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
            output: the items so far.
            more: further members.
        """
        body, sampling = self.body, self.sampling
        text = body.text
        found: Response = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "completed_at": int(wall()) if status == "completed" else None,
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_tokens,
            "max_tool_calls": None,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": body.reasoning.effort if body.reasoning else None,
                "summary": body.reasoning.summary if body.reasoning else None,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": _tier(body),
            "store": body.store is not False,
            "temperature": _known(sampling, "temperature", body),
            "text": {
                "format": (text.format if text else None) or {"type": "text"},
                "verbosity": (text.verbosity if text else None) or "medium",
            },
            "tool_choice": body.tool_choice or "auto",
            "tools": self.tools.echoed,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": _known(sampling, "top_p", body),
            "presence_penalty": _known(sampling, "presence_penalty", body),
            "frequency_penalty": _known(sampling, "frequency_penalty", body),
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "metadata": dict(body.metadata or {}),
            "system_fingerprint": self.fingerprint,
        }
        if self.conversation is not None:
            found["conversation"] = {"id": self.conversation}
        if self.notices:
            found["notices"] = self.notices
        return {**found, **more}

    def failed(self, problem: Problem, output: list[dict[str, Any]]) -> Response:
        """The object of a response that failed."""
        error = {"code": _CODES.get(problem.status, "server_error"), "message": problem.message}
        return self.document("failed", output, error={**error, "param": problem.param})


def _known(sampling: SamplingParams | None, name: str, body: ResponseRequest) -> Any:
    value = getattr(body if sampling is None else sampling, name)
    return _NEUTRAL[name] if value is None else value


_NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def _tier(body: ResponseRequest) -> str:
    return body.service_tier if body.service_tier in ("flex", "priority") else "default"


def usage(generation: Generation) -> dict[str, Any]:
    """The usage object."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": generation.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": generation.reasoning_tokens},
        "total_tokens": prompt + completion,
    }
