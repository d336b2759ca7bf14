"""Stop strings in streamed text; no part of a matched one is emitted unless asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence


def _failures(pattern: str) -> list[int]:
    """Knuth-Morris-Pratt table: for each length, the longest proper border of that prefix."""
    table = [0] * (len(pattern) + 1)
    k = 0
    for i in range(1, len(pattern)):
        while k and pattern[i] != pattern[k]:
            k = table[k]
        k += pattern[i] == pattern[k]
        table[i + 1] = k
    return table


class StopSet:
    """Stop strings and their search tables, built once and shared by all choices.

    Args:
        stops: stop strings, each non-empty.
    """

    __slots__ = ("failures", "first", "stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(dict.fromkeys(stops))
        self.failures = [_failures(stop) for stop in self.stops]
        initials = "".join(sorted({re.escape(stop[0]) for stop in self.stops}))
        self.first = re.compile(f"[{initials}]") if initials else None

    def __len__(self) -> int:
        return len(self.stops)


class StopMatcher:
    """Finds the first stop string of a stream of text.

    The match that ends first wins; among matches that end at the same character, the one that
    starts first. The result does not depend on how the text is split into pushes. Text that may
    become part of a stop string is held back. Time is linear in the length of the text times the
    number of stop strings (Knuth, Morris, Pratt 1977).

    Attributes:
        matched: the stop string that ended the text, or None.

    Args:
        stops: stop strings, each non-empty; a `StopSet` if several matchers share them.
        include: the matched stop string is part of the text; else no part of it is emitted.
    """

    __slots__ = ("_failures", "_first", "_held", "_include", "_states", "_stops", "matched")

    def __init__(self, stops: Sequence[str] | StopSet, *, include: bool = False) -> None:
        self._include = include
        shared = stops if isinstance(stops, StopSet) else StopSet(stops)
        self._stops, self._failures, self._first = shared.stops, shared.failures, shared.first
        self._states = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, armed: bool = True) -> tuple[str, bool]:
        """Add text; return the text that may be shown, and whether a stop string has matched.

        Args:
            text: the next part of the output.
            armed: False while the output must not end yet (`min_tokens`): a stop string completed
                in `text` is then ordinary text. One that begins in `text` and is completed by a
                later armed push matches.

        All text after a match is dropped.
        """
        if self.matched is not None:
            return "", True
        if self._first is None:
            return text, False
        if not self._held and self._first.search(text) is None:
            return text, False
        end = self._advance(text, armed)
        buffer = self._held + text
        if end is not None:
            last = len(self._held) + end
            self._held = ""
            return buffer[: last if self._include else last - len(self.matched or "")], True
        keep = len(buffer) - max(self._states)
        self._held = buffer[keep:]
        return buffer[:keep], False

    def finish(self) -> str:
        """End the output; return the text held back."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _advance(self, text: str, armed: bool) -> int | None:
        """Run the automata over `text`; on a match, set `matched` and return the index after it."""
        stops, failures, states = self._stops, self._failures, self._states
        for index, char in enumerate(text):
            met = False
            for k, stop in enumerate(stops):
                state = states[k]
                table = failures[k]
                while state and stop[state] != char:
                    state = table[state]
                if stop[state] == char:
                    state += 1
                    if state == len(stop):
                        if armed and (self.matched is None or len(stop) > len(self.matched)):
                            self.matched = stop
                            met = True
                        state = table[state]
                states[k] = state
            if met:
                return index + 1
        return None
