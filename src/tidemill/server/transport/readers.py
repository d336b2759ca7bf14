"""Slow readers: clients that do not read their answers are detected and disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger

log = get_logger(__name__)

CHECK_SECONDS = 1.0
"""Interval between checks of the watched connections."""

_PROGRESS_BYTES = 2**14


class SlowReaders:
    """Disconnects clients that do not make progress in reading their answers.

    Args:
        timeout: seconds within which a client must read half of its buffered data, or 16 KiB.
        on_cut: called for each client that is disconnected.

    For the event loop's thread only. The timer runs only while a watched connection has a request
    in flight or unread data, so an idle server does not wake up.
    """

    def __init__(self, timeout: float, on_cut: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_cut = on_cut
        self._watched: dict[asyncio.Transport, Callable[[], bool]] = {}
        self._unread: dict[
            asyncio.Transport, tuple[float, int]
        ] = {}  # (time, bytes) of the last progress
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, transport: asyncio.Transport, answering: Callable[[], bool]) -> None:
        """Watch a connection until no request is in flight on it and its buffer is empty.

        Args:
            transport: the connection's.
            answering: returns whether a request of it is being answered.
        """
        self._watched[transport] = answering
        if self._timer is None:
            self._tick()

    def forget(self, transport: asyncio.Transport) -> None:
        """Stop watching a closed connection."""
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
