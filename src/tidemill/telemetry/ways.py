"""Targets that a gateway gave a request to, and what became of it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Way:
    """A request was given to a target. Times are of `base.clock.monotonic`; 0: it did not happen.

    Attributes:
        target: its name.
        given: when.
        first: the first part of its answer came.
        ended: it failed before that, or was lost after it.
        why: in words; empty: neither.
    """

    target: str
    given: float
    first: float = 0.0
    ended: float = 0.0
    why: str = ""


def answering(ways: Sequence[Way]) -> Way | None:
    """The one whose answer the client got first."""
    return min((way for way in ways if way.first), key=lambda way: way.first, default=None)


def target_of(ways: Sequence[Way]) -> str:
    """The target that answered, the last of several; else the last one that was asked."""
    found = [way for way in ways if way.first] or ways
    return found[-1].target if found else ""
