"""Adapters of this server by content, for requests of others, whose paths mean nothing here."""

from __future__ import annotations

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import AdapterUse

UNKNOWN = "moved_adapter"
"""`RequestError.param` where a request has an adapter that is not registered here."""


class KnownAdapters:
    """The adapters that clients of this machine have named."""

    def __init__(self) -> None:
        self._uses: dict[str, AdapterUse] = {}

    def note(self, use: AdapterUse) -> None:
        """A client of this machine has named an adapter, whose digest is known."""
        self._uses[use.digest] = use

    def drop(self, digest: str) -> None:
        """An adapter is not registered any more."""
        self._uses.pop(digest, None)

    def find(self, digest: str) -> AdapterUse:
        """The adapter with this content.

        Raises:
            TidemillError: UNAVAILABLE: there is none.
        """
        use = self._uses.get(digest)
        if use is None:
            text = "an adapter of this request is not registered at that server"
            raise TidemillError(ErrorKind.UNAVAILABLE, text, param=UNKNOWN, retryable=True)
        return use

    def local(self, uses: tuple[AdapterUse, ...]) -> tuple[AdapterUse, ...]:
        """The same adapters, read from this machine's files. Raises as `find`."""
        found = []
        for use in uses:
            mine = self.find(use.digest)
            changed = {"path": mine.path, "nbytes": mine.nbytes, "pinned": mine.pinned}
            found.append(msgspec.structs.replace(use, **changed))
        return tuple(found)
