"""The constraint interface that the scheduler uses; `tidemill.grammar` implements it."""

from __future__ import annotations

from typing import Any, Protocol


class Constraint(Protocol):
    """The position of one choice in its OutputProgram. Only accepted tokens advance it for good, so
    neither a preemption nor a rollback of a step changes it."""

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

    def allows(self, token_id: int) -> bool:
        """Whether the next token may be this one: what its mask says."""

    def mark(self) -> Any:
        """Remember the position. Tokens accepted from now on are tentative: `rollback` follows,
        before the next mark."""

    def rollback(self, mark: Any) -> None:
        """Return to a marked position."""

    def forced(self) -> tuple[int, ...]:
        """The tokens that are the only allowed continuation; empty if several tokens are allowed.

        Masks would enforce the same tokens one by one, so appending them does not change the
        output.
        """

    def fork(self) -> Constraint:
        """Another one in the same position."""
