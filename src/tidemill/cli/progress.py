"""Progress bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, total: int, sizes: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; yields what advances it by a number of units.

    Args:
        title: the label of the bar.
        total: units of work.
        sizes: whether the units are bytes, shown as sizes.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    progress = Progress(
        title, BarColumn(), DownloadColumn() if sizes else MofNCompleteColumn(),
        TimeRemainingColumn(), console=console, disable=not console.is_terminal,
    )  # fmt: skip
    task = progress.add_task("", total=total)
    with progress:
        yield lambda count: progress.advance(task, count)
