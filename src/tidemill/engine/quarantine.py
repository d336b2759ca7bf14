"""Quarantine of traits: what a poison request shares with others (grammar, adapter, pooling kind).

Any part of a request that crashes engines may be the cause. Its traits are quarantined too, so that
variants of it (other prompts with the same grammar) do not crash more engines. Three rules protect
harmless requests. A trait is not quarantined if another request with it has finished normally
before. A trait that is not specific to a client (an adapter, pooling, any JSON object) is
quarantined only after a second poison request has it. Every quarantine expires.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from tidemill.base.clock import monotonic
from tidemill.contract.program import Grammar
from tidemill.contract.request import EngineRequest, adapters_key

QUARANTINE_SECONDS = 600.0

MAX_TRAITS = 4096
"""Maximum number of traits stored in each table."""

Trait = tuple[str, str]
"""The kind, in words for an error message, and the value."""

# Poison requests with a trait that it takes to quarantine the trait, by kind.
_THRESHOLDS = {"grammar": 1, "kind of grammar": 2, "adapter": 2, "pooling": 2}


def traits(request: EngineRequest) -> tuple[Trait, ...]:
    """The traits of a request: what it may share with some other requests, not with all."""
    found: list[Trait] = []
    for phase in request.program.phases:
        if isinstance(phase, Grammar):
            source = f"{phase.kind}\0{phase.source}".encode("utf-8", "surrogatepass")
            label = "grammar" if phase.source else "kind of grammar"
            found.append((label, blake2b(source, digest_size=12).hexdigest()))
    if request.adapters:
        found.append(("adapter", adapters_key(request.adapters)))
    if (pooling := request.pooling) is not None:
        found.append(("pooling", f"{pooling.kind}{' with head' * pooling.head}"))
    return tuple(found)


class Quarantine:
    """Traits of requests that crashed engines.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._proven: OrderedDict[Trait, None] = OrderedDict()
        self._poison_counts: Counter[Trait] = Counter()
        self._until: OrderedDict[Trait, float] = OrderedDict()
        self._ended_alone: dict[Trait, str] = {}  # the request that ended an engine with it

    def ended_well(self, request: EngineRequest) -> None:
        """Record that the request finished normally: its traits alone do not crash engines."""
        for trait in traits(request):
            self._proven[trait] = None
            self._proven.move_to_end(trait)
            if len(self._proven) > MAX_TRAITS:
                self._proven.popitem(last=False)

    def ended_alone(self, request: EngineRequest) -> bool:
        """Record that an engine crashed while it computed this request alone.

        Returns:
            True if another request with the same client-specific trait also crashed an engine
            alone: both have the same cause.
        """
        found = False
        for trait in traits(request):
            if _THRESHOLDS[trait[0]] == 1 and trait not in self._proven:
                first = self._ended_alone.setdefault(trait, request.request_id)
                found |= first != request.request_id
        return found

    def quarantined(self, request: EngineRequest) -> None:
        """Count a poison request, and quarantine its traits that have reached their threshold."""
        self._ended_alone.clear()
        for trait in traits(request):
            if trait in self._proven:
                del self._proven[trait]  # a later request must finish normally again
                continue
            self._poison_counts[trait] += 1
            if self._poison_counts[trait] >= _THRESHOLDS[trait[0]]:
                self._until[trait] = self._clock() + QUARANTINE_SECONDS
        while len(self._until) > MAX_TRAITS:
            self._until.popitem(last=False)
        if len(self._poison_counts) > MAX_TRAITS:
            self._poison_counts.clear()

    def holds(self, request: EngineRequest) -> Trait | None:
        """A trait of the request that is in quarantine; None without one."""
        if not self._until:
            return None
        now = self._clock()
        for trait in traits(request):
            if (until := self._until.get(trait)) is not None:
                if now < until:
                    return trait
                del self._until[trait]
        return None


def shared_verdict(trait: Trait) -> str:
    """The error message for a request with a quarantined trait."""
    label, name = trait
    minutes = QUARANTINE_SECONDS / 60
    return (
        f"a request with the same {label} crashed the engine process each time it was computed, "
        f"and none has succeeded since; such requests are rejected for {minutes:g} minutes. "
        f"The server's log has it as {name}"
    )
