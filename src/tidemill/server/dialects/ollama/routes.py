"""The routes of Ollama's API."""

from __future__ import annotations

from tidemill.server.dialects.dialect import ADMINS, Dialect, Endpoint
from tidemill.server.dialects.ollama import answers, embed, library, models, schema
from tidemill.server.dialects.ollama.errors import ERROR_SCHEMA, error_body

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
        Endpoint("POST", "/api/pull", library.ollama_pull, schema.OllamaPull, ADMINS, _LINES),
        Endpoint("POST", "/api/copy", library.ollama_copy, schema.OllamaCopy, ADMINS),
        Endpoint("DELETE", "/api/delete", library.ollama_delete, schema.OllamaDelete, ADMINS),
        Endpoint("POST", "/api/create", library.ollama_create, schema.OllamaCreate, ADMINS, _LINES),
        Endpoint("GET", "/api/blobs/{digest}", library.ollama_has_blob, roles=ADMINS),
        Endpoint("POST", "/api/blobs/{digest}", library.ollama_blob, roles=ADMINS),
        Endpoint("POST", "/api/push", library.ollama_push, schema.OllamaPush, ADMINS),
    ),
    error_body,
    error_schema=ERROR_SCHEMA,
    prefixes=("/api/",),
)
