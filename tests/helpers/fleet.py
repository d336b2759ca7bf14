"""A fleet of engines under simulated time, in front of which routing policies are compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from tidemill.gateway.routing.homes import Trust, home
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


PROBE_SECONDS = 2.0


@dataclass
class Gateway:
    """What one gateway knows of the engines."""

    names: Sequence[str]
    random: Random
    prefixes: Prefixes
    homes: bool
    loads: dict[str, Load] = field(init=False)
    trusts: dict[str, Trust] = field(init=False)

    def __post_init__(self) -> None:
        self.loads = {name: Load() for name in self.names}
        self.trusts = {name: Trust() for name in self.names}

    def give(self, ask: Ask, policy: str) -> tuple[str, Reservation, bool]:
        """The engine of a request; whether it is the home of what was sent nowhere."""
        keys = [hash((ask.prefix, i)) for i in range(ask.shared // 64)]
        prompt = ask.shared + ask.own
        own = home(self.names, b"%d" % ask.prefix if self.homes and keys else b"")
        known, cold = {name: self.prefixes.matched(name, keys) for name in self.names}, False
        if own and not any(known.values()):
            cold = True
            known[own] = int(self.trusts[own].share * len(keys))
        table = [
            Facts(
                name,
                load.waiting(ask.at),
                64 * known[name],
                load.rate,
                load.floor(ask.at),
                load.active,
                load.given,
                home=cold and name == own,
            )
            for name, load in self.loads.items()
        ]
        chosen = choose(table, prompt, self.random, Bounds(), policy)
        self.prefixes.note(chosen.name, keys)
        reservation = self.loads[chosen.name].reserve(ask.at, prompt - chosen.cached, 1)
        return chosen.name, reservation, cold and chosen.name == own


def run(
    asks: Sequence[Ask],
    policy: str,
    engines: int = 4,
    cache: int = 30000,
    gateways: int = 1,
    *,
    homes: bool = True,
) -> tuple[list[float], float]:
    """Seconds to the first token of each request, sorted, and the share of cached tokens.

    Args:
        asks: in the order of their times; each comes to one of the gateways.
        policy: of the gateways.
        engines, gateways: how many.
        cache: tokens that an engine keeps.
        homes: as `routing.homes`.
    """
    fleet = {str(i): Engine(cache) for i in range(engines)}
    doors = [
        Gateway(tuple(fleet), Random(1 + i), Prefixes(blocks=cache // 64), homes)
        for i in range(gateways)
    ]
    picks, probed = Random(3), 0.0
    coming: list[tuple[float, int, Load, Reservation]] = []
    times, hits = [], 0
    for number, ask in enumerate(asks):
        while coming and coming[0][0] <= ask.at:
            at, _, load, reservation = heappop(coming)
            load.first(reservation, at)
            load.end(reservation, at)
        if gateways > 1 and ask.at - probed >= PROBE_SECONDS:
            probed = ask.at
            for door in doors:
                for name, engine in fleet.items():
                    door.loads[name].announce(ask.at, max(0.0, engine.free_at - ask.at))
        door = picks.choice(doors)
        name, reservation, cold = door.give(ask, policy)
        first, hit = fleet[name].serve(ask)
        if cold:
            door.trusts[name].learn(hit, ask.shared)
        hits += hit
        times.append(first - ask.at)
        heappush(coming, (first, number, door.loads[name], reservation))
    return sorted(times), hits / sum(ask.shared for ask in asks)
