"""Finds the token at which an output has repeated itself often enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidemill.contract.repetition import RepetitionDetection


class RepetitionFinder:
    """Reads the tokens of one choice; see `RepetitionDetection` for what it finds.

    For each period p it counts how many of the latest tokens equal the one p before them. The
    last p * k tokens are k times one pattern exactly if that count is at least p * (k - 1).
    Only periods at which the latest token occurred have a count, so that a token takes time
    proportional to its own occurrences among the last `max_pattern_size`.

    Args:
        rule: what is a repetition.
        min_tokens: nothing is found before so many tokens.
    """

    def __init__(self, rule: RepetitionDetection, min_tokens: int = 0) -> None:
        self._low, self._high = rule.min_pattern_size, rule.max_pattern_size
        self._again = rule.min_count - 1
        # By period: the position of its latest token that equals the one a period before, and of
        # the first of such tokens without a gap up to that one.
        self._latest = [-2] * (self._high + 1)
        self._first = [0] * (self._high + 1)
        self._window: deque[int] = deque()  # the last tokens, at most `_high`
        self._places: dict[int, deque[int]] = {}  # token of the window -> its positions
        self._seen = 0
        self._min_tokens = min_tokens

    def push(self, token_ids: Sequence[int]) -> int | None:
        """Add tokens; return how many of them there are up to the one that completes a
        repetition, or None. Nothing may be pushed after it."""
        for index, token in enumerate(token_ids, 1):
            if self._repeats(token):
                return index
        return None

    def _repeats(self, token: int) -> bool:
        now, latest, first = self._seen, self._latest, self._first
        places = self._places.setdefault(token, deque())
        low, again, met = self._low, self._again, False
        for place in places:
            period = now - place
            if period < low:
                break  # later places are nearer
            if latest[period] != now - 1:
                first[period] = now
            latest[period] = now
            if now - first[period] + 1 >= period * again:
                met = True
        self._seen = now + 1
        self._remember(token, now, places)
        return met and self._seen >= self._min_tokens

    def _remember(self, token: int, now: int, places: deque[int]) -> None:
        places.append(now)
        self._window.append(token)
        if len(self._window) > self._high:
            oldest = self._window.popleft()
            left = self._places[oldest]
            left.popleft()
            if not left:
                del self._places[oldest]
