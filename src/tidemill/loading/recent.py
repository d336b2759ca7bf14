"""A cache of the latest result, so that consecutive reads of parts of one tensor unpack it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Recent:
    """Caches one result until the next one or `forget`."""

    def __init__(self) -> None:
        self._last: tuple[object, Callable[..., Any], Any] | None = None

    def get(self, owner: object, make: Callable[..., T]) -> T:
        """The result of `make(owner)`, cached when the last call had the same arguments.

        Args:
            owner: compared by identity.
            make: an unbound function, compared by identity.
        """
        last = self._last
        if last is not None and last[0] is owner and last[1] is make:
            found: T = last[2]
            return found
        self._last = last = None  # never hold the old and the new result at once
        made = make(owner)
        self._last = (owner, make, made)
        return made

    def forget(self) -> None:
        """Drop the cached result."""
        self._last = None
