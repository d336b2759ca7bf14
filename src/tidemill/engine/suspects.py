"""Crash attribution: which request crashes engines (a poison request).

A request becomes a suspect once it had a row in the last step of two engines that crashed. Suspects
are replayed in isolation, one after the other. A suspect that makes progress alone is cleared. One
that crashes two engines alone, without a new token between, is quarantined. Between these two
replays the other suspects have theirs, so that crashes at an engine's start, or random ones, do not
hit the same suspect twice.

A request may crash engines without a row in their last step: by a message about it, or by its
replay. So it also becomes a suspect once a larger number of engines crashed while it was in flight.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Container, Iterable

import msgspec

from tidemill.contract.request import EngineRequest, adapters_key

CRASHES_FOR_SUSPICION = 2
DEATHS_IN_FLIGHT_FOR_SUSPICION = 4
CRASHES_FOR_QUARANTINE = 2
# Suspects that crashed an engine alone and wait for their second replay while others have their
# first. Without this bound, many poison requests would crash many engines before the first of them
# is quarantined.
MAX_WAITING_FOR_SECOND = 3
# Maximum number of stored fingerprints of poison requests, which are rejected if sent again.
MAX_QUARANTINED = 1024


def fingerprint(request: EngineRequest) -> str:
    """A digest of a request's prompt and settings, without its seed and id."""
    sampling = msgspec.structs.replace(request.sampling, seed=None)
    parts = (
        request.prompt_token_ids,
        sampling,
        request.program,
        adapters_key(request.adapters),
        request.pooling,
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts, order="deterministic")).hexdigest()[:24]


class SuspectTracker:
    """Counts crashes per request in flight, and stores the fingerprints of poison requests."""

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}  # deaths of engines that had it
        self._alone: dict[str, tuple[int, int]] = {}  # deaths alone, tokens there were at them
        self._quarantined: OrderedDict[str, None] = OrderedDict()

    def death(self, present: Iterable[str], in_flight: Iterable[str] = ()) -> None:
        """Record the death of an engine.

        Args:
            present: ids of requests that it was computing.
            in_flight: ids of all requests that were sent to it.
        """
        for request_id in present:
            self._deaths[request_id] = self._deaths.get(request_id, 0) + 1
        for request_id in in_flight:
            self._in_flight[request_id] = self._in_flight.get(request_id, 0) + 1

    def suspected_in_flight(self, request_id: str) -> bool:
        """True if enough engines died with the request in flight to suspect it without a row."""
        return self._in_flight.get(request_id, 0) >= DEATHS_IN_FLIGHT_FOR_SUSPICION

    def record_isolated_crash(self, request_id: str, tokens: int) -> bool:
        """Record that an engine crashed while it computed this suspect alone.

        Args:
            request_id: the suspect's id.
            tokens: the number of tokens it has received so far.

        Returns:
            True if it must be quarantined.
        """
        deaths, before = self._alone.get(request_id, (0, tokens))
        deaths = deaths + 1 if tokens == before else 1
        self._alone[request_id] = (deaths, tokens)
        return deaths >= CRASHES_FOR_QUARANTINE

    def suspects(self) -> list[str]:
        """Ids of suspects in the order of their isolated replay: first those that have not crashed
        an engine alone, unless `MAX_WAITING_FOR_SECOND` have; each group in order of suspicion."""
        found = [id_ for id_, deaths in self._deaths.items() if deaths >= CRASHES_FOR_SUSPICION]
        found += [id_ for id_ in self._in_flight if self.suspected_in_flight(id_)]
        first = [i for i in dict.fromkeys(found) if i not in self._alone]
        second = [i for i in dict.fromkeys(found) if i in self._alone]
        return second + first if len(second) >= MAX_WAITING_FOR_SECOND else first + second

    def retain(self, request_ids: Container[str]) -> None:
        """Clear all requests except these; the others have ended."""
        known = {*self._deaths, *self._in_flight}
        for request_id in [id_ for id_ in known if id_ not in request_ids]:
            self.clear(request_id)

    def clear(self, request_id: str) -> None:
        """Drop the counts of a request that made progress alone or has ended."""
        self._deaths.pop(request_id, None)
        self._in_flight.pop(request_id, None)
        self._alone.pop(request_id, None)

    def quarantine(self, request: EngineRequest) -> str:
        """Store the request's fingerprint as a poison request's; returns the fingerprint."""
        self.clear(request.request_id)
        self._in_flight.clear()  # the deaths are explained
        mark = fingerprint(request)
        self._quarantined[mark] = None
        while len(self._quarantined) > MAX_QUARANTINED:
            self._quarantined.popitem(last=False)
        return mark

    def quarantined(self, request: EngineRequest) -> str | None:
        """The fingerprint, if an equal request was quarantined; else None."""
        if not self._quarantined:
            return None
        mark = fingerprint(request)
        return mark if mark in self._quarantined else None


def verdict(mark: str) -> str:
    """The error message for a quarantined request."""
    return (
        "this request crashed the engine process each time it was computed, also when it was "
        f"computed alone, and is quarantined; the server's log has it under fingerprint {mark}"
    )
