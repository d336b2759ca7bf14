"""Answers that a model might give, in place of the server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from helpers.web_page import Page

if TYPE_CHECKING:
    from playwright.sync_api import Route


def answer_with(page: Page, pieces: Sequence[str], **more: Any) -> None:
    """Every chat of the page is answered by these pieces; `more` are members of the first delta."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", **more}]
    deltas += [{"content": piece} for piece in pieces]
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": len(pieces)}
    texts = [json.dumps(chunk) for chunk in (*chunks, {"choices": [], "usage": usage})]
    events = [*texts, "[DONE]"]
    body = "".join(f"id: a:{n}\ndata: {text}\n\n" for n, text in enumerate(events))

    def answer(route: Route) -> None:
        route.fulfill(body=body, content_type="text/event-stream")

    page.page.route("**/v1/chat/completions", answer)
