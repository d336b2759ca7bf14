"""What a pull says while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from tidemill.base.errors import ErrorKind, TidemillError


@dataclass(frozen=True, slots=True)
class Progress:
    """One state of a pull.

    Attributes:
        stage: ``resolving``, ``downloading``, ``verifying``, ``unpacking`` or ``complete``.
        done, total: bytes of this stage; 0 and 0 where they are unknown.
        message: a line about something that people should know (a choice, a wait); else None.
    """

    stage: str
    done: int = 0
    total: int = 0
    message: str | None = None


OnProgress = Callable[[Progress], None]


class Reporter:
    """Passes the states of one pull on, and stops it when asked to.

    Args:
        on_progress: called in the thread that pulls.
        cancel: the pull stops soon after it is set.
    """

    def __init__(self, on_progress: OnProgress, cancel: Event | None = None) -> None:
        self._call = on_progress
        self.cancel = cancel or Event()
        self._state = Progress("resolving")

    def stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        """A stage begins."""
        self._report(Progress(stage, done, total))

    def at(self, done: int) -> None:
        """So many bytes of the stage are done."""
        if done != self._state.done:
            self._report(Progress(self._state.stage, done, self._state.total))

    def more(self, count: int) -> None:
        """So many more bytes of the stage are done."""
        self.at(self._state.done + count)

    def say(self, line: str) -> None:
        """A line for people."""
        state = self._state
        self.check()
        self._call(Progress(state.stage, state.done, state.total, line))

    def check(self) -> None:
        """Raise CANCELLED if the pull shall stop."""
        if self.cancel.is_set():
            raise TidemillError(
                ErrorKind.CANCELLED,
                "the pull was cancelled; what was downloaded is kept, and pulling again resumes",
                retryable=True,
            )

    def _report(self, state: Progress) -> None:
        self.check()
        self._state = state
        self._call(state)
