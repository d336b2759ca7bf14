"""Background requests are not counted: whoever sends them bounds how many there are, and none takes
anything from others (`sched.planning`)."""

from __future__ import annotations

from collections.abc import Sequence


class Uncounted:
    """A `Ticket` of a background request."""

    def end_choice(self, prompt: int) -> None:
        """A choice of a prompt has ended."""

    def progress(self, prompt: int, tokens: int) -> None:
        """A prompt got more tokens."""

    def close(self, lengths: Sequence[int] = ()) -> None:
        """The request has ended."""


UNCOUNTED = Uncounted()
