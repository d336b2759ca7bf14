"""Searches a stream of tokens for several token sequences at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Triggers:
    """An automaton over token sequences (Aho and Corasick, 1975): one step per token.

    A state is a number; 0 is the initial state.

    Args:
        sequences: the token sequences, each non-empty.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._met = [False]
        for sequence in sequences:
            self._add(sequence)
        self._fall = [0] * len(self._next)
        todo = deque(self._next[0].values())
        while todo:
            state = todo.popleft()
            for token, child in self._next[state].items():
                self._fall[child] = self._go(self._fall[state], token)
                self._met[child] |= self._met[self._fall[child]]
                todo.append(child)

    def _add(self, sequence: Sequence[int]) -> None:
        state = 0
        for token in sequence:
            if token not in self._next[state]:
                self._next[state][token] = len(self._next)
                self._next.append({})
                self._met.append(False)
            state = self._next[state][token]
        self._met[state] = state != 0

    def _go(self, state: int, token: int) -> int:
        while state and token not in self._next[state]:
            state = self._fall[state]
        return self._next[state].get(token, 0)

    def step(self, state: int, token: int) -> tuple[int, bool]:
        """The state after a token, and whether a sequence ends with it."""
        state = self._go(state, token)
        return state, self._met[state]
