"""Renders a conversation to the prompt's text and checks that nothing was dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.text.abilities import SWITCHES
from tidemill.text.answering import ChatSide, check_tools
from tidemill.text.completeness import check_complete
from tidemill.text.conversation import check_documents, check_kwargs, check_messages
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.roles import adapted
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import NO_TOOLS, ToolUse

_CONTINUED = "continue_final_message"
# The mark that transformers appends to the message; some templates search for it.
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def render_prompt(
    template: ChatTemplate,
    chat: ChatSide,
    messages: Sequence[Mapping[str, Any]],
    options: PromptOptions,
    use: ToolUse = NO_TOOLS,
) -> str:
    """Render a conversation as transformers' `apply_chat_template` does.

    Args:
        template: the model's.
        chat: the model's chat capabilities.
        messages: see `check_messages`.
        options: see `PromptOptions`.
        use: the tools to show.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    check_tools(use, chat)
    template, abilities = template.chosen(tools=bool(use.shown)), chat.abilities_for(use)
    source = template.source or ""
    plain = check_messages(messages, abilities, source)
    if options.adapt_roles:
        plain = adapted(plain, abilities)
    # Null means absent, as in every field: some templates would render it as "None".
    kwargs = {k: v for k, v in (options.kwargs or {}).items() if v is not None}
    documents = options.documents
    for name in SWITCHES:
        # "Off" is a neutral value for a model that does not think.
        if kwargs.get(name) is False and not chat.thinks and name not in template.names:
            del kwargs[name]
    check_kwargs(kwargs, template.names)
    if documents is not None:
        check_documents(documents, template.names)
    continued, generate = bool(options.continue_final_message), options.add_generation_prompt
    if generate is None:
        generate = not continued
    if continued:
        _check_continued(plain[-1], generate)
    variables = {
        **kwargs,
        **(options.variables or {}),
        **abilities.tools_variable.given(use.shown),
    }

    def render(
        messages: Sequence[Mapping[str, Any]], documents: Sequence[Mapping[str, Any]]
    ) -> str:
        return template.render(
            messages, add_generation_prompt=generate, documents=documents or None, **variables
        )

    given = _with_mark(plain) if continued else plain
    text = render(given, documents or ())
    check_complete(
        given,
        text,
        render,
        documents=documents or (),
        source=source,
        variables={**variables, "add_generation_prompt": generate},
        known=template.complete_shapes,
    )
    return _cut_at_mark(text, plain[-1]["content"]) if continued else text


def _check_continued(final: Mapping[str, Any], generate: bool) -> None:
    if generate:
        raise bad_request(_CONTINUED, f"{_CONTINUED} and add_generation_prompt exclude each other")
    if final["role"] != "assistant":
        raise bad_request(_CONTINUED, f"{_CONTINUED} needs the final message to be the assistant's")
    if final.get("tool_calls"):
        raise bad_request(
            _CONTINUED, f"{_CONTINUED}: the final message ends with tool calls, not with content"
        )


def _with_mark(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with a mark at the end of the final one's content."""
    *earlier, final = messages
    content = final["content"]
    if isinstance(content, list):
        *parts, last = content
        content = [*parts, {**last, "text": last["text"] + _MARK}]
    else:
        content = (content or "") + _MARK
    return [*earlier, {**final, "content": content}]


def _cut_at_mark(prompt: str, content: str | list[dict[str, Any]] | None) -> str:
    """The prompt up to the end of the final message's content."""
    text = content[-1]["text"] if isinstance(content, list) else content or ""
    head, mark, _ = prompt.rpartition(_MARK.strip())
    if not mark or not head.rstrip().endswith(text.strip()):
        raise bad_request(
            _CONTINUED,
            "the model's chat template rewrites the final message, so it cannot be continued",
        )
    # If the mark's trailing space is gone, the template trims contents: trim this one too.
    return head if prompt.startswith(_MARK, len(head)) else head.rstrip()
