"""What a row's token history changes in its logits: bans and DRY (csrc/sample/history.cpp)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.draw.portable_math import Float32

_MOST_PENALTY = 1e30


def ban_words(x: Float32, generated: list[int], words: list[int]) -> None:
    """Ban the tokens that would complete a bad word; `words`: sequences, each after its length."""
    at = 0
    while at < len(words):
        word = words[at + 1 : at + 1 + words[at]]
        start = word[:-1]
        if not start or generated[-len(start) :] == start:
            x[word[-1]] = -np.inf
        at += len(word) + 1


def ban_ngrams(x: Float32, history: list[int], n: int) -> None:
    """Ban the tokens that would complete a sequence of n tokens that occurred already."""
    end = history[len(history) - n + 1 :]
    for i in range(len(history) - n + 1):
        if history[i : i + n - 1] == end:
            x[history[i + n - 1]] = -np.inf


def apply_dry(
    x: Float32, history: list[int], breakers: list[int], options: NDArray[np.void]
) -> None:
    """Subtract DRY's penalties."""
    allowed = int(options["dry_allowed_length"])
    for token, length in _repeats(history, breakers, int(options["dry_penalty_last_n"])).items():
        if length < allowed or token in breakers:
            continue
        penalty = float(options["dry_multiplier"])
        for _ in range(length - allowed):
            if penalty >= _MOST_PENALTY:
                break
            penalty *= float(options["dry_base"])
        x[token] -= np.float32(min(penalty, _MOST_PENALTY))


def _repeats(history: list[int], breakers: list[int], last_n: int) -> dict[int, int]:
    """Token -> the longest end of the history that it followed before."""
    back = history[::-1] if last_n < 0 else history[::-1][:last_n]
    limit = next((i for i, token in enumerate(back) if token in breakers), len(back))
    longest: dict[int, int] = {}
    for i in range(1, len(back)):
        length = 0
        while length < limit and i + length < len(back) and back[length] == back[i + length]:
            length += 1
        longest[back[i - 1]] = max(length, longest.get(back[i - 1], 0))
    return longest
