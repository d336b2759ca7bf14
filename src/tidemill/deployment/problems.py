"""Where a setting's value came from, and what is wrong with a deployment."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.deployment.positions import Position

MAX_SHOWN = 100
"""Problems that are listed one by one."""


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from.

    Attributes:
        source: ``default``, ``file``, ``environment``, ``flag``, ``model`` (its own files) or
            ``machine`` (chosen at start).
        name: the file, environment variable or flag.
        position: in the file.
        note: what else is worth saying, such as ``[defaults]``.
    """

    source: str
    name: str = ""
    position: Position | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.source == "file":
            at = f":{self.position.line}:{self.position.column}" if self.position else ""
            text = f"{self.name}{at}"
        else:
            text = self.name or self.source
        return f"{text} ({self.note})" if self.note else text


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        origin: where.
        key: the setting, as in ``models[0].threads``; empty for the document as a whole.
        message: what is wrong, and the remedy.
    """

    origin: Origin
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.origin}: " if self.origin.source != "default" else ""
        about = f"{self.key}: " if self.key else ""
        return f"{where}{about}{self.message}"


class DeploymentError(TidemillError):
    """Everything that is wrong with a deployment, in the order of the file; kind CONFIG.

    Args:
        problems: at least one.

    Attributes:
        problems: sorted by place.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=_order))
        assert self.problems, "an error names what is wrong"
        count = len(self.problems)
        summary = [] if count == 1 else [f"{count} problems:"]
        # No `param`: every line names its key.
        super().__init__(ErrorKind.CONFIG, "\n".join([*summary, *self.lines()]))

    def lines(self) -> list[str]:
        """The first `MAX_SHOWN` problems, and how many more there are."""
        shown = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        more = len(self.problems) - len(shown)
        return [*shown, f"... and {more} more"] if more else shown


def _order(problem: Problem) -> tuple[bool, Position, str]:
    position = problem.origin.position
    return position is None, position or Position(0, 0), problem.key
