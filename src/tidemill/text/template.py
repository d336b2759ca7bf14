"""Chat templates: messages to the prompt a model was trained on.

Templates follow Hugging Face's conventions (their chat-templating documentation): Jinja with
trimmed blocks, `raise_exception`, `strftime_now`, a `tojson` that preserves key order and non-ASCII
characters, loop controls and `generation` blocks. They come from model files and are untrusted; see
`sandbox.py` for their limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from tidemill.base.errors import TidemillError, bad_request, model_file_error
from tidemill.text.bounds import MAX_PROBE_SECONDS, Budget, BudgetExceeded, TimeExceeded
from tidemill.text.completeness import KnownShapes
from tidemill.text.sandbox import TemplateProgram

MAX_TEMPLATE_CHARS = 2**20
_REMEDY = (
    "use /v1/completions with a plain prompt, or start the server with a chat template of your own "
    "(--chat-template FILE)"
)

# A model may lack these tokens, but templates concatenate them to text unconditionally.
_NO_TOKENS = {"bos_token": "", "eos_token": ""}


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text; None for a model without one (rendering then raises).
        special: special tokens by role (``bos_token``), visible to the template.
        tool_use: the Jinja text of a second template, for conversations with tools, which some
            models have in addition to the default one.

    Attributes:
        source: as given.
        complete_shapes: shapes of conversations that it renders completely; see `check_complete`.

    Raises:
        TidemillError: kind MODEL_FILE if the source is not a valid template.
    """

    def __init__(
        self,
        source: str | None,
        special: Mapping[str, str] | None = None,
        tool_use: str | None = None,
    ) -> None:
        self.source = source
        self.complete_shapes = KnownShapes()
        self._special = dict(special or {})
        self._tool_use = None if tool_use is None else ChatTemplate(tool_use, special)
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
        return self._program is not None or self._tool_use is not None

    def chosen(self, *, tools: bool) -> ChatTemplate:
        """The template for a conversation with or without tools, chosen as in transformers."""
        return self._tool_use if tools and self._tool_use is not None else self

    @property
    def names(self) -> frozenset[str]:
        """All variables that the template reads, including its own."""
        return frozenset() if self._program is None else self._program.names

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
            messages: role, content and other keys that the template reads.
            tools: the tools' JSON descriptions, or None.
            add_generation_prompt: end with the opening of the assistant's turn.
            documents: for templates that read them, or None.
            **kwargs: further variables of the template (``enable_thinking``).

        Raises:
            TidemillError: kind BAD_REQUEST, naming ``messages``, if the template rejects the
                conversation, exceeds its limits, or does not exist.
        """
        variables = {
            **kwargs,
            # Shallow copies suffice: the sandbox cannot modify lists and mappings.
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._run(variables, Budget())
        except BudgetExceeded as error:
            raise bad_request(
                "messages", f"the chat template exceeded its limits for these messages: {error}"
            ) from error

    def probe(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """Render a probe conversation; empty if the template rejects it.

        Raises:
            TimeExceeded: it exceeded `MAX_PROBE_SECONDS`.
        """
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
        try:
            return self._run({**given, "messages": messages}, Budget(MAX_PROBE_SECONDS))
        except TimeExceeded:
            raise
        except (BudgetExceeded, TidemillError):
            return ""

    def _run(self, variables: Mapping[str, Any], budget: Budget) -> str:
        if self._program is None:
            lacks = "chat template"
            if self._tool_use is not None:
                lacks = "chat template for conversations without tools"
            raise bad_request("messages", f"this model has no {lacks}; {_REMEDY}")
        try:
            return self._program.render({**_NO_TOKENS, **self._special, **variables}, budget)
        except (BudgetExceeded, TidemillError):
            raise
        except Exception as error:  # a template's code can raise anything
            reason = str(error) or type(error).__name__
            raise bad_request(
                "messages", f"the model's chat template rejected these messages: {reason}"
            ) from error
