"""The routes of OpenAI's dialect, and of servers that extend it."""

from __future__ import annotations

from tidemill.server.dialects.dialect import ADMINS, Dialect, Endpoint
from tidemill.server.dialects.openai import (
    adapters,
    chat,
    completions,
    embeddings,
    models,
    rerank,
    schema,
)
from tidemill.server.dialects.openai import tokens as token_routes
from tidemill.server.dialects.openai.batches import ENDPOINTS as BATCHES
from tidemill.server.dialects.openai.errors import error_body
from tidemill.server.dialects.openai.responses.routes import ENDPOINTS as RESPONSES
from tidemill.server.dialects.openai.translate import prompt_text
from tidemill.server.dialects.openai.usage import ENDPOINTS as USAGE
from tidemill.server.dialects.resumable import ENDPOINTS as STREAMS

_EVENTS = ("text/event-stream",)

# Routes of other servers' native APIs, and the equivalent route here.
_NOT_SERVED = {
    "/v1beta/models": "/v1/chat/completions",
    "/responses": "/v1/responses",
}

OPENAI = Dialect(
    "openai",
    (
        Endpoint(
            "POST",
            "/v1/chat/completions",
            chat.chat_completions,
            schema.ChatRequest,
            streams=_EVENTS,
        ),
        Endpoint(
            "POST",
            "/v1/completions",
            completions.completions,
            schema.CompletionRequest,
            streams=_EVENTS,
        ),
        *RESPONSES,
        *BATCHES,
        Endpoint("POST", "/v1/embeddings", embeddings.embeddings, schema.EmbeddingRequest),
        Endpoint("POST", "/v1/rerank", rerank.rerank, schema.RerankRequest),
        Endpoint("POST", "/rerank", rerank.rerank, schema.RerankRequest),
        Endpoint("POST", "/v2/rerank", rerank.rerank, schema.RerankRequest),
        Endpoint("POST", "/v1/score", rerank.score, schema.ScoreRequest),
        Endpoint("POST", "/score", rerank.score, schema.ScoreRequest),
        Endpoint("GET", "/v1/models", models.list_models),
        Endpoint("GET", "/v1/models/{model:path}", models.get_model),
        *STREAMS,
        *USAGE,
        Endpoint(
            "POST",
            "/v1/load_lora_adapter",
            adapters.load_lora_adapter,
            adapters.LoadAdapterBody,
            roles=ADMINS,
        ),
        Endpoint(
            "POST",
            "/v1/unload_lora_adapter",
            adapters.unload_lora_adapter,
            adapters.UnloadAdapterBody,
            roles=ADMINS,
        ),
        Endpoint("POST", "/tokenize", token_routes.tokenize, schema.TokenizeRequest),
        Endpoint("POST", "/detokenize", token_routes.detokenize, schema.DetokenizeRequest),
    ),
    error_body,
    render=prompt_text,
    not_served=_NOT_SERVED,
)
