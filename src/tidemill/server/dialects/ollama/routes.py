"""The routes of Ollama's API."""

from __future__ import annotations

from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.ollama import answers, embed, models, schema
from tidemill.server.dialects.ollama.errors import error_body

_LINES = ("application/x-ndjson",)

OLLAMA = Dialect(
    "ollama",
    (
        Endpoint("POST", "/api/chat", answers.ollama_chat, schema.OllamaChat, streams=_LINES),
        Endpoint(
            "POST",
            "/api/generate",
            answers.ollama_generate,
            schema.OllamaGenerate,
            streams=_LINES,
        ),
        Endpoint("POST", "/api/embed", embed.ollama_embed, schema.OllamaEmbed),
        Endpoint("POST", "/api/embeddings", embed.ollama_embeddings, schema.OllamaEmbeddings),
        Endpoint("GET", "/api/tags", models.ollama_tags),
        Endpoint("GET", "/api/ps", models.ollama_ps),
        Endpoint("POST", "/api/show", models.ollama_show, schema.OllamaShow),
        Endpoint("GET", "/api/version", models.ollama_version),
    ),
    error_body,
    prefixes=("/api/",),
)
