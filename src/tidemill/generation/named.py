"""OpenAI's and other servers' names of output and prompt options, as `LLM` takes them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.generation.request import NO_TEXTS, Cut, TokenTexts
from tidemill.text.prompt_options import PromptOptions

INPUT_FIELDS = ("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "bad_words")
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


def input_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Members of a `GenerateRequest` from values by the names of `INPUT_FIELDS`; None for absent
    ones.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    keep, side, special, words = (fields.get(name) for name in INPUT_FIELDS)
    if keep is not None and (type(keep) is not int or keep < -1 or keep == 0):
        raise bad_request(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be -1 (as many as fit) or at least 1, got {keep!r}",
        )
    if side not in (None, "left", "right"):
        raise bad_request("truncation_side", f"truncation_side is left or right, got {side!r}")
    if not isinstance(special, bool | None):
        raise bad_request(
            "add_special_tokens", f"add_special_tokens must be true or false, got {special!r}"
        )
    if words is not None and (
        not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words)
    ):
        raise bad_request("bad_words", "bad_words must be a list of texts")
    return {
        "keep_last": keep,
        "cut": Cut.END if side == "right" else Cut.START,
        "add_special": special,
        "texts": TokenTexts(banned=tuple(words)) if words else NO_TEXTS,
    }
