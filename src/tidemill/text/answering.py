"""A request's output options to the output program the engine enforces and the parser to use.

Two steps, before and after the chat template is rendered. `output_options_of` resolves the request
for the model and finds contradictions. `rules_of` also sees the end of the rendered prompt, which
shows whether the model will think.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tidemill.base.errors import TidemillError, bad_request, config_error, unsupported
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram, Phase
from tidemill.contract.sampling import SamplingParams
from tidemill.text.abilities import Abilities
from tidemill.text.answer import Parser, ParserFactory
from tidemill.text.call_grammar import Spelling, calls_grammar, regions_grammar
from tidemill.text.constraints import FIELDS as CONSTRAINT_FIELDS
from tidemill.text.constraints import Constraint, constraint_of
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.format import Format
from tidemill.text.parsers.formats import FORMATS, THINKING
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.recognised import recognised
from tidemill.text.template import ChatTemplate
from tidemill.text.thinking import FIELDS as THINKING_FIELDS
from tidemill.text.thinking import Thinking, ThinkingRequest, read_thinking, thinking_of
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.tools import NO_TOOLS, ToolUse, tool_use

TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
ANSWER_FIELDS = (*CONSTRAINT_FIELDS, *TOOL_FIELDS, *THINKING_FIELDS, "verbosity")
"""The fields that `OutputRequest.read` reads."""

VERBOSITIES = ("low", "medium", "high")

Prepare = Callable[[str, str], str]

AUTO = "auto"
DEFAULT_THINKING = Thinking()
FREE = OutputProgram()

# Sampling fields that end an output before its grammar does, or prolong it after the grammar has
# ended, and each one's neutral value. Stop strings are not listed: they match in the content only,
# and the response reports the one that cut a document short.
STOP_PARAMS: dict[str, object] = {
    "stop_token_ids": (),
    "ignore_eos": False,
    "min_tokens": 0,
}
_BEFORE_MARKS = ("a", ".", "\n", " ", "\n\n")
# Grammar kinds that can be alternatives to a tool call within one grammar.
_WITH_CALLS = ("json_schema", "json_object", "regex", "choice")


@dataclass(frozen=True, slots=True)
class ChatSide:
    """A model's chat capabilities.

    Attributes:
        tokenizer: the vocabulary.
        abilities: of its chat template.
        tool_abilities: of its template for conversations with tools; usually the same template.
        form: its format of thinking and tool calls.
        kept: special tokens that belong to that format.
        prepare: takes a JSON schema's text and the field it came from, validates it and returns it
            in the form the grammar compiler accepts. The error names an unsupported keyword.
        found: how the format was detected, for humans.
    """

    tokenizer: Tokenizer
    abilities: Abilities
    tool_abilities: Abilities
    form: Format
    kept: frozenset[int]
    prepare: Prepare
    found: str = ""

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        prepare: Prepare,
        *,
        tool_format: str = AUTO,
        reasoning_format: str = AUTO,
    ) -> ChatSide:
        """Detect a model's capabilities.

        Args:
            tokenizer, template: the model's.
            prepare: see the class; `tidemill.grammar.schema.prepared`.
            tool_format, reasoning_format: names of formats; ``auto`` detects them from the
                template.

        Raises:
            TidemillError: kind CONFIG for an unknown format name.
        """
        for flag, name, known in (
            ("tool-format", tool_format, FORMATS),
            ("reasoning-format", reasoning_format, ("none", *THINKING)),
        ):
            if name != AUTO and name not in known:
                raise config_error(
                    flag, f"--{flag} {name!r} is not known; it is {AUTO} or {', '.join(known)}"
                )
        for_tools = template.chosen(tools=True)
        abilities = Abilities.of(template)
        with_tools = abilities if for_tools is template else Abilities.of(for_tools)
        found = recognised(
            for_tools,
            with_tools,
            None if tool_format == AUTO else tool_format,
            None if reasoning_format == AUTO else reasoning_format,
        )
        form = found.form
        special = tokenizer.special_ids
        spelled = (tokenizer.encode(mark, add_special=False) for mark in form.marks)
        kept = frozenset(token for ids in spelled for token in ids if token in special)
        return cls(tokenizer, abilities, with_tools, form, kept, prepare, found.calls)

    def abilities_for(self, use: ToolUse) -> Abilities:
        """The abilities of the template that renders a request with these tools."""
        return self.tool_abilities if use.shown else self.abilities

    @property
    def thinks(self) -> bool:
        """The format's thinking delimiters are known."""
        return self.form.think is not None

    @property
    def calls(self) -> bool:
        """The format's tool call syntax is known."""
        return self.form.syntax is not None

    def described(self) -> str:
        """One line for humans."""
        think = self.form.think
        marks = f"ends with {think.close.strip()!r}" if think is not None else "is not marked"
        tools = "renders" if self.tool_abilities.tools else "does not support"
        return f"chat: the template {tools} tools, calls {self.found}; thinking {marks}"


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """What a request asks of its output, before a model is known.

    Attributes:
        constraint: the structured output constraint, or None.
        use: the tools that may or must be called.
        thinking: whether and how long to think.
        verbosity: the requested length of the answer.
    """

    constraint: Constraint | None = None
    use: ToolUse = NO_TOOLS
    thinking: ThinkingRequest = field(default_factory=ThinkingRequest)
    verbosity: str | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> OutputRequest:
        """Read the fields of `ANSWER_FIELDS`: OpenAI's names and those of other servers.

        Raises:
            TidemillError: kind BAD_REQUEST naming the member, or both of two that exclude each
                other.
        """
        verbosity = fields.get("verbosity")
        if verbosity is not None and verbosity not in VERBOSITIES:
            raise bad_request("verbosity", f"verbosity must be one of {', '.join(VERBOSITIES)}")
        return cls(
            constraint_of(fields),
            tool_use(*(fields.get(name) for name in TOOL_FIELDS)),
            read_thinking(fields),
            verbosity,
        )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """A request's requirements on its output, resolved for a model.

    Attributes:
        use: the tools that may or must be called.
        constraint: the structured output constraint, or None.
        thinking: whether the model thinks, and its token budget.
        verbosity: the requested length of the answer, for templates that use it.
    """

    use: ToolUse = NO_TOOLS
    constraint: Constraint | None = None
    thinking: Thinking = DEFAULT_THINKING
    verbosity: str | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """Chat template variables that follow from the request's own fields."""
        verbosity = {} if self.verbosity is None else {"verbosity": self.verbosity}
        return {**self.thinking.variables, **verbosity}


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """How one request's outputs are constrained and parsed.

    Attributes:
        program: the output program that the engine enforces.
        parser: creates a choice's parser; None where all text is content.
        kept: special tokens that the parser reads.
        thinks: the output may contain thinking, whose tokens are counted.
        budget: the request's limit of thinking tokens; None: no limit.
    """

    program: OutputProgram = FREE
    parser: ParserFactory | None = None
    kept: frozenset[int] = frozenset()
    thinks: bool = False
    budget: int | None = None


PLAIN = AnswerRules()
"""Free text, all of it content."""


def output_options_of(
    chat: ChatSide,
    asked: OutputRequest,
    *,
    sampling: SamplingParams,
    prompt_options: PromptOptions,
) -> OutputOptions:
    """Resolve what a request asks of its output for a model, and find contradictions.

    Args:
        chat: the model's.
        asked: the request's.
        sampling: its parameters, some of which can end or prolong an output.
        prompt_options: how its conversation is rendered.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member, or both of two that exclude each other.
    """
    use, constraint = asked.use, asked.constraint
    thinking = thinking_of(
        asked.thinking, chat.abilities_for(use), thinks=chat.thinks, kwargs=prompt_options.kwargs
    )
    check_tools(use, chat)
    if use.tools and not chat.calls:
        raise bad_request(
            "tools",
            "tools: this model's tool call format is not known; start the server with "
            "--tool-format",
        )
    constrained_by = constraint.field if constraint is not None else use.enforced
    if constrained_by is not None:
        check_stop_params(constrained_by, sampling)
    kind = None if constraint is None or constraint.grammar is None else constraint.grammar.kind
    optional_calls = use.tools and not use.required
    if constraint is not None and optional_calls and kind not in _WITH_CALLS:
        raise _exclude("tools", constraint.field)
    if prompt_options.continue_final_message:
        if constrained_by is not None:
            raise _exclude(constrained_by, "continue_final_message")
        if thinking.wanted:
            raise _exclude(thinking.by, "continue_final_message")
    verbosity = _verbosity(asked.verbosity, chat.abilities_for(use))
    return OutputOptions(use, constraint, thinking, verbosity)


def _verbosity(value: str | None, abilities: Abilities) -> str | None:
    """`verbosity` as the template takes it; OpenAI's default ``medium`` is a neutral value."""
    if value is None or (value == "medium" and not abilities.verbosity):
        return None
    if not abilities.verbosity:
        raise bad_request(
            "verbosity",
            f"verbosity {value}: the model's chat template does not use it; ask for long or short "
            "answers in a message",
        )
    return value


def text_rules(
    constraint: Constraint | None, sampling: SamplingParams, prepare: Prepare
) -> AnswerRules:
    """The rules of a plain prompt's completion, whose text is all content.

    Args:
        constraint: the request's.
        sampling: its parameters, some of which can end or prolong an output.
        prepare: see `ChatSide`.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member, or both of two that exclude each other.
    """
    if constraint is None:
        return PLAIN
    check_stop_params(constraint.field, sampling)
    return AnswerRules(program=OutputProgram((_ruled(constraint, prepare),)))


def check_tools(use: ToolUse, chat: ChatSide) -> None:
    """Raise unless the model's chat template supports the request's tools.

    Raises:
        TidemillError: kind BAD_REQUEST naming ``tools``.
    """
    if use.shown and not chat.tool_abilities.tools:
        raise bad_request(
            "tools",
            "tools: the model's chat template does not support tools; start the server with one "
            "that does (--chat-template FILE)",
        )


def check_stop_params(constrained_by: str, sampling: SamplingParams) -> None:
    """Reject sampling fields that end a constrained output early or prolong it past its end.

    Args:
        constrained_by: the field that constrains the output.
        sampling: the request's parameters.

    Raises:
        TidemillError: kind BAD_REQUEST naming both fields.
    """
    for name, harmless in STOP_PARAMS.items():
        if getattr(sampling, name) != harmless:
            raise _exclude(name, constrained_by)


def _exclude(one: str, other: str) -> TidemillError:
    return bad_request(one, f"{one} and {other} exclude each other; send one of them")


def rules_of(
    chat: ChatSide, output_options: OutputOptions, prompt: str, *, continued: bool = False
) -> AnswerRules:
    """The rules for the outputs of a rendered prompt.

    Args:
        chat: the model's.
        output_options: the request's.
        prompt: the prompt's text as the template rendered it.
        continued: the output continues a message whose thinking has ended.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field that cannot be honoured.
    """
    state = "over" if continued else _thinking_state(chat.form, prompt)
    budget = output_options.thinking.budget
    if budget is not None and state == "over":
        by = output_options.thinking.budget_by
        raise bad_request(
            by, f"{by}: the chat template closes the thinking in the prompt; there is none to bound"
        )
    phases: list[Phase] = []
    ruled = _ruled_part(chat, output_options)
    if state != "over" and (ruled is not None or budget is not None):
        by = output_options.thinking.budget_by or (ruled.param if ruled is not None else "")
        has_switch = chat.abilities_for(output_options.use).switch is not None
        phases += _thinking_phases(chat, by, budget, opened=state == "open", has_switch=has_switch)
    if ruled is not None:
        if output_options.constraint is not None and not output_options.use.tools:
            phases += _answer_mark(chat)
        phases.append(ruled)
    elif phases:
        phases.append(FreeText())
    return AnswerRules(
        program=OutputProgram(tuple(phases)),
        parser=_parser(chat, output_options, state, continued=continued),
        kept=chat.kept,
        thinks=chat.thinks,
        budget=budget,
    )


def _thinking_state(form: Format, prompt: str) -> str:
    """``open`` if the prompt ends inside the thinking, ``over`` if after it, else ``ahead``."""
    think, end = form.think, prompt.rstrip()
    if think is None or end.endswith(think.close.strip()):
        return "over"
    return "open" if end.endswith(think.open.strip()) else "ahead"


def _thinking_phases(
    chat: ChatSide, by: str, budget: int | None, *, opened: bool, has_switch: bool
) -> tuple[Phase, ...]:
    """Thinking up to its closing mark, which the model writes or an exhausted budget forces.

    The opening mark is forced in three cases: the request sets a budget, the template has a
    thinking switch that is not off, or the mark's first token could also begin another mark.
    Otherwise the model decides whether to think.

    Args:
        by: the field that constrains the text after the thinking, for errors.
        budget: maximum number of tokens, or None.
        opened: the prompt ends inside the thinking.
        has_switch: the template has a variable that turns thinking on and off.
    """
    think, tokenizer = chat.form.think, chat.tokenizer
    assert think is not None
    mark = think.close.strip()
    close = _mark_ids(tokenizer, mark)
    # The mark must encode to the same tokens after any text, or its end could be missed.
    size = len(close)
    spelled = [tokenizer.encode(f"{text}{mark}{{", add_special=False) for text in _BEFORE_MARKS]
    if any(tuple(ids[-size - 1 : -1]) != close for ids in spelled):
        raise unsupported(
            by,
            f"{by}: this model ends its thinking with {mark!r}, which is not a single token, so "
            "the end of the thinking cannot be detected; turn thinking off "
            "(enable_thinking: false)",
        )
    gap = tuple(tokenizer.encode(mark + think.gap, add_special=False))
    gap = gap[size:] if gap[:size] == close else ()
    # Truncated thinking ends with a newline before the closing mark, as the model's own does.
    end = () if budget is None else (*tokenizer.encode("\n", add_special=False), *close)
    begin = _mark_ids(tokenizer, think.open)
    if opened:
        return (FreeText(until=(close,), budget=budget, then=end), Forced(gap))
    others = (chat.form.begin, *chat.form.section, *chat.form.dropped)
    unambiguous = not any(_mark_ids(tokenizer, m)[:1] == begin[:1] for m in others if m)
    if budget is None and not has_switch and unambiguous:
        # The model may or may not think. A forced gap cannot follow an optional phase, so the gap
        # is not written.
        return (FreeText(until=(close,), opened_by=begin[:1]),)
    left = None if budget is None else max(0, budget - len(begin))
    return (Forced(begin), FreeText(until=(close,), budget=left, then=end), Forced(gap))


def _answer_mark(chat: ChatSide) -> tuple[Phase, ...]:
    """The mark before an answer, if the vocabulary has a token for it."""
    ids = chat.tokenizer.encode(chat.form.answer, add_special=False) if chat.form.answer else []
    return (Forced(tuple(ids)),) if chat.kept.intersection(ids) else ()


def _mark_ids(tokenizer: Tokenizer, mark: str) -> tuple[int, ...]:
    """A mark's tokens within a text."""
    ids = tokenizer.encode(mark, add_special=False)
    # SentencePiece models prepend a space to the beginning of a text.
    while len(ids) > 1 and not tokenizer.token_bytes(ids[0]).strip():
        ids = ids[1:]
    return tuple(ids)


def _ruled_part(chat: ChatSide, output_options: OutputOptions) -> Grammar | None:
    """The grammar of the answer after the thinking; None for free text."""
    use, constraint = output_options.use, output_options.constraint
    if constraint is not None and not use.tools:
        return _ruled(constraint, chat.prepare)
    if constraint is None and use.enforced is None:
        return None
    by = use.enforced if use.enforced is not None else "tools"
    document = None
    if constraint is not None and not use.required:
        document = constraint.grammar
        assert document is not None, "output_options_of rejects regions with tools"
        if document.kind == "json_schema":
            source = chat.prepare(document.source, document.param)
            document = msgspec.structs.replace(document, source=source)
    tools = [
        replace(tool, schema=chat.prepare(tool.schema, f"{tool.param}.parameters"))
        for tool in use.tools
    ]
    spelled = {chat.tokenizer.id_to_token(token): token for token in chat.kept}
    source = calls_grammar(
        chat.form,
        tools,
        Spelling({text: token for text, token in spelled.items() if text is not None}),
        required=use.required,
        parallel=use.parallel,
        document=document,
    )
    return Grammar("lark", source, by)


def _parser(
    chat: ChatSide, output_options: OutputOptions, state: str, *, continued: bool
) -> ParserFactory | None:
    """The factory of a choice's parser; None where the model has no marks to parse."""
    use, form = output_options.use, chat.form
    if not chat.thinks and not use.tools and not form.dropped:
        return None

    def make() -> Parser:
        return OutputParser(
            form,
            use.tools,
            parse_tools=bool(use.tools),
            # After the thinking, a document may begin with text that looks like more thinking.
            parse_reasoning=output_options.constraint is None or state != "over",
            starts_in_reasoning=state == "open",
            document=output_options.constraint is not None,
            continued=continued,
            stream_arguments=use.enforced is not None or output_options.constraint is not None,
        )

    return make


def _ruled(constraint: Constraint, prepare: Prepare) -> Grammar:
    """The phase that enforces a constraint on a whole text."""
    if constraint.grammar is not None:
        return constraint.grammar
    source = regions_grammar(constraint.regions, constraint.triggers, prepare)
    return Grammar("lark", source, constraint.field)
