"""The routes of llama.cpp's server that are not OpenAI's."""

from __future__ import annotations

from tidemill.server.dialects.dialect import ADMINS, Dialect, Endpoint
from tidemill.server.dialects.llamacpp import adapters, answers, schema, state, texts
from tidemill.server.dialects.llamacpp.errors import ERROR_SCHEMA, error_body

_EVENTS = ("text/event-stream",)

LLAMACPP = Dialect(
    "llamacpp",
    (
        *(
            Endpoint(
                "POST", path, answers.llama_completion, schema.LlamaCompletion, streams=_EVENTS
            )
            for path in ("/completion", "/completions")
        ),
        Endpoint("POST", "/infill", answers.llama_infill, schema.LlamaInfill, streams=_EVENTS),
        Endpoint("POST", "/apply-template", texts.llama_apply_template, schema.LlamaTemplate),
        *(
            Endpoint("POST", path, texts.llama_embedding, schema.LlamaEmbedding)
            for path in ("/embedding", "/embeddings")
        ),
        Endpoint("GET", "/props", state.llama_props),
        Endpoint("GET", "/slots", state.llama_slots),
        Endpoint("GET", "/lora-adapters", adapters.llama_adapters),
        Endpoint("POST", "/lora-adapters", adapters.llama_set_adapters, roles=ADMINS),
    ),
    error_body,
    error_schema=ERROR_SCHEMA,
)
