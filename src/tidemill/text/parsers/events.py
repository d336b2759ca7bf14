"""What a parser finds in a model's output, in order.

Concatenating the events' texts of one kind gives the same whatever the chunking of the output
(promise 8).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins.

    Attributes:
        index: calls of one output are numbered from 0.
        name: of a tool that was offered.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: JSON text; joined, one valid JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete and its arguments are a JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """Something that began like a tool call and is none; its text follows (or was sent) as Content.

    Attributes:
        reason: one line for a person: what is wrong and where.
        index: the call it had been announced as (a `CallStart` went out), or None.
    """

    reason: str
    index: int | None = None


Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Malformed
