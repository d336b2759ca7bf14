"""The lines that `serve` prints when it is ready: an example request and client settings."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from tidemill.server.host.served import ServedModel

# The bundled model answers it, too.
_MESSAGE = "Who are you?"

_WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # nosec B104: addresses to replace


def first_steps(model: ServedModel, url: str, *, closed: bool) -> list[str]:
    """An example request for a shell, and the settings of an OpenAI client.

    Args:
        model: the served model.
        url: the address of the server.
        closed: whether the server requires a key.
    """
    parts = urlsplit(url)
    host = _WILDCARD_ADDRESSES.get(parts.hostname or "")
    if host is not None:
        url = parts._replace(netloc=f"{host}:{parts.port}").geturl()
    path, body = _example(model)
    key = " -H 'Authorization: Bearer YOUR_KEY'" if closed else ""
    sent = json.dumps(body)
    return [
        f"try: curl {url}{path} -H 'Content-Type: application/json'{key} -d '{sent}'",
        f"OpenAI clients: base URL {url}/v1, {'an API key of yours' if closed else 'any API key'}",
    ]


def _example(model: ServedModel) -> tuple[str, dict[str, Any]]:
    if not model.info.generates:
        if model.info.vectors.head == "score":
            return "/v1/score", {"text_1": "What is a tide?", "text_2": "The sea rises and falls."}
        return "/v1/embeddings", {"input": "The sea rises and falls."}
    if not model.template.exists:
        return "/v1/completions", {"prompt": "The tide", "max_tokens": 32}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": _MESSAGE}]}
