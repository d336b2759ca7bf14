"""The bound on open connections: no peer can lock out other peers, nor health probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.server.access.auth import by_address

PROBE_CONNECTIONS = 64
"""Connections beyond the bound that are kept for probes; a further one evicts the oldest."""

_MAX_EXAMINED = 64


class Connection(Protocol):
    """A connection, as `Connections` needs it."""

    @property
    def busy(self) -> bool:
        """True when a complete request has not been answered yet."""

    def close_idle(self) -> None:
        """Close the connection, which is not busy."""


@dataclass(slots=True)
class _Peer:
    # In order of arrival; those found busy move to the end.
    connections: dict[Connection, None] = field(default_factory=dict)


class Connections:
    """The open connections, by peer (see `auth.by_address`).

    A single peer may use all of them. When all are in use, a new connection of a peer below its
    share evicts an idle connection of the peer that has most. A connection that is not admitted
    can still serve probes.

    Args:
        bound: maximum number of connections.
        on_full: called for each connection that is not admitted.
    """

    def __init__(self, bound: int, on_full: Callable[[], None] = lambda: None) -> None:
        self.bound = bound
        self._on_full = on_full
        self._peers: dict[str, _Peer] = {}
        self._names: dict[Connection, str] = {}
        self._probes: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._names)

    def enter(self, connection: Connection, host: str) -> bool:
        """Register a new connection; False when it is admitted for probes only."""
        name = by_address(host, None).client_id
        if len(self._names) >= self.bound and not self._evict_idle(name):
            self._on_full()
            if len(self._probes) >= PROBE_CONNECTIONS:
                oldest = next((c for c in self._probes if not c.busy), None)
                if oldest is not None:
                    del self._probes[oldest]
                    oldest.close_idle()
            self._probes[connection] = None
            return False
        self._names[connection] = name
        self._peers.setdefault(name, _Peer()).connections[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._probes.pop(connection, None)
        name = self._names.pop(connection, None)
        if name is None:
            return
        peer = self._peers[name]
        del peer.connections[connection]
        if not peer.connections:
            del self._peers[name]

    def _evict_idle(self, name: str) -> bool:
        """Evict an idle connection of the peer with most, if peer `name` is below its share."""
        most = max(self._peers, key=lambda n: len(self._peers[n].connections))
        mine = self._peers.get(name)
        held = 0 if mine is None else len(mine.connections)
        peers = len(self._peers) + (mine is None)
        if name == most or held + 1 > self.bound / peers:
            return False
        connections = self._peers[most].connections
        for _ in range(min(_MAX_EXAMINED, len(connections))):
            oldest = next(iter(connections))
            if not oldest.busy:
                self.leave(oldest)
                oldest.close_idle()
                return True
            connections[oldest] = connections.pop(oldest)
        return False
