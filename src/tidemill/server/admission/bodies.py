"""Bound on the memory of request bodies in flight, with a share for each client."""

from __future__ import annotations

from tidemill.base.clock import monotonic
from tidemill.server.access.auth import Principal
from tidemill.server.admission.estimates import Throughput
from tidemill.server.admission.lane import Lane
from tidemill.server.admission.shares import Shares
from tidemill.server.errors import reject

MAX_RETRY_SECONDS = 60.0


class Bodies:
    """Counts the bytes of all bodies that are being received or parsed.

    Args:
        bound: of their sum, in bytes; see `Shares`.
    """

    def __init__(self, bound: int) -> None:
        self._shares = Shares(bound)
        self._lane = Lane()
        self._rate = Throughput()

    @property
    def total(self) -> int:
        """Bytes held now."""
        return self._shares.total

    def hold(self, principal: Principal) -> Hold:
        """A hold for one request; to be closed when its body is no longer needed."""
        return Hold(self, principal)

    def _take(self, hold: Hold, size: int) -> None:
        client, weight = hold.principal.client_id, hold.principal.weight
        excess = self._shares.excess(client, size, weight)
        now = monotonic()
        if excess:
            rate = self._rate.rate(now)
            seconds = min(MAX_RETRY_SECONDS, max(1.0, excess / rate if rate else 1.0))
            raise reject(
                429,
                f"bodies of {self.total} bytes are being received, {self._shares.of(client)} of "
                f"them this client's, and at most {self._shares.bound} may be (max_bodies_bytes); "
                f"send fewer at once, or again in {seconds:.0f} s",
                code="overloaded",
                headers={"Retry-After": f"{seconds:.0f}"},
            )
        if not self.total:
            self._rate.begin(now)
        self._shares.take(client, size, weight)

    def _give_back(self, hold: Hold) -> None:
        if hold.in_lane:
            self._lane.leave()
        if not hold.size:
            return
        self._shares.give_back(hold.principal.client_id, hold.size)
        now = monotonic()
        self._rate.note(hold.size, now)
        if not self.total:
            self._rate.pause(now)


class Hold:
    """The bytes that one request holds.

    Attributes:
        principal: the client of the request.
        size: bytes that it holds.
        in_lane: the body is large and occupies the lane for large bodies.
    """

    def __init__(self, bodies: Bodies, principal: Principal) -> None:
        self.principal = principal
        self.size = 0
        self.in_lane = False
        self._bodies = bodies
        self._closed = False

    def need(self, size: int) -> None:
        """Hold at least `size` bytes.

        Raises:
            Rejection: 429 with a Retry-After.
        """
        if size > self.size:
            self._bodies._take(self, size - self.size)
            self.size = size

    def close(self) -> None:
        """Release everything; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._bodies._give_back(self)

    async def enter_lane(self) -> None:
        """Wait until no other large body is being processed; the lane is left on release.

        Each holds the GIL for tens of milliseconds at a time; several at once would block the
        event loop for the sum.
        """
        await self._bodies._lane.enter(self.principal.client_id)
        self.in_lane = True
