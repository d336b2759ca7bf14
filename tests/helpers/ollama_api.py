"""Ollama's API over HTTP, to a model that writes what a test says."""

from __future__ import annotations

import json
from typing import Any

from helpers.marked_model import ASK, Model

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


class Ollama:
    """See the module docstring."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.http = model.http
        self.engine = model.engine

    def lines(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The lines of a stream."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines()]

    def both(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer, whole and streamed, which must agree."""
        response = self.http.post(path, json={**body, "stream": False})
        assert response.status_code == 200, response.text
        whole: dict[str, Any] = response.json()
        assert _plain(_joined(self.lines(path, **body))) == _plain(whole)
        return whole

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        """The answer of a chat whose model writes `text`."""
        self.model.text = text
        return self.both("/api/chat", **{"model": "tiny", "messages": ASK, **body})

    def refused(self, path: str = "/api/chat", status: int = 400, **body: Any) -> str:
        """The error of a request that must be refused."""
        known = {"prompt": "a"} if path == "/api/generate" else {"messages": ASK}
        answer = self.http.post(path, json={"model": "tiny", **known, **body})
        assert answer.status_code == status, answer.text
        (error,) = answer.json().items()
        assert error[0] == "error"
        return str(error[1])


def _joined(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that a stream's lines make."""
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    found: dict[str, Any] = {}
    for line in lines:
        _join(found, line)
    return found


def _join(found: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _join(found.setdefault(name, {}), value)
        elif isinstance(value, list) or name in ("content", "thinking", "response"):
            found[name] = found.get(name, type(value)()) + value
        else:
            found[name] = value


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what is measured or drawn."""
    drawn = ("created_at", "id", *DURATIONS)
    kept = {name: value for name, value in answer.items() if name not in drawn}
    for name, value in kept.items():
        if isinstance(value, dict):
            kept[name] = _plain(value)
        elif isinstance(value, list):
            kept[name] = [_plain(one) if isinstance(one, dict) else one for one in value]
    return kept
