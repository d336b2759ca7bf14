"""The result that was made last, so that parts of one thing asked for in turn make it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Recent:
    """Holds one result, and with it what that takes in memory, until the next or `forget`."""

    def __init__(self) -> None:
        self._last: tuple[object, Callable[..., Any], Any] | None = None

    def get(self, owner: object, make: Callable[..., T]) -> T:
        """What `make(owner)` gives; made anew unless the last call had the same two.

        Args:
            owner: compared by identity.
            make: a function, of its class and not bound to the owner.
        """
        last = self._last
        if last is not None and last[0] is owner and last[1] is make:
            found: T = last[2]
            return found
        self._last = last = None  # the two are never held at once
        made = make(owner)
        self._last = (owner, make, made)
        return made

    def forget(self) -> None:
        """Hold nothing."""
        self._last = None
