"""Draws portions of limits from the store and returns them, beside the requests.

One round at a time goes to the database, with everything that the meters want; while it runs, the
next is gathered. A request waits for a round only where what was drawn ahead does not suffice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from tidemill.base.errors import TidemillError
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.contract.quotas import SOFT, Limits, Period
from tidemill.server.quotas.account import Subject
from tidemill.server.quotas.leased import Leased, Want
from tidemill.server.quotas.meters import Meter, Now

log = get_logger(__name__)

ROUND_SECONDS = 1.0
"""Between rounds that no request waits for."""

TOP_UP_SECONDS = 2.0
"""How long a request waits for a round."""

POLL_SECONDS = 1.0
"""Between looks whether limits have changed."""

RENEW_SECONDS = 5.0
PRUNE_SECONDS = 86400.0
CLOSE_SECONDS = 2.0
"""For returning at the end what was drawn."""


class Entry(NamedTuple):
    """One draw, as the bank takes it.

    Attributes:
        subject: whose limit.
        name: of the limit, with the prefix of a soft one.
        amount: the limit.
        held: drawn before.
        want: what to take or return.
        excess: of a rate, what its bucket must not have refilled.
    """

    subject: Subject
    name: str
    amount: int
    held: int
    want: Want
    excess: int = 0


class Bank(Protocol):
    """The store, as the treasury needs it."""

    async def draw(
        self, server: str, wall: float, entries: Sequence[Entry]
    ) -> Sequence[tuple[int, int]]:
        """Granted, and taken by all, of each entry.

        Raises:
            TidemillError: kind DATABASE, it does not answer.
        """

    async def renew(self, server: str, wall: float) -> int:
        """Keep the places of the server; returns how many servers there are."""

    async def leave(self, server: str) -> None:
        """The server ends."""

    async def prune(self, wall: float) -> None:
        """Remove what is known of days and months that are long over."""

    async def version(self) -> int:
        """Differs once limits have changed."""

    def stamp(self) -> object:
        """Differs once anything has changed, without a look into the store; None: unknown."""

    async def limits(self) -> dict[Subject, Limits]:
        """The limits of all subjects that have some of their own."""


class Treasury:
    """See the module docstring.

    Args:
        bank: the store.
        clock: reads the clocks.
        outage: seconds for which what was drawn is spent while the store does not answer.

    Attributes:
        server: the name of this server's leases.
        servers: how many shared limits when the store was last asked.
        answers: the store answered last time.
    """

    def __init__(self, bank: Bank, clock: Callable[[], Now], outage: float = math.inf) -> None:
        self.server = new_id("server")
        self.answers = True
        self._bank = bank
        self._clock = clock
        self._subjects: dict[Leased, Subject] = {}
        self._touched: dict[Leased, None] = {}
        self._wake = asyncio.Event()
        self._asked = asyncio.Event()
        self._returned = asyncio.Event()
        self._round: asyncio.Future[None] | None = None
        self.servers = 1
        self._renewed = self._pruned = -math.inf
        self._failed = 0.0
        self._lost = 0.0
        self._outage = outage
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def lease(self, subject: Subject, meter: Meter, now: Now) -> Meter:
        """The meter of a limit that is shared through the store."""
        if meter.soft and meter.measure.period is Period.CONCURRENT:
            return meter  # each server warns for itself
        leased = Leased(meter, now, self._touch)
        self._subjects[leased] = subject
        return leased

    def _touch(self, meter: Leased) -> None:
        if meter in self._touched:
            return  # the next round looks at it: a request wakes nobody
        self._touched[meter] = None
        if self._task is None and not self._closed:
            self._task = asyncio.ensure_future(self._run())
        self._wake.set()

    async def top_up(self, needs: Sequence[tuple[Leased, int]]) -> None:
        """Wait until the store has been asked for what a request needs."""
        for meter, need in needs:
            meter.want(need)
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        self._asked.set()
        try:
            async with asyncio.timeout(TOP_UP_SECONDS):
                await asyncio.shield(self._round)
        except TimeoutError:
            pass

    async def ask(self) -> None:
        """See whether the store answers again, at most once a second."""
        if self.worth_asking:
            self._failed = self._clock().monotonic  # one request asks for all
            await self._renew(self._clock())

    @property
    def meters(self) -> Collection[Leased]:
        """The meters of all limits."""
        return self._subjects.keys()

    async def stop(self) -> None:
        """Draw no more; what was drawn stays taken."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def close(self) -> None:
        """Return what was drawn and not used, and draw no more."""
        await self.stop()
        if not self._subjects or not self.answers:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                now = self._clock()
                rest = [(m, m.rest(now)) for m in self._subjects if not _is_places(m)]
                await self._draw([(m, want) for m, want in rest if want is not None])
                await self._bank.leave(self.server)
        except (TimeoutError, TidemillError) as error:
            log.warning("what was drawn of quotas could not be returned: %s", error)

    async def _run(self) -> None:
        while True:
            if not self.answers:
                await self._back_off()
            elif not any(meter.waits for meter in self._touched):
                await self._pause()
            try:
                await self._one_round()
            except Exception:
                log.exception("quotas: a round failed")
                await asyncio.sleep(ROUND_SECONDS)

    async def _pause(self) -> None:
        """Until a request waits, or a second has passed; without anything to do, until there is."""
        if not self._touched:
            self._wake.clear()
            await self._wake.wait()
        if self._round is not None:
            return
        self._asked.clear()
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                await self._asked.wait()
        except TimeoutError:
            pass

    async def _back_off(self) -> None:
        """Until the store answers again as far as is known, or a second has passed."""
        self._returned.clear()
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                await self._returned.wait()
        except TimeoutError:
            pass

    async def _one_round(self) -> None:
        now = self._clock()
        waiting, self._round = self._round, None
        try:
            found = [(meter, meter.draw(now)) for meter in self._touched]
            wants = [(meter, want) for meter, want in found if want is not None]
            for meter in [meter for meter in self._touched if meter.idle]:
                del self._touched[meter]
                if meter.gone:
                    self._subjects.pop(meter, None)
            await self._draw(wants)
            if self._touched and now.monotonic - self._renewed >= RENEW_SECONDS:
                await self._renew(now)
        finally:
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    async def _draw(self, wants: Sequence[tuple[Leased, Want]]) -> None:
        if not wants:
            return
        now = self._clock()
        entries = [
            Entry(self._subjects[m], _name(m), m.amount, m.held, want, m.excess(now))
            for m, want in wants
        ]
        for meter, want in wants:
            meter.sent(want)
        try:
            found = await self._bank.draw(self.server, self._clock().wall, entries)
        except TidemillError as error:
            now = self._clock()
            for meter, want in wants:
                meter.lost(want, self.servers, now)
            self._say(error)
            return
        now = self._clock()
        for (meter, want), (granted, taken) in zip(wants, found, strict=True):
            meter.drawn(want, granted, taken, now)
        self._say(None)

    async def _renew(self, now: Now) -> None:
        try:
            self.servers = max(1, await self._bank.renew(self.server, now.wall))
            self._renewed = now.monotonic
            if now.monotonic - self._pruned >= PRUNE_SECONDS:
                await self._bank.prune(now.wall)
                self._pruned = now.monotonic
            self._say(None)
        except TidemillError as error:
            self._say(error)

    @property
    def given_up(self) -> bool:
        """The store has not answered for longer than limits are spent without it."""
        return not self.answers and self._clock().monotonic - self._lost > self._outage

    @property
    def worth_asking(self) -> bool:
        """Whether a draw may succeed: the store answered last time, or that was a second ago."""
        return self.answers or self._clock().monotonic - self._failed >= ROUND_SECONDS

    def retry(self) -> None:
        """The store answers again: ask it at once."""
        self._failed = 0.0
        self._returned.set()
        self._asked.set()

    def _say(self, error: TidemillError | None) -> None:
        if error is not None and self.answers:
            self._lost = self._clock().monotonic
            log.error("quotas go on with what was drawn of them: %s", error.message)
        elif error is None and not self.answers:
            log.warning("quotas are drawn from the database again")
        self.answers = error is None
        self._failed = self._clock().monotonic


class Watcher:
    """Reads limits again when they have changed in the store.

    Args:
        bank: the store.
        follow: called with all limits.
    """

    def __init__(self, bank: Bank, follow: Callable[[dict[Subject, Limits]], None]) -> None:
        self._bank = bank
        self._follow = follow
        self._version = -1

    async def look(self) -> None:
        """Read them if they differ.

        Raises:
            TidemillError: kind DATABASE.
        """
        version = await self._bank.version()
        if version != self._version:
            self._follow(await self._bank.limits())
            self._version = version

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look every second, until cancelled."""
        seen = None
        while True:
            await sleep(POLL_SECONDS)
            stamp = self._bank.stamp()
            if stamp is not None and stamp == seen:
                continue
            try:
                await self.look()
                seen = stamp
            except TidemillError:
                continue  # the database says so itself
            except Exception:
                log.exception("limits stay as they were")


def _name(meter: Leased) -> str:
    return (SOFT if meter.soft else "") + meter.measure.name


def _is_places(meter: Leased) -> bool:
    return meter.measure.period is Period.CONCURRENT
