"""How a conversion tells its caller what it does and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tidemill.convert.output import OutTensor, Progress


def _no_bar(title: str, total: int, sizes: bool) -> AbstractContextManager[Progress]:
    return nullcontext(lambda count: None)


@dataclass(frozen=True, slots=True)
class Report:
    """Callbacks of a conversion; by default nothing is shown.

    Attributes:
        say: called with a line for the user.
        bar: opens a progress bar, from its title, its total and whether its units are bytes; the
            bar is called with the number of finished units.
    """

    say: Callable[[str], None] = lambda line: None
    bar: Callable[[str, int, bool], AbstractContextManager[Progress]] = _no_bar

    def writing(self, tensors: Sequence[OutTensor]) -> AbstractContextManager[Progress]:
        """A bar over the bytes of the tensors to write."""
        return self.bar("writing", sum(tensor.nbytes for tensor in tensors), True)


SILENT = Report()
