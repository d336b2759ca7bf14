"""Slows down who tries keys: the answer to a wrong key waits, the longer the more there were.

A right key never waits, whoever else sends wrong ones from the same address. A client that is
configured wrongly sends the same key again and again, which does not count: guesses differ.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from tidemill.base.clock import monotonic
from tidemill.server.errors import reject

FREE = 10
"""Different wrong keys of an address that are answered at once."""

FORGET_SECONDS = 60.0
"""After which one wrong key of an address is forgotten."""

FIRST_DELAY = 0.1
LONGEST_DELAY = 3.0
MAX_ADDRESSES = 4096
MAX_WAITING = 256
"""Answers that wait at the same time, of all addresses."""

_REPEATED = 4


@dataclass(slots=True)
class _Tries:
    """Wrong keys of an address: how many, less those that are forgotten; when they were counted;
    hashes of the last ones."""

    count: float
    then: float
    last: tuple[int, ...] = ()


class WrongKeys:
    """Wrong keys by address; the addresses that were seen longest ago are forgotten."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._waiting = 0

    def __len__(self) -> int:
        """Addresses that are known."""
        return len(self._tries)

    async def penalty(self, address: str, key: str) -> None:
        """Wait as long as the answer to a wrong key of this address has to.

        Raises:
            Rejection: 429, where too many answers wait already.
        """
        delay = self._delay(address, hash(key))
        if not delay:
            return
        if self._waiting >= MAX_WAITING:
            raise reject(
                429,
                "there were too many wrong API keys; use a right one, or wait",
                code="too_many_wrong_keys",
                headers={"Retry-After": f"{LONGEST_DELAY:.0f}"},
            )
        self._waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1

    def _delay(self, address: str, key: int) -> float:
        now = monotonic()
        tries = self._tries.pop(address, None) or _Tries(0.0, now)
        self._tries[address] = tries
        if len(self._tries) > MAX_ADDRESSES:
            self._tries.popitem(last=False)
        if key in tries.last:
            return 0.0
        tries.last = (*tries.last, key)[-_REPEATED:]
        tries.count = max(0.0, tries.count - (now - tries.then) / FORGET_SECONDS) + 1
        tries.then = now
        if tries.count <= FREE:
            return 0.0
        return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(10.0, tries.count - FREE - 1)))
