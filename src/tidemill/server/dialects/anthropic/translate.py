"""From a body to the internal request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.contract.program import Grammar
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import ANONYMOUS, Caller
from tidemill.generation.prepare import rendered
from tidemill.generation.request import GenerateRequest, Names
from tidemill.server.access.limits import Limits
from tidemill.server.dialects.anthropic.conversation import Conversation, conversation_of
from tidemill.server.dialects.anthropic.schema import (
    AnthropicTool,
    AnthropicToolChoice,
    CountTokensRequest,
    MessagesRequest,
)
from tidemill.server.dialects.anthropic.signatures import Signer
from tidemill.server.dialects.body import parse_body
from tidemill.server.dialects.bounds import check_schema
from tidemill.text.answering import ChatSide, OutputRequest
from tidemill.text.constraints import Constraint
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.shapes import as_json
from tidemill.text.template import ChatTemplate
from tidemill.text.thinking import ThinkingRequest
from tidemill.text.tools import ToolUse, tool_use

_FORMAT = "output_config.format"
_DEFAULT_EFFORT = "high"  # means the same as none


# Names of the internal request, and of this API.
_NAMES = {
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function": "tool_choice",
    "stop": "stop_sequences",
}

PARAMETERS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "max_tokens")},
    "stop": "stop_sequences",
}
"""Parameters of `SamplingParams` -> the members of a body that give them."""


def _add_names(names: dict[str, str], body: CountTokensRequest, paths: Sequence[str]) -> None:
    """Add the names of a body's fields, by those of the internal request (`errors.fail`)."""
    names |= _NAMES
    for index, path in enumerate(paths):
        names[f"messages[{index}]"] = path
        names[f"messages[{index}].content"] = path
        names[f"messages[{index}].tool_call_id"] = f"{path}.tool_use_id"
    for index in range(len(body.tools or ())):
        names[f"tools[{index}].function"] = f"tools[{index}]"
        names[f"tools[{index}].function.parameters"] = f"tools[{index}].input_schema"


def message_request(
    body: MessagesRequest, signer: Signer, names: dict[str, str], caller: Caller, arrival: float
) -> GenerateRequest:
    """The request for a message.

    Args:
        body: what was sent.
        signer: verifies the thinking of earlier turns.
        names: filled for errors.
        caller: who asks.
        arrival: see `GenerateRequest`.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    values = {
        name: value
        for name in ("temperature", "top_p", "top_k")
        if (value := getattr(body, name)) is not None
    }
    sampling = SamplingParams(
        **values,
        max_tokens=body.max_tokens or 1,
        stop=tuple(text for text in body.stop_sequences or () if text),
    )
    return _request(
        body,
        signer,
        names,
        sampling=sampling,
        clip_max_tokens=True,
        scored=body.max_tokens == 0,  # only the prompt is computed, for the cache
        caller=caller,
        arrival=arrival,
    )


def count_request(
    body: CountTokensRequest, signer: Signer, names: dict[str, str]
) -> GenerateRequest:
    """The request whose prompt is counted; see `message_request`."""
    return _request(body, signer, names)


def prompt_text(template: ChatTemplate, chat: ChatSide, data: bytes) -> str:
    """The prompt that the JSON text of a body becomes; needs no model.

    Raises:
        Rejection, TidemillError: the request is wrong.
    """
    body = parse_body(MessagesRequest, data, Limits())
    asked = message_request(body, Signer(), {}, ANONYMOUS, 0.0)
    return rendered(template, chat, asked)[0]


def check_format(body: CountTokensRequest, limits: Limits) -> None:
    """Raise for a schema of the answer that is too large."""
    if body.output_config is not None and body.output_config.format is not None:
        check_schema(f"{_FORMAT}.schema", body.output_config.format.schema, limits)


def has_cache_marks(body: CountTokensRequest) -> bool:
    """Some part of the prompt is marked to be cached."""
    blocks = [*(body.system or ())] if isinstance(body.system, list) else []
    for message in body.messages:
        blocks += message.content if isinstance(message.content, list) else ()
    marked = [body, *blocks, *(body.tools or ())]
    return any(part.cache_control is not None for part in marked)


def _request(
    body: CountTokensRequest, signer: Signer, names: dict[str, str], **more: Any
) -> GenerateRequest:
    conversation = conversation_of(body.system, body.messages, signer)
    _add_names(names, body, conversation.paths)
    continued = conversation.ends_with_prefill
    return GenerateRequest(
        messages=conversation.messages,
        output=OutputRequest(
            _constraint(body), _tools(body.tools, body.tool_choice), _thinking(body, conversation)
        ),
        prompt_options=PromptOptions(continue_final_message=continued or None, adapt_roles=True),
        names=Names("messages", "max_tokens"),
        **more,
    )


def _constraint(body: CountTokensRequest) -> Constraint | None:
    asked = None if body.output_config is None else body.output_config.format
    if asked is None:
        return None
    at = f"{_FORMAT}.schema"
    return Constraint(_FORMAT, Grammar("json_schema", as_json(at, asked.schema), at))


def _thinking(body: CountTokensRequest, conversation: Conversation) -> ThinkingRequest:
    """Without `thinking` and effort there is none where the model's can be turned off: clients of
    this API that do not ask for it read the first block as the answer."""
    asked = body.thinking
    effort = None if body.output_config is None else body.output_config.effort
    silent = asked is None and effort is None
    return ThinkingRequest(
        enable={"enabled": True, "disabled": False}.get("" if asked is None else asked.type),
        effort=None if effort == _DEFAULT_EFFORT else effort,
        budget=None if asked is None else asked.budget_tokens,
        off_by_default=silent or (asked is None and conversation.ends_with_prefill),
        enable_by="thinking.type",
        effort_by="output_config.effort",
        budget_by="thinking.budget_tokens",
    )


def _tools(tools: Sequence[AnthropicTool] | None, choice: AnthropicToolChoice | None) -> ToolUse:
    offered = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": tool.strict,
            },
        }
        for tool in tools or ()
    ]
    if choice is None:
        return tool_use(offered or None)
    named = {"type": "function", "function": {"name": choice.name}}
    parallel = False if choice.disable_parallel_tool_use and choice.type != "none" else None
    return tool_use(offered or None, named if choice.name is not None else choice.type, parallel)
