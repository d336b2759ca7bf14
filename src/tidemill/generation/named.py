"""OpenAI's and other servers' names of output and prompt options, as `LLM` takes them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.text.prompt_options import PromptOptions

PROMPT_FIELDS = ("add_generation_prompt", "continue_final_message", "documents")


def prompt_options_of(fields: Mapping[str, Any], kwargs: Mapping[str, Any] | None) -> PromptOptions:
    """The prompt options among a request's fields.

    Args:
        fields: values by the names of `PROMPT_FIELDS`; None for absent ones.
        kwargs: variables of the chat template.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    for name in PROMPT_FIELDS[:2]:
        if not isinstance(fields.get(name), bool | None):
            raise bad_request(name, f"{name} must be true or false, got {fields[name]!r}")
    given: dict[str, Any] = {name: fields.get(name) for name in PROMPT_FIELDS}
    return PromptOptions(**given, kwargs=kwargs)
