"""What requests share with one that ended engines: a grammar, an adapter, a kind of pooling.

A request that is convicted may owe it to any part of it. What it shares with others is put in
quarantine, so that its variants cost nobody an engine: with other prompts around the same grammar,
say. Two things keep that from innocents. What has ended well in a request since anything was held
against it is not quarantined, and what is no client's own (an adapter, pooling, any JSON object)
only when a second request is convicted with it. And a quarantine passes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from tidemill.base.clock import monotonic
from tidemill.contract.program import Grammar
from tidemill.contract.request import EngineRequest

QUARANTINE_SECONDS = 600.0

MAX_TRAITS = 4096
"""Of each kind that are remembered."""

Trait = tuple[str, str]
"""What it is, in words for an error, and which."""

# Convictions with it that it takes, when nothing with it has ended well.
_CONVICTIONS = {"grammar": 1, "kind of grammar": 2, "adapter": 2, "pooling": 2}


def traits(request: EngineRequest) -> tuple[Trait, ...]:
    """What a request may share with others; nothing that every request has."""
    found: list[Trait] = []
    for phase in request.program.phases:
        if isinstance(phase, Grammar):
            source = f"{phase.kind}\0{phase.source}".encode("utf-8", "surrogatepass")
            label = "grammar" if phase.source else "kind of grammar"
            found.append((label, blake2b(source, digest_size=12).hexdigest()))
    if request.adapter is not None:
        found.append(("adapter", request.adapter))
    if (pooling := request.pooling) is not None:
        found.append(("pooling", f"{pooling.kind}{' with head' * pooling.head}"))
    return tuple(found)


class Quarantine:
    """Traits of requests that ended engines.

    Args:
        clock: seconds, of a clock that does not jump.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._proven: OrderedDict[Trait, None] = OrderedDict()
        self._convictions: Counter[Trait] = Counter()
        self._until: OrderedDict[Trait, float] = OrderedDict()
        self._ended_alone: dict[Trait, str] = {}  # the request that ended an engine with it

    def ended_well(self, request: EngineRequest) -> None:
        """The request had an end of its own: what it shares with others ends no engine as such."""
        for trait in traits(request):
            self._proven[trait] = None
            self._proven.move_to_end(trait)
            if len(self._proven) > MAX_TRAITS:
                self._proven.popitem(last=False)

    def ended_alone(self, request: EngineRequest) -> bool:
        """An engine has ended that computed nothing but the request.

        Returns:
            True when another one with a trait of a client's own has ended one alone as well: the
            two are one case.
        """
        found = False
        for trait in traits(request):
            if _CONVICTIONS[trait[0]] == 1 and trait not in self._proven:
                first = self._ended_alone.setdefault(trait, request.request_id)
                found |= first != request.request_id
        return found

    def quarantined(self, request: EngineRequest) -> None:
        """The request ends engines."""
        self._ended_alone.clear()
        for trait in traits(request):
            if trait in self._proven:
                del self._proven[trait]  # and what comes now must prove it again
                continue
            self._convictions[trait] += 1
            if self._convictions[trait] >= _CONVICTIONS[trait[0]]:
                self._until[trait] = self._clock() + QUARANTINE_SECONDS
        while len(self._until) > MAX_TRAITS:
            self._until.popitem(last=False)
        if len(self._convictions) > MAX_TRAITS:
            self._convictions.clear()

    def holds(self, request: EngineRequest) -> Trait | None:
        """A trait of the request that is in quarantine now."""
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
    """What a request with a trait in quarantine is answered."""
    label, name = trait
    minutes = QUARANTINE_SECONDS / 60
    return (
        f"a request with the same {label} ended the engine process each time it was computed, and "
        f"none has ended well since; no request with it is computed for {minutes:g} minutes, and "
        f"the server's log has it as {name}"
    )
