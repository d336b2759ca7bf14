"""What the scheduler asks of a choice's constraint; `tidemill.grammar` answers."""

from __future__ import annotations

from typing import Protocol


class Constraint(Protocol):
    """Where one choice stands in its OutputProgram. It advances with accepted tokens alone, so a
    preemption or a step taken back does not touch it."""

    @property
    def masked(self) -> bool:
        """The next token needs a mask."""

    @property
    def complete(self) -> bool:
        """The output obeys the program and can go no further: the choice ends here."""

    @property
    def repeats(self) -> bool:
        """The output goes round in circles and has for long."""

    def accept(self, token_id: int) -> None:
        """Advance by a token.

        Raises:
            TidemillError: the token is not allowed here (a defect, or a replay of another program),
                or the language grew beyond its bounds.
        """

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next, known without sampling; empty when there is a choice.

        They are what masks would enforce one by one, so appending them changes no answer.
        """
