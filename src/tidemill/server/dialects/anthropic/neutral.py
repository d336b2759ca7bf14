"""Fields of the Messages API beyond those that the schema declares (`server.dialects.fields`)."""

from __future__ import annotations

from typing import Any

from tidemill.server.dialects.fields import ANY, Fields, Neutral

_ANYTHING = Neutral(kinds=(ANY,))
_OWN_TOOLS = Neutral(
    feature="tools that Anthropic's service defines or runs",
    instead="define a tool of the type custom, with an input_schema",
)
_CITATIONS = Neutral(([], {}, {"enabled": False}), feature="citations")


def _keeps_everything(value: Any) -> bool:
    """True for edits of the context that clear nothing, such as Claude Code sends."""
    if not isinstance(value, dict) or set(value) - {"edits"}:
        return False
    edits = value.get("edits") or []
    return isinstance(edits, list) and all(
        isinstance(edit, dict)
        and set(edit) == {"type", "keep"}
        and edit["type"] == "clear_thinking_20251015"
        and edit["keep"] == "all"
        for edit in edits
    )


CONVERSATION: Fields = {
    "context_management": Neutral(
        test=_keeps_everything,
        shown='no edits, or clear_thinking_20251015 with "keep": "all"',
        feature="edits of the context",
        instead="edit the messages",
    ),
    "compaction": Neutral(feature="compaction", instead="summarize the messages"),
    "mcp_servers": Neutral(
        ([],), feature="MCP servers", instead="define their tools, and call the servers yourself"
    ),
    "speed": Neutral(("standard",), feature="a choice of speeds"),
    "user_profile_id": Neutral(kinds=(str,), feature="values that are no strings"),
    "thread": Neutral(feature="stored conversations", instead="send all messages"),
    "system": Neutral(("", [])),
    "tools": Neutral(([],)),
}
MESSAGES: Fields = {
    **CONVERSATION,
    "service_tier": Neutral(("auto", "standard_only"), feature="other service tiers"),
    "container": Neutral(feature="containers"),
    "diagnostics": Neutral(
        ({}, {"previous_message_id": None}),
        feature="diagnostics",
        instead="usage has the cached tokens",
    ),
    "inference_geo": Neutral(feature="a choice of places"),
    "fallbacks": Neutral(([],), feature="fallbacks to other models"),
    "fallback_credit_token": Neutral(feature="credits"),
    "billing_policy": Neutral(feature="billing"),
    "stop_sequences": Neutral(([],)),
}
# What answers have beyond the members that a conversation needs; clients send them back.
MESSAGE: Fields = dict.fromkeys(
    (
        *("id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage"),
        *("container", "context_management", "diagnostics"),
    ),
    _ANYTHING,
)
BLOCK: Fields = {
    "citations": _CITATIONS,
    "caller": Neutral(({"type": "direct"},), feature="calls from code"),
    "toolset_name": Neutral(feature="sets of tools"),
    # Members of blocks that Anthropic's service makes.
    **dict.fromkeys(
        (
            *("server_name", "tool_name", "tool_references", "url", "page_age", "retrieved_at"),
            *("encrypted_content", "encrypted_index", "error_code", "return_code", "stdout"),
            *("stderr", "file_id", "from", "to"),
        ),
        Neutral(feature="blocks of this kind", instead="send their text"),
    ),
}
TOOL: Fields = {
    "type": Neutral(("custom",)),
    "defer_loading": Neutral((False,), feature="tools that are searched for"),
    "allowed_callers": Neutral((["direct"], []), feature="calls from code"),
    "eager_input_streaming": Neutral(kinds=(bool,), feature="values that are no booleans"),
    "input_examples": Neutral(
        ([],), feature="examples by this name", instead="put them into the description"
    ),
    **dict.fromkeys(
        (
            *("max_uses", "allowed_domains", "blocked_domains", "user_location", "citations"),
            *("max_content_tokens", "use_cache", "display_width_px", "display_height_px"),
            *("display_number", "enable_zoom", "max_characters", "model", "caching", "configs"),
            *("default_config", "mcp_server_name", "response_inclusion"),
        ),
        _OWN_TOOLS,
    ),
}
THINKING: Fields = {"block_binding": Neutral(({},), feature="a choice of checks of thinking")}
OUTPUT: Fields = {"task_budget": Neutral(feature="budgets over several requests")}
