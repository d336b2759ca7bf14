"""Clients that do not read what they are sent: looked for while answers are under way, and cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger

log = get_logger(__name__)

CHECK_SECONDS = 1.0
"""Between two looks at the connections that have something to be read."""

_PROGRESS_BYTES = 2**14


class SlowReaders:
    """Disconnects clients that make no progress in reading their answers.

    Args:
        timeout: seconds within which a client must read all that waits for it, or half, or some
            kilobytes.
        on_cut: called for each that did not.

    Of the event loop's thread. There is a clock only while a watched connection is answered or has
    something left to be read: a server without requests does not wake.
    """

    def __init__(self, timeout: float, on_cut: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_cut = on_cut
        self._watched: dict[asyncio.Transport, Callable[[], bool]] = {}
        self._unread: dict[asyncio.Transport, tuple[float, int]] = {}  # since when so many bytes
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, transport: asyncio.Transport, answering: Callable[[], bool]) -> None:
        """Look after a connection until nothing is answered on it and nothing waits to be read.

        Args:
            transport: of the connection.
            answering: whether a request of it is being answered.
        """
        self._watched[transport] = answering
        if self._timer is None:
            self._tick()

    def forget(self, transport: asyncio.Transport) -> None:
        """The connection is gone."""
        self._watched.pop(transport, None)
        self._unread.pop(transport, None)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        now = monotonic()
        for transport, answering in list(self._watched.items()):
            size, since = transport.get_write_buffer_size(), self._unread.get(transport)
            if not size:
                self._unread.pop(transport, None)
                if not answering():
                    del self._watched[transport]
            elif since is None or size <= max(since[1] - _PROGRESS_BYTES, since[1] // 2):
                self._unread[transport] = (now, size)
            elif now - since[0] > self._timeout:
                log.info("a client read nothing for %.0f s and is disconnected", now - since[0])
                self.forget(transport)
                transport.abort()
                self._on_cut()
        if self._watched:
            self._tick()
