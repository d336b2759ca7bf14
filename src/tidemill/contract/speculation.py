"""Speculation: what may draft tokens ahead of an output, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

OFF, AUTO = "off", "auto"
LOOKUP, DRAFT, MEDUSA, SKIP, EAGLE = "lookup", "draft", "medusa", "skip", "eagle"
MTP = "mtp"

GRAMMAR = "grammar"
"""Name of drafts that no drafter proposed: what a constraint forces, where it is sampled."""

DRAFTERS = (LOOKUP, DRAFT, MEDUSA, SKIP, EAGLE, MTP)
"""In the order in which they are asked: the first that proposes something is taken."""

BY_REQUEST = (OFF, AUTO, *DRAFTERS)
"""Values of a request's `speculation`."""

_FILES = {DRAFT: "MODEL", MEDUSA: "PATH", EAGLE: "PATH"}


class Setting(NamedTuple):
    """A value of `--speculate`.

    Attributes:
        default: what drafts where a request does not say it: one of `BY_REQUEST`.
        drafters: those that are loaded, so that a request can have them.
        file: of the last one: the model's name, or the path of its checkpoint; else empty.
    """

    default: str
    drafters: tuple[str, ...]
    file: str = ""


def read_setting(text: str) -> Setting:
    """A value of `--speculate`. Lookup is there in any case, because it costs no memory.

    Raises:
        ValueError: it is none; says what is.
    """
    name, equals, file = text.partition("=")
    if name in (OFF, AUTO, LOOKUP) and not equals:
        return Setting(name, (LOOKUP,))
    if name in DRAFTERS and bool(file) == (name in _FILES) == bool(equals):
        return Setting(AUTO, (LOOKUP, name), file)
    raise ValueError(f"must be one of {', '.join(available())}; got {text!r}")


def available() -> tuple[str, ...]:
    """What `--speculate` takes, as it is written for people."""
    return (OFF, AUTO, *(f"{d}={_FILES[d]}" if d in _FILES else d for d in DRAFTERS))


def drafters_of(
    default: str | None, loaded: Sequence[str], asked: str | None, *, expected: bool
) -> tuple[str, ...]:
    """What may draft for a request, in the order in which it is asked; empty: nothing.

    Args:
        default: the engine's; None: it verifies no drafts.
        loaded: the engine's drafters.
        asked: the request's, or None.
        expected: the request has a prediction.
    """
    if default is None:
        return ()
    chosen = asked or (LOOKUP if expected and default == OFF else default)
    return tuple(d for d in DRAFTERS if d in loaded and chosen in (AUTO, d))
