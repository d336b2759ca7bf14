"""From a body to the internal request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.contract.program import Grammar
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.request import Gap, GenerateRequest, Names
from tidemill.server.access.limits import Limits
from tidemill.server.context import ServerContext
from tidemill.server.dialects.bounds import check_schema
from tidemill.server.dialects.ollama.schema import (
    OllamaChat,
    OllamaGenerate,
    OllamaGeneration,
    OllamaMessage,
    OllamaOptions,
)
from tidemill.text.answering import OutputRequest
from tidemill.text.constraints import Constraint
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.shapes import as_json
from tidemill.text.thinking import ThinkingRequest
from tidemill.text.tools import NO_TOOLS, ToolUse, tool_use

OPTIONS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    **{name: name for name in ("typical_p", "repeat_last_n")},
    "repetition_penalty": "repeat_penalty",
    "max_tokens": "num_predict",
}
"""Parameters -> options that give them unchanged."""
_AS_SENT = {name: f"options.{option}" for name, option in (*OPTIONS.items(), ("stop", "stop"))}
PARAMETERS = {**_AS_SENT, "logprobs": "top_logprobs"}
"""Parameters of `SamplingParams` -> the members of a body that give them."""

_NUM_CTX = "options.num_ctx"


def name_options(request: Request) -> None:
    """Let errors name sampling parameters as the client sent them."""
    request.state.sent_as.update(PARAMETERS)


def served_name(context: ServerContext, name: str | None) -> str | None:
    """The host's name of a model: clients of Ollama write ``name:latest`` for ``name``."""
    if name and name.endswith(":latest") and not context.host.has(name):
        return name.removesuffix(":latest")
    return name


def chat_request(
    body: OllamaChat, caller: Caller, arrival: float, limits: Limits
) -> GenerateRequest:
    """A conversation's request.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    messages = _messages(body.messages or ())
    return _request(
        body, caller, arrival, limits, "messages", messages=messages, use=tool_use(body.tools)
    )


def generate_request(
    body: OllamaGenerate, caller: Caller, arrival: float, limits: Limits
) -> GenerateRequest:
    """The request of a prompt, which the chat template frames unless it is `raw`.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    prompt = body.prompt or ""
    if body.raw or body.suffix is not None:
        by = "raw" if body.suffix is None else "suffix"
        for name in ("system", "think"):
            if getattr(body, name):
                raise bad_request(
                    name, f"{name} and {by} exclude each other: the chat template is not used"
                )
        gap = None if body.suffix is None else Gap(body.suffix)
        return _request(body, caller, arrival, limits, "prompt", prompts=[prompt], gap=gap)
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": prompt}]
    return _request(body, caller, arrival, limits, "prompt", messages=messages)


def _request(
    body: OllamaGeneration,
    caller: Caller,
    arrival: float,
    limits: Limits,
    source: str,
    *,
    messages: Sequence[dict[str, Any]] | None = None,
    prompts: Sequence[str] = (),
    use: ToolUse = NO_TOOLS,
    gap: Gap | None = None,
) -> GenerateRequest:
    options = body.options or OllamaOptions()
    return GenerateRequest(
        messages=messages,
        prompts=prompts,
        sampling=_sampling(body, options),
        output=OutputRequest(_constraint(body.format, limits), use, _thinking(body.think)),
        prompt_options=PromptOptions(adapt_roles=True),
        drop_oldest=bool(body.truncate),
        gap=gap,
        context=options.num_ctx,
        ends_with_context=True,
        caller=caller,
        arrival=arrival,
        names=Names(source, _AS_SENT["max_tokens"], _NUM_CTX),
    )


def _messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages as `text.prompt.render_prompt` takes them.

    A result is assigned to its call: Ollama's clients name the tool, or nothing at all.
    """
    found: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # id and name of calls without a result
    made = 0
    for message in messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            open_calls, one["tool_calls"] = [], []
            for call in message.tool_calls:
                identity, name = call.id or f"call_{made}", call.function.name
                function = {"name": name, "arguments": call.function.arguments or {}}
                one["tool_calls"].append({"id": identity, "type": "function", "function": function})
                open_calls.append((identity, name))
                made += 1
        if message.role == "tool":
            one |= _of_call(message, open_calls)
        found.append(one)
    return found


def _of_call(message: OllamaMessage, open_calls: list[tuple[str, str]]) -> dict[str, str]:
    """The members of a result that name its call, which is open no longer."""
    wanted = (message.tool_call_id, message.tool_name)
    for call in open_calls:
        if all(want in (None, "", has) for want, has in zip(wanted, call, strict=True)):
            open_calls.remove(call)
            return {"tool_call_id": call[0], "name": call[1]}
    given = {"tool_call_id": message.tool_call_id, "name": message.tool_name}
    return {name: value for name, value in given.items() if value}


def _sampling(body: OllamaGeneration, options: OllamaOptions) -> SamplingParams:
    values: dict[str, Any] = {
        name: value
        for name, option in OPTIONS.items()
        if (value := getattr(options, option)) is not None
    }
    stop = options.stop or ()
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(text for text in stop if text)
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**values)


def _constraint(value: str | dict[str, Any] | None, limits: Limits) -> Constraint | None:
    if value is None:
        return None
    if value == "json":
        return Constraint("format", Grammar("json_object", param="format"))
    check_schema("format", value, limits)
    return Constraint("format", Grammar("json_schema", as_json("format", value), "format"))


def _thinking(think: bool | str | None) -> ThinkingRequest:
    enable, effort = (None, think) if isinstance(think, str) else (think, None)
    return ThinkingRequest(enable, effort, enable_by="think", effort_by="think")
