"""Finds the token at which an output has repeated itself often enough."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.contract.repetition import RepetitionDetection


class RepetitionFinder:
    """Reads the tokens of one choice; see `RepetitionDetection` for what it finds.

    For each period p it counts how many of the latest tokens equal the one p before them. The
    last p * k tokens are k times one pattern exactly if that count is at least p * (k - 1).
    Memory and time per token are proportional to the number of periods, not to the output.

    Args:
        rule: what is a repetition.
        min_tokens: nothing is found before so many tokens.
    """

    def __init__(self, rule: RepetitionDetection, min_tokens: int = 0) -> None:
        self._periods = range(rule.min_pattern_size, rule.max_pattern_size + 1)
        self._needed = [p * (rule.min_count - 1) for p in self._periods]
        self._runs = [0] * len(self._periods)
        self._recent: list[int] = []  # the latest tokens, the newest last
        self._keep = rule.max_pattern_size
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
        recent, runs = self._recent, self._runs
        self._seen += 1
        met = False
        for i, period in enumerate(self._periods):
            if period > len(recent):
                break
            runs[i] = runs[i] + 1 if recent[-period] == token else 0
            met = met or runs[i] >= self._needed[i]
        recent.append(token)
        if len(recent) >= 2 * self._keep:
            del recent[: -self._keep]
        return met and self._seen >= self._min_tokens
