"""Bounds that keep one client from taking the API process down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the HTTP API.

    Attributes:
        max_body_bytes: a longer body is a 413.
        body_timeout: seconds in which a body must have arrived, else 408.
        max_prompts: prompts of one completions request.
        max_active_choices: choices being generated at once over all requests, else 429.
    """

    max_body_bytes: int = 16 * 2**20
    body_timeout: float = 60.0
    max_prompts: int = 256
    max_active_choices: int = 4096
