"""From a body to the internal request: what precedes it, its items, tools and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.generation.caller import Caller
from tidemill.generation.request import GenerateRequest, Names
from tidemill.server.access.limits import Limits
from tidemill.server.dialects.bounds import check_schema
from tidemill.server.dialects.openai.responses.items import (
    KINDS,
    REFERENCE,
    Placed,
    Turns,
    read_items,
    text_input,
    turns_of,
)
from tidemill.server.dialects.openai.responses.schema import ResponseRequest
from tidemill.server.dialects.openai.responses.store import (
    Conversation,
    Link,
    Recent,
    Store,
    StoredResponse,
)
from tidemill.server.dialects.openai.responses.tools import Tools
from tidemill.server.dialects.openai.translate import prompt_fields, sampling_of
from tidemill.server.errors import reject
from tidemill.text.answering import OutputRequest
from tidemill.text.constraints import constraint_of
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.thinking import read_thinking

LOGPROBS, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"

_RENAMED = {
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
}


@dataclass(slots=True)
class Asked:
    """A request that was read, before a model is known.

    Attributes:
        body: of the request.
        tools: those of the request and those that its items bring.
        turns: the conversation.
        given: its own input, behind what a previous response was made of.
        conversation: to which it belongs.
    """

    body: ResponseRequest
    tools: Tools
    turns: Turns
    given: Link
    conversation: Conversation | None

    @property
    def includes(self) -> frozenset[str]:
        """What the answer has beyond the usual."""
        return frozenset(self.body.include or ())

    def generate(self, caller: Caller, arrival: float) -> GenerateRequest:
        """The internal request.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field; see `named_in`.
        """
        body, text = self.body, self.body.text
        fields: dict[str, Any] = asdict(body)
        if text is not None and text.format is not None:
            fields["response_format"] = text.format
        fields["reasoning_effort"] = body.reasoning.effort if body.reasoning else None
        plain = OutputRequest.read({"verbosity": text.verbosity if text else None})
        return GenerateRequest(
            messages=self.turns.messages,
            sampling=sampling_of(
                body, max_tokens=body.max_tokens, logprobs=self.logprobs(), prompt_logprobs=None
            ),
            output=replace(
                plain,
                constraint=constraint_of(fields),
                use=self.tools.use(body.tool_choice, body.parallel_tool_calls),
                thinking=read_thinking(fields),
            ),
            prompt_options=PromptOptions(kwargs=body.chat_template_kwargs, adapt_roles=True),
            drop_oldest=body.truncation == "auto",
            caller=caller,
            arrival=arrival,
            names=Names("input", "max_tokens", "num_ctx"),
            **prompt_fields(body),
        )

    def logprobs(self) -> int | None:
        """Requested number of alternatives; None for no logprobs."""
        return self.body.top_logprobs or (0 if LOGPROBS in self.includes else None)


def only_the_prompt(request: GenerateRequest) -> GenerateRequest:
    """The request that computes a prompt for the cache, and generates nothing."""
    return replace(request, scored=True, sampling=request.sampling.with_values({"max_tokens": 1}))


def read_request(
    body: ResponseRequest,
    request: Request,
    owner: str,
    store: Store,
    limits: Limits,
    recent: Recent | None = None,
) -> Asked:
    """Resolve what a request refers to, and read its items and tools.

    Errors of later steps name fields as the client knows them (`request.state.sent_as`).

    Raises:
        TidemillError, Rejection: naming the field.
    """
    names: dict[str, str] = request.state.sent_as
    names.update(_RENAMED)
    _check_sizes(body, limits)
    own = _own_items(body)
    previous = _previous(body, owner, store, recent)
    conversation = _conversation(body, owner, store)
    before: list[dict[str, Any]] = []
    if previous is not None:
        before = previous.all_items()
    elif conversation is not None:
        before = list(conversation.items.values())
    where = "previous_response_id" if previous is not None else "conversation"
    own = _resolved(own, owner, store)
    if not own and not before and not body.instructions:
        raise bad_request("input", "input is empty; send a text or items")
    tools = Tools.read(body.tools)
    placed = [*(Placed(item, where) for item in before), *own]
    for item, path in placed:
        if KINDS[item["type"]].tools:
            tools.extend(item["tools"], f"{path}.tools", echo=False)
    turns = turns_of(placed, body.instructions)
    names.update(turns.named())
    names.update(tools.paths())
    given = Link([item for item, _ in own], previous)
    return Asked(body, tools, turns, given, conversation)


def _check_sizes(body: ResponseRequest, limits: Limits) -> None:
    if isinstance(body.input, list) and len(body.input) > limits.max_messages:
        raise bad_request(
            "input", f"input has {len(body.input)} items; at most {limits.max_messages} are taken"
        )
    if body.text is not None and body.text.format is not None:
        check_schema("text.format", body.text.format, limits)


def _own_items(body: ResponseRequest) -> list[Placed]:
    if body.input is None:
        return []
    if isinstance(body.input, str):
        return [text_input(body.input)] if body.input else []
    return read_items("input", body.input)


def _resolved(items: list[Placed], owner: str, store: Store) -> list[Placed]:
    """Items instead of references to them."""
    wanted = {item["id"] for item, _ in items if item["type"] == REFERENCE}
    if not wanted:
        return items
    own = {item["id"]: item for item, _ in items if item["type"] != REFERENCE}
    known: Mapping[str, dict[str, Any]] = {**store.items(owner, wanted), **own}
    found = []
    for item, path in items:
        if item["type"] == REFERENCE:
            if item["id"] not in known:
                raise reject(
                    404,
                    f"{path}.id: there is no item {item['id'][:80]!r}; responses with store: false "
                    "and forgotten ones cannot be referred to: send the item itself",
                    param=f"{path}.id",
                )
            item = known[item["id"]]
        found.append(Placed(item, path))
    return found


def _previous(
    body: ResponseRequest, owner: str, store: Store, recent: Recent | None
) -> Link | None:
    identity = body.previous_response_id
    if identity is None:
        return None
    found = store.response(owner, identity)
    if found is None and recent is not None:
        found = recent.find(identity)
    if found is None:
        raise reject(
            404,
            f"previous_response_id: there is no response {identity[:80]!r}; it was not stored, or "
            "it was deleted or forgotten: send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if found.response["status"] in ("queued", "in_progress"):
        raise bad_request(
            "previous_response_id",
            f"previous_response_id: the response is {found.response['status']}; wait for its end",
        )
    return _end_of(found)


def _end_of(stored: StoredResponse) -> Link:
    return stored.given if stored.output is None else stored.output


def continued(body: ResponseRequest) -> list[str]:
    """Ids of what a request continues."""
    conversation = body.conversation
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return [name for name in (body.previous_response_id, conversation) if isinstance(name, str)]


def _conversation(body: ResponseRequest, owner: str, store: Store) -> Conversation | None:
    if body.conversation is None:
        return None
    identity = body.conversation if isinstance(body.conversation, str) else body.conversation["id"]
    found = store.conversation(owner, identity)
    if found is None:
        raise reject(
            404, f"conversation: there is no conversation {identity[:80]!r}", param="conversation"
        )
    return found
