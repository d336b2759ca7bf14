"""OutputProgram: the constraints on a request's output, as phases that the engine runs in order.

Structured output, tool choice, thinking budgets and jump-ahead are all this one thing. The engine
enforces it; the API process only builds it. An empty program is free text to the end.

The output may end (by an end token or a stop token id) only in or after the last phase: until then
those tokens cannot be sampled. Only `max_tokens`, the context's end and a cancel cut a program
short.
"""

from __future__ import annotations

import msgspec


class FreeText(msgspec.Struct, frozen=True, tag="free", omit_defaults=True):
    """Unconstrained tokens, until a trigger has been produced or a budget of tokens is used up.

    Attributes:
        until: token sequences; the phase ends right after the first of them that the output spells.
            Empty means to the end of the output (then it is the last phase).
        budget: at most this many tokens in the phase, the trigger's own included; None: no bound.
        then: forced (as tokens of the output) when the budget ends the phase, and not when a
            trigger does: a clean end of the thinking.
        opened_by: token ids that open the phase: if the first token is none of them, the phase is
            skipped and that token belongs to the next phase, so the first token is one of these or
            one that the next phase allows. Empty: the phase is entered without a condition.
    """

    until: tuple[tuple[int, ...], ...] = ()
    budget: int | None = None
    then: tuple[int, ...] = ()
    opened_by: tuple[int, ...] = ()


class Grammar(msgspec.Struct, frozen=True, tag="grammar", omit_defaults=True):
    """Tokens that spell a member of a language.

    Attributes:
        kind: ``json_schema`` (source: the schema as JSON text; ``true`` and ``{}`` mean any value),
            ``json_object`` (any object; no source), ``regex``, ``choice`` (source: a JSON list of
            strings), ``lark`` (llguidance's dialect, special tokens as ``<[id]>``), ``gbnf``
            (llama.cpp's).
        source: see `kind`.
        param: the request's field it came from, for errors.
    """

    kind: str
    source: str = ""
    param: str = "grammar"


class Forced(msgspec.Struct, frozen=True, tag="forced"):
    """Exactly these tokens."""

    token_ids: tuple[int, ...]


Phase = FreeText | Grammar | Forced


class StopStrings(msgspec.Struct, frozen=True, array_like=True):
    """Strings that end the output with the token that completes one.

    Attributes:
        texts: the strings.
        min_tokens: one that is completed by an earlier token ends nothing.
        special: special tokens are part of the text.
    """

    texts: tuple[str, ...]
    min_tokens: int = 0
    special: bool = False


class OutputProgram(msgspec.Struct, frozen=True, omit_defaults=True):
    """Phases run in order; see the module.

    Attributes:
        phases: at least one, if anything is constrained.
        stops: of a beam search, whose beams must end in the engine. Otherwise the API process finds
            stop strings, and ends the output there.
    """

    phases: tuple[Phase, ...] = ()
    stops: StopStrings | None = None

    @property
    def free(self) -> bool:
        """True when nothing is constrained."""
        return not self.phases
