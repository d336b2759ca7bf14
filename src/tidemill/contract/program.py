"""OutputProgram: what a request's output must obey, as phases the engine runs in order.

Structured output, tool choice, thinking budgets and jump-ahead are all this one thing. The engine
enforces it; the API process only builds it. An empty program is free text to the end.
"""

from __future__ import annotations

import msgspec


class Trigger(msgspec.Struct, frozen=True, tag=True):
    """Ends a free phase: the output has just produced these tokens (or this text)."""

    token_ids: tuple[int, ...] = ()
    text: str = ""


class FreeText(msgspec.Struct, frozen=True, tag="free"):
    """Unconstrained tokens, until a trigger fires or a budget of tokens is used up.

    Attributes:
        until: the triggers that end the phase; empty means to the end of the output.
        budget: at most this many tokens in the phase; None means no bound.
    """

    until: tuple[Trigger, ...] = ()
    budget: int | None = None


class Grammar(msgspec.Struct, frozen=True, tag="grammar"):
    """Tokens that spell a member of a language.

    Attributes:
        kind: ``json_schema``, ``regex``, ``choice`` or ``lark``.
        source: the schema (JSON text), expression or grammar.
    """

    kind: str
    source: str


class Forced(msgspec.Struct, frozen=True, tag="forced"):
    """Exactly these tokens (an end of thinking, the opening of a tool call)."""

    token_ids: tuple[int, ...]


Phase = FreeText | Grammar | Forced


class OutputProgram(msgspec.Struct, frozen=True):
    """Phases run in order; the output may end (by an end token) only in or after the last."""

    phases: tuple[Phase, ...] = ()

    @property
    def free(self) -> bool:
        """True when nothing is constrained."""
        return not self.phases
