"""From what a request asks of its answer to what the engine enforces and how the text is read.

Two steps, because the chat template stands between them: `read_wishes` looks at the request alone
and finds contradictions; `rules_of` knows the prompt's end, and so whether the model will think.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import TidemillError, bad_request, unsupported
from tidemill.contract.program import Grammar, OutputProgram, Phase
from tidemill.text.abilities import Abilities
from tidemill.text.answer import ParserFactory
from tidemill.text.constraints import FIELDS as CONSTRAINT_FIELDS
from tidemill.text.constraints import Constraint, constraint_of
from tidemill.text.template import ChatTemplate
from tidemill.text.thinking import FIELDS as THINKING_FIELDS
from tidemill.text.thinking import Thinking, thinking_of
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.tools import NO_TOOLS, ToolUse, tool_use

TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
ANSWER_FIELDS = (*CONSTRAINT_FIELDS, *TOOL_FIELDS, *THINKING_FIELDS)
"""The fields that `read_wishes` reads."""

NO_WISH = Thinking()
FREE = OutputProgram()

# Sampling fields that end an output where no grammar would, or carry it on where one has ended,
# and the value at which they do nothing.
CUTS: dict[str, object] = {
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "min_tokens": 0,
}
# Kinds that can be one alternative of a grammar whose other is a tool call.
_BESIDE_CALLS = ("json_schema", "json_object", "regex", "choice")


@dataclass(frozen=True, slots=True)
class ChatSide:
    """What a model's text side can do in a chat.

    Attributes:
        tokenizer: the vocabulary.
        abilities: of its chat template.
        thinks: it marks its thinking in a way this server reads.
        calls: it writes tool calls in a way this server reads.
    """

    tokenizer: Tokenizer
    abilities: Abilities
    thinks: bool = False
    calls: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate) -> ChatSide:
        """Find out what a model can do."""
        return cls(tokenizer, Abilities.of(template))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asks of its answer beyond words.

    Attributes:
        use: the tools it may or must call.
        constraint: what the text must be, or None.
        thinking: whether and how long it thinks.
    """

    use: ToolUse = NO_TOOLS
    constraint: Constraint | None = None
    thinking: Thinking = NO_WISH


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """How one request's outputs are made and read.

    Attributes:
        program: what the engine enforces.
        parser: makes a choice's parser; None where all is content.
        kept: special tokens that the parser reads.
        thinks: the answer may have thinking; it is counted.
    """

    program: OutputProgram = FREE
    parser: ParserFactory | None = None
    kept: frozenset[int] = frozenset()
    thinks: bool = False


PLAIN = AnswerRules()
"""Free text, all of it content."""


def read_wishes(chat: ChatSide, fields: Mapping[str, Any]) -> Wishes:
    """Read and check what a request asks of its answer.

    Args:
        chat: the model's.
        fields: the request's values by name: those of `ANSWER_FIELDS`, `chat_template_kwargs`,
            `continue_final_message`, and the sampling fields that can end or prolong an output.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member, or both of two that exclude each other.
    """
    use = tool_use(*(fields.get(name) for name in TOOL_FIELDS))
    constraint = constraint_of(fields)
    thinking = thinking_of(
        fields,
        chat.abilities,
        thinks=chat.thinks,
        kwargs=fields.get("chat_template_kwargs"),
    )
    if use.tools and not chat.calls:
        raise bad_request(
            "tools",
            "tools: how this model writes tool calls is not known; start the server with "
            "--tool-format",
        )
    ruling = constraint.field if constraint is not None else use.enforced
    if ruling is not None:
        check_cuts(ruling, fields, stop=constraint is not None or use.required)
    if constraint is not None and use.tools:
        grammar = constraint.grammar
        if grammar is None or (grammar.kind not in _BESIDE_CALLS and not use.required):
            raise _exclude("tools", constraint.field)
    if fields.get("continue_final_message"):
        if ruling is not None:
            raise _exclude(ruling, "continue_final_message")
        if thinking.wanted:
            raise _exclude(thinking.by, "continue_final_message")
    return Wishes(use, constraint, thinking)


def text_rules(fields: Mapping[str, Any]) -> AnswerRules:
    """The rules of a plain prompt's continuation, which is all content.

    Args:
        fields: the request's values by name: constraints, and the sampling fields that can end or
            prolong an output.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member, or both of two that exclude each other.
    """
    constraint = constraint_of(fields)
    if constraint is None:
        return PLAIN
    check_cuts(constraint.field, fields)
    return AnswerRules(program=OutputProgram((_ruled(constraint),)))


def check_tools(use: ToolUse, chat: ChatSide) -> None:
    """Raise unless the model's chat template can tell it about the tools.

    Raises:
        TidemillError: kind BAD_REQUEST naming ``tools``.
    """
    if use.shown and not chat.abilities.tools:
        raise bad_request(
            "tools",
            "tools: the model's chat template has no place for them; use one that has "
            "(--chat-template FILE)",
        )


def check_cuts(ruling: str, fields: Mapping[str, Any], *, stop: bool = True) -> None:
    """Refuse what would end a ruled output too early or carry it on past its end.

    Args:
        ruling: the field that rules the output.
        fields: the request's sampling fields by name.
        stop: stop strings are refused too. They may end a text in which only tool calls are ruled.

    Raises:
        TidemillError: kind BAD_REQUEST naming both fields.
    """
    for name, harmless in CUTS.items():
        value = fields.get(name)
        if value is not None and value != harmless and value != [] and (stop or name != "stop"):
            raise _exclude(name, ruling)


def _exclude(one: str, other: str) -> TidemillError:
    return bad_request(one, f"{one} and {other} exclude each other; send one of them")


def rules_of(
    chat: ChatSide, wishes: Wishes, prompt: str, *, continued: bool = False
) -> AnswerRules:
    """How the outputs of a prompt are made and read.

    Args:
        chat: the model's.
        wishes: the request's.
        prompt: the prompt's text as the template wrote it.
        continued: the output goes on with a message whose thinking is over.
    """
    constraint = wishes.constraint
    phases: tuple[Phase, ...] = () if constraint is None else (_ruled(constraint),)
    return AnswerRules(program=OutputProgram(phases))


def _ruled(constraint: Constraint) -> Grammar:
    """The phase that enforces a constraint on all of a text."""
    if constraint.grammar is not None:
        return constraint.grammar
    raise unsupported(
        constraint.field, f"{constraint.field}: this version does not do structural tags"
    )
