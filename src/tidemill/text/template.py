"""Chat templates: messages to the prompt a model was trained on.

Templates follow Hugging Face's conventions (their chat-templating documentation): Jinja with
trimmed blocks, `raise_exception`, `strftime_now`, a `tojson` that keeps key order and characters,
loop controls and `generation` blocks. They come from model files and are not trusted; see
`sandbox.py` for what bounds them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from tidemill.base.errors import TidemillError, bad_request, model_file_error
from tidemill.text.bounds import Budget, BudgetExceeded
from tidemill.text.sandbox import TemplateProgram

MAX_TEMPLATE_CHARS = 2**20
_REMEDY = (
    "use /v1/completions with a plain prompt, or start the server with a chat template of your own "
    "(--chat-template FILE)"
)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text; None for a model without one (rendering is then a clear error).
        special: special tokens by role (``bos_token``), visible to the template.

    Raises:
        TidemillError: kind MODEL_FILE if the source is not a valid template.
    """

    def __init__(self, source: str | None, special: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special = dict(special or {})
        self._program: TemplateProgram | None = None
        if source is None:
            return
        if len(source) > MAX_TEMPLATE_CHARS:
            raise model_file_error(
                f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS} "
                "are allowed",
                param="chat_template",
            )
        try:
            self._program = TemplateProgram(source)
        except jinja2.TemplateSyntaxError as error:
            raise model_file_error(
                f"the chat template is not valid: line {error.lineno}: {error.message}",
                param="chat_template",
            ) from error
        except (BudgetExceeded, RecursionError, ValueError, TypeError, MemoryError) as error:
            raise model_file_error(
                f"the chat template cannot be compiled: {error}", param="chat_template"
            ) from error

    @property
    def exists(self) -> bool:
        """False for a model without a template."""
        return self._program is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Render a conversation.

        Args:
            messages: role, content (text, None or a list of text parts, which are joined) and
                whatever else the template reads.
            tools: the tools' JSON descriptions, or None.
            add_generation_prompt: end with the opening of the assistant's turn.
            documents: for templates that read them, or None.
            **kwargs: further variables of the template (``enable_thinking``).

        Raises:
            TidemillError: kind BAD_REQUEST, naming ``messages``, if the template refuses the
                conversation, exceeds its bounds, or does not exist.
        """
        if self._program is None:
            raise bad_request("messages", f"this model has no chat template; {_REMEDY}")
        variables = {
            **self._special,
            **kwargs,
            "messages": [_plain_message(index, m) for index, m in enumerate(messages)],
            "tools": copy.deepcopy(list(tools)) if tools else None,
            "documents": copy.deepcopy(list(documents)) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._program.render(variables, Budget())
        except BudgetExceeded as error:
            raise bad_request(
                "messages", f"the chat template was stopped for these messages: {error}"
            ) from error
        except TidemillError:
            raise
        except Exception as error:  # a template's code can raise anything
            reason = str(error) or type(error).__name__
            raise bad_request(
                "messages", f"the model's chat template refused these messages: {reason}"
            ) from error


def _plain_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a message (templates cannot reach the caller's) with its text parts joined."""
    plain = copy.deepcopy(dict(message))
    content = plain.get("content")
    if isinstance(content, list | tuple):
        plain["content"] = "".join(_part_text(index, part) for part in content)
    return plain


def _part_text(index: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    if (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise bad_request(
        "messages",
        f"messages[{index}].content holds a part of type {kind!r}; this model takes text parts",
    )
