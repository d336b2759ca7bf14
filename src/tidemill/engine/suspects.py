"""Who ends engines: from deaths to suspects, and from trials to verdicts.

A request is under suspicion once it had a row in the last step of two engines. Suspects are
computed alone, one after the other: who gets on alone is cleared, and who ends two engines alone,
with no new token between, is convicted. Between these two the other suspects are tried, so that
what ends engines at their start, or by chance, does not meet the same one twice.

Something may end engines without a row in their last step: a message about it, or its replay. So a
request is under suspicion as well once more engines have ended while they merely had it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Container, Iterable

import msgspec

from tidemill.contract.request import EngineRequest

CRASHES_FOR_SUSPICION = 2
DEATHS_IN_FLIGHT_FOR_SUSPICION = 4
CRASHES_FOR_QUARANTINE = 2
# Suspects that have ended an engine alone and wait for their second trial while others have their
# first. With no bound, many that are guilty would end many engines before the first is convicted.
MAX_WAITING_FOR_SECOND = 3
# Convicted requests that are remembered, so that sending one again costs nobody an engine.
MAX_QUARANTINED = 1024


def fingerprint(request: EngineRequest) -> str:
    """Names a prompt with its settings; the seed and the request's id do not count."""
    sampling = msgspec.structs.replace(request.sampling, seed=None)
    parts = (
        request.prompt_token_ids,
        sampling,
        request.program,
        request.adapter,
        request.pooling,
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts, order="deterministic")).hexdigest()[:24]


class SuspectTracker:
    """What is known against the requests in flight."""

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}  # deaths of engines that had it
        self._alone: dict[str, tuple[int, int]] = {}  # deaths alone, tokens there were at them
        self._quarantined: OrderedDict[str, None] = OrderedDict()

    def death(self, present: Iterable[str], in_flight: Iterable[str] = ()) -> None:
        """An engine has ended.

        Args:
            present: requests that it computed.
            in_flight: requests that it had.
        """
        for request_id in present:
            self._deaths[request_id] = self._deaths.get(request_id, 0) + 1
        for request_id in in_flight:
            self._in_flight[request_id] = self._in_flight.get(request_id, 0) + 1

    def suspected_in_flight(self, request_id: str) -> bool:
        """So many engines have ended that had the request that it need not have been computed."""
        return self._in_flight.get(request_id, 0) >= DEATHS_IN_FLIGHT_FOR_SUSPICION

    def record_isolated_crash(self, request_id: str, tokens: int) -> bool:
        """An engine has ended that computed nothing but this suspect.

        Args:
            request_id: the suspect.
            tokens: it has got so far.

        Returns:
            True when that convicts it.
        """
        deaths, before = self._alone.get(request_id, (0, tokens))
        deaths = deaths + 1 if tokens == before else 1
        self._alone[request_id] = (deaths, tokens)
        return deaths >= CRASHES_FOR_QUARANTINE

    def suspects(self) -> list[str]:
        """Ids of those to be tried: those that have ended no engine alone first, unless
        `MAX_WAITING_FOR_SECOND` have; else in the order in which they came under suspicion."""
        found = [id_ for id_, deaths in self._deaths.items() if deaths >= CRASHES_FOR_SUSPICION]
        found += [id_ for id_ in self._in_flight if self.suspected_in_flight(id_)]
        first = [i for i in dict.fromkeys(found) if i not in self._alone]
        second = [i for i in dict.fromkeys(found) if i in self._alone]
        return second + first if len(second) >= MAX_WAITING_FOR_SECOND else first + second

    def retain(self, request_ids: Container[str]) -> None:
        """Forget what is known of all others: they have ended."""
        known = {*self._deaths, *self._in_flight}
        for request_id in [id_ for id_ in known if id_ not in request_ids]:
            self.clear(request_id)

    def clear(self, request_id: str) -> None:
        """The request has got on alone, or is no more."""
        self._deaths.pop(request_id, None)
        self._in_flight.pop(request_id, None)
        self._alone.pop(request_id, None)

    def quarantine(self, request: EngineRequest) -> str:
        """Remember a request as one that ends engines; returns its fingerprint."""
        self.clear(request.request_id)
        self._in_flight.clear()  # the deaths are explained
        mark = fingerprint(request)
        self._quarantined[mark] = None
        while len(self._quarantined) > MAX_QUARANTINED:
            self._quarantined.popitem(last=False)
        return mark

    def quarantined(self, request: EngineRequest) -> str | None:
        """The fingerprint, if a request like this one was convicted."""
        if not self._quarantined:
            return None
        mark = fingerprint(request)
        return mark if mark in self._quarantined else None


def verdict(mark: str) -> str:
    """What a convicted request is answered."""
    return (
        "this request ended the engine process each time it was computed, alone as well, and is "
        f"not computed again; the server's log has it under fingerprint {mark}"
    )
