"""The constraint interface that the scheduler uses; `tidemill.grammar` implements it."""

from __future__ import annotations

from typing import Protocol


class Constraint(Protocol):
    """The position of one choice in its OutputProgram. Only accepted tokens advance it, so neither
    a preemption nor a rollback changes it."""

    @property
    def masked(self) -> bool:
        """The next token needs a mask."""

    @property
    def complete(self) -> bool:
        """The output satisfies the program and cannot continue: the choice ends."""

    @property
    def repeats(self) -> bool:
        """The output has been repeating itself for long."""

    def accept(self, token_id: int) -> None:
        """Advance by a token.

        Raises:
            TidemillError: the token is not allowed (a bug, or a replay of another program), or the
                grammar exceeded its size limits.
        """

    def forced(self) -> tuple[int, ...]:
        """The tokens that are the only allowed continuation; empty if several tokens are allowed.

        Masks would enforce the same tokens one by one, so appending them does not change the
        output.
        """

    def fork(self) -> Constraint:
        """Another one in the same position."""
