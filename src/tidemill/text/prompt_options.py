"""How a request's conversation is rendered, other than by its messages and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """A request's prompt options other than messages and tools.

    Attributes:
        add_generation_prompt: end with the opening of the assistant's turn; None: yes, unless the
            final message is continued.
        continue_final_message: end right after the content of the final message, which must be the
            assistant's.
        documents: for templates that use them: objects, usually with `title` and `text`.
        kwargs: the request's `chat_template_kwargs`.
        variables: template variables set by the server.
        adapt_roles: roles whose order the template rejects are adapted (`text.roles`).
    """

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] | None = None
    adapt_roles: bool = False
