"""Fleet: several servers behind the gateway's own routing policies."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from tidemill.gateway.routing.load import Load, Reservation
from tidemill.gateway.routing.policy import BY_PREFIX, DEFAULT, POLICIES, Bounds, Facts, choose
from tidemill.gateway.routing.prefixes import Prefixes, keys_of
from tidemill.simulate.costs import EngineFacts
from tidemill.simulate.server import Call, SimulatedServer
from tidemill.simulate.timeline import Timeline

# Tokens of a block of the gateway's presumed prefixes: it sees text, of which a token is 4 bytes.
_BLOCK_TOKENS = 64


class _Given:
    """A call with a server, and what was reserved for it."""

    __slots__ = ("place", "reservation")

    def __init__(self, place: int, reservation: Reservation) -> None:
        self.place = place
        self.reservation = reservation


class Fleet:
    """Chooses a server for every call.

    Args:
        timeline: its time.
        servers: of equal sizes.
        facts: these sizes.
        policy: a name of `gateway.routing.policy.POLICIES`.
        seed: breaks ties.
        bounds: how uneven the load may get.
    """

    def __init__(
        self,
        timeline: Timeline,
        servers: Sequence[SimulatedServer],
        facts: EngineFacts,
        policy: str = DEFAULT,
        seed: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}")
        self.servers = servers
        self._timeline = timeline
        self._policy = policy
        self._bounds = bounds or Bounds()
        self._random = random.Random(f"routing {seed}")
        self._names = [str(place) for place in range(len(servers))]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._loads = [Load(slots=facts.max_num_seqs) for _ in servers]
        blocks = max(1, facts.num_blocks * facts.block_size // _BLOCK_TOKENS)
        self._prefixes = Prefixes(blocks)
        self._given: dict[Call, _Given] = {}
        for server in servers:
            server.on_first, server.on_end = self._first, self._end

    def send(self, call: Call) -> None:
        """A client sends a request now."""
        now, prompt = self._timeline.now, len(call.prompt)
        by_prefix = self._policy in BY_PREFIX
        keys = keys_of(call.model or "", array("i", call.prompt).tobytes()) if by_prefix else []
        cached = self._prefixes.matched
        facts = [
            Facts(
                name,
                load.waiting(now),
                _BLOCK_TOKENS * cached(name, keys) if keys else 0,
                load.rate,
                load.floor(now),
                load.active,
                load.given,
            )
            for name, load in zip(self._names, self._loads, strict=True)
        ]
        chosen = choose(facts, prompt, self._random, self._bounds, self._policy)
        place = self._places[chosen.name]
        reservation = self._loads[place].reserve(now, prompt - chosen.cached, call.output)
        if keys:
            self._prefixes.note(chosen.name, keys)
        self._given[call] = _Given(place, reservation)
        self.servers[place].send(call)

    def cancel(self, call: Call) -> None:
        """The client gives up."""
        given = self._given.get(call)
        if given is not None:
            self.servers[given.place].cancel(call)
            self._end(call)

    def _first(self, call: Call) -> None:
        given = self._given[call]
        self._loads[given.place].first(given.reservation, self._timeline.now)

    def _end(self, call: Call) -> None:
        given = self._given.pop(call, None)
        if given is not None:
            tokens = call.trace.output_tokens
            self._loads[given.place].end(given.reservation, self._timeline.now, tokens)
