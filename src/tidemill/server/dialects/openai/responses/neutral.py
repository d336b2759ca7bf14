"""Fields of Responses bodies beyond those that the schema declares; see `openai.neutral`."""

from __future__ import annotations

from tidemill.server.dialects.fields import ANY, Alias, Fields, Neutral
from tidemill.server.dialects.openai import neutral

# Declared by `schema.ResponseRequest` with meanings of its own.
_DECLARED = ("truncation", "store", "conversation_id")

REQUEST: Fields = {
    **{name: known for name, known in neutral.GENERATION.items() if name not in _DECLARED},
    **neutral.ANSWERS,
    "thinking_budget": Alias("thinking_token_budget"),
    "client_metadata": Neutral(kinds=(dict,), feature="values that are no objects"),
    "max_tool_calls": Neutral(
        kinds=(int,), feature="values that are no integers"
    ),  # it bounds the calls of tools that the server runs, and this server runs none
    "context_management": Neutral(([],), feature="compaction"),
    "prompt": Neutral(feature="stored prompts", instead="send instructions and input"),
    "messages": Neutral(feature="messages here", instead="send them as input"),
    "generate": Neutral((True,), feature="requests that generate nothing"),
    "logprobs": Neutral(
        (False,),
        feature="logprobs by this name",
        instead='send include: ["message.output_text.logprobs"]',
    ),
    "reasoning_effort": Neutral(
        feature="reasoning_effort here", instead='send reasoning: {"effort": ...}'
    ),
    "verbosity": Neutral(feature="verbosity here", instead='send text: {"verbosity": ...}'),
    "modalities": Neutral((["text"],), feature="other modalities than text"),
    "image": Neutral(({},), feature="images"),
    "access_programs": Neutral(({},), feature="access programs"),
    "background_options": Neutral(
        test=lambda value: (
            isinstance(value, dict)
            and value.get("completion_window", "soonest") == "soonest"
            and not set(value) - {"completion_window"}
        ),
        shown='{"completion_window": "soonest"}',
        feature="a time in which background responses start",
    ),
    "n": Neutral((1,)),
    "include": Neutral(([],)),
    "metadata": Neutral(({},)),
    "tools": Neutral(([],)),
    "top_logprobs": Neutral((0,)),
    "text": Neutral(({},)),
    "reasoning": Neutral(({},)),
    "background": Neutral((False,)),
}

STREAM_OPTIONS: Fields = {
    **neutral.STREAM_OPTIONS,
    "include_usage": Neutral(kinds=(bool,)),  # the last event has it always
}

REASONING: Fields = {
    "context": Neutral(
        ("auto", "current_turn"), feature="a choice of turns whose thinking is shown"
    ),
    "mode": Neutral(("standard",), feature="modes of thinking"),
}

TEXT: Fields = {}

# Members of items that say nothing to the model.
NOT_SHOWN: tuple[str, ...] = (
    *("status", "created_by", "phase", "end_turn", "caller", "metadata", "tool_call_errors"),
    *("internal_chat_message_metadata_passthrough", "cache_control", "annotations", "logprobs"),
)
ITEM: Fields = dict.fromkeys(NOT_SHOWN, Neutral(kinds=(ANY,)))
