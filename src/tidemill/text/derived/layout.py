"""Separates the marks of one call from those of the calls' section, by comparing turns."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.text.derived.turns import CLOSERS, OPENERS, common_prefix, common_suffix


@dataclass(frozen=True, slots=True)
class Around:
    """The texts around a call.

    Attributes:
        begin, end: enclose every call; white space included.
        opening, closing: enclose all calls together.
        between: separates two calls.
    """

    begin: str
    end: str
    opening: str = ""
    closing: str = ""
    between: str = ""


def around(before: str, middle: str | None, after: str) -> Around:
    """Separate the marks of a call from the marks of the section.

    Args:
        before: the text before the first call.
        middle: the text between two calls; None if a turn has at most one call.
        after: the text after the last call.
    """
    if middle is None:
        return Around(before, after)
    begin, end = common_suffix(before, middle), common_prefix(middle, after)
    if len(begin) + len(end) > len(middle):
        at = boundary(middle, len(middle) - len(begin), len(end))
        begin, end = middle[at:], middle[:at]
    if not begin.strip() and not end.strip():  # only the text between calls separates them
        return Around("", "", before, after, middle)
    return Around(
        begin,
        end,
        before[: len(before) - len(begin)],
        after[len(end) :],
        middle[len(end) : len(middle) - len(begin)],
    )


def boundary(text: str, least: int, most: int) -> int:
    """The offset from `least` to `most` where one mark ends and the next begins; else `most`."""
    for at in range(least, most + 1):
        left, right = text[:at].rstrip(), text[at:].lstrip()
        if left[-1:] in CLOSERS and right[:1] in OPENERS:
            return at
    return most


def spread_of(found: Around) -> str:
    """The line break between the section's mark and the first call, if there is a section."""
    opening, begin = found.opening, found.begin
    apart = opening.endswith("\n") or begin.startswith("\n")
    return "\n" if opening.strip() and apart else ""


def trimmed(opening: str, closing: str) -> tuple[str, str]:
    """Split a closing text into the part that closes `opening` and the rest (the turn's end)."""
    mark, rest = split_tags(closing)
    if not opening.strip():
        return "", closing.strip()
    return (mark, rest) if rest and not split_tags(opening)[1] else (closing.strip(), "")


def split_tags(text: str) -> tuple[str, str]:
    """Split a text into its first tag and the rest; the rest is empty if it has only one."""
    stripped = text.strip()
    for at in range(1, len(stripped)):
        if stripped[at - 1].isspace() or stripped[at - 1 : at + 1] == "><":
            return stripped[:at].rstrip(), stripped[at:].lstrip()
    return stripped, ""
