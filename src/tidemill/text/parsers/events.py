"""The events a parser emits for a model's output, in order.

The concatenated texts of the events of one kind do not depend on the chunking of the output
(promise 8).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text added to the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Text added to the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins.

    Attributes:
        index: of the call in the output, from 0.
        name: of one of the request's tools.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Text added to a call's arguments; concatenated, it is one valid JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete and its arguments are a JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """A malformed tool call; its text follows (or was emitted) as Content.

    Attributes:
        reason: one line for humans: the error and where it is.
        index: of the call, if its `CallStart` was emitted, or None.
    """

    reason: str
    index: int | None = None


Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Malformed
