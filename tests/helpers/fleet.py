"""A fleet of engines under simulated time, in front of which routing policies are compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from tidemill.gateway.routing.load import Load, Reservation
from tidemill.gateway.routing.policy import Bounds, Facts, choose
from tidemill.gateway.routing.prefixes import Prefixes

RATE = 4000.0
"""Prompt tokens per second."""


@dataclass(slots=True)
class Ask:
    """A request: when it comes, its prefix's name and length, and its own part; in tokens."""

    at: float
    prefix: int
    shared: int
    own: int


@dataclass(slots=True)
class Engine:
    """Computes prompts one after the other; keeps so many tokens of prefixes."""

    cache: int
    free_at: float = 0.0
    kept: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def serve(self, ask: Ask) -> tuple[float, int]:
        """When its first token comes, and tokens that were cached."""
        hit = self.kept.pop(ask.prefix, 0)
        self.kept[ask.prefix] = ask.shared
        while sum(self.kept.values()) > self.cache:
            self.kept.popitem(last=False)
        begin = max(self.free_at, ask.at)
        self.free_at = begin + 0.005 + (ask.shared - hit + ask.own) / RATE
        return self.free_at, hit


def run(
    asks: Sequence[Ask], policy: str, engines: int = 4, cache: int = 30000
) -> tuple[list[float], float]:
    """Seconds to the first token of each request, sorted, and the share of cached tokens."""
    random = Random(1)
    fleet = {str(i): Engine(cache) for i in range(engines)}
    loads = {name: Load() for name in fleet}
    prefixes = Prefixes(blocks=cache // 64)
    coming: list[tuple[float, int, str, Reservation]] = []
    times, hits = [], 0
    for number, ask in enumerate(asks):
        while coming and coming[0][0] <= ask.at:
            at, _, name, reservation = heappop(coming)
            loads[name].first(reservation, at)
            loads[name].end(reservation, at)
        keys = [hash((ask.prefix, i)) for i in range(ask.shared // 64)]
        prompt = ask.shared + ask.own
        table = [
            Facts(
                name,
                load.waiting(ask.at),
                64 * prefixes.matched(name, keys),
                load.rate,
                load.floor(ask.at),
                load.active,
                load.given,
            )
            for name, load in loads.items()
        ]
        chosen = choose(table, prompt, random, Bounds(), policy)
        prefixes.note(chosen.name, keys)
        reservation = loads[chosen.name].reserve(ask.at, prompt - chosen.cached, 1)
        first, hit = fleet[chosen.name].serve(ask)
        hits += hit
        times.append(first - ask.at)
        heappush(coming, (first, number, chosen.name, reservation))
    return sorted(times), hits / sum(ask.shared for ask in asks)
