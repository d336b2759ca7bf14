"""Fleet: several servers behind the gateway's own routing policies."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from functools import partial

from tidemill.gateway.routing.load import Load, Reservation
from tidemill.gateway.routing.policy import BY_PREFIX, DEFAULT, POLICIES, Bounds, Facts, choose
from tidemill.gateway.routing.prefixes import Prefixes, keys_of
from tidemill.simulate.costs import EngineFacts
from tidemill.simulate.server import Call, SimulatedServer, refuse
from tidemill.simulate.timeline import Timeline

# Tokens of a block of the gateway's presumed prefixes: it sees text, of which a token is 4 bytes.
_BLOCK_TOKENS = 64


class _Target:
    """A server, and what the gateway knows of it."""

    __slots__ = ("load", "name", "server")

    def __init__(self, name: str, server: SimulatedServer, load: Load) -> None:
        self.name = name
        self.server = server
        self.load = load


class _Given:
    """A call with a server, and what was reserved for it."""

    __slots__ = ("reservation", "target")

    def __init__(self, target: _Target, reservation: Reservation) -> None:
        self.target = target
        self.reservation = reservation


class Fleet:
    """Chooses a server for every call.

    Args:
        timeline: its time.
        facts: sizes of every engine.
        policy: a name of `gateway.routing.policy.POLICIES`.
        seed: breaks ties.
        bounds: how uneven the load may get.

    Attributes:
        held: calls that wait for a server, the oldest first.
        on_first: called with a server's name, and the seconds from a call's send to its first
            token.
    """

    def __init__(
        self,
        timeline: Timeline,
        facts: EngineFacts,
        policy: str = DEFAULT,
        seed: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}")
        self.held: dict[Call, None] = {}
        self.on_first: Callable[[str, float], None] = _ignore
        self._timeline = timeline
        self._policy = policy
        self._bounds = bounds or Bounds()
        self._random = random.Random(f"routing {seed}")
        self._slots = facts.max_num_seqs
        self._hold, self._max_held = 0.0, 0
        self._targets: dict[str, _Target] = {}
        self._open: list[_Target] = []  # those that take calls, by name
        self._prefixes = Prefixes(max(1, facts.num_blocks * facts.block_size // _BLOCK_TOKENS))
        self._given: dict[Call, _Given] = {}

    def hold(self, seconds: float, most: int) -> None:
        """Hold calls for so long where there is no server, so many at a time."""
        self._hold, self._max_held = seconds, most

    # -- servers -------------------------------------------------------------------------------

    def add(self, name: str, server: SimulatedServer) -> None:
        """A server is there, and takes calls."""
        self._targets[name] = _Target(name, server, Load(slots=self._slots))
        server.on_first, server.on_end = self._first, self._end
        self.open(name)

    def open(self, name: str) -> None:
        """A server takes calls (again)."""
        self._open.append(self._targets[name])
        self._open.sort(key=lambda target: target.name)
        waiting, self.held = self.held, {}
        for call in waiting:
            self.send(call)

    def close(self, name: str) -> None:
        """A server gets no more calls."""
        self._open.remove(self._targets[name])

    def remove(self, name: str) -> None:
        """A server is gone; it has no calls."""
        target = self._targets.pop(name)
        if target in self._open:
            self._open.remove(target)
        self._prefixes.forget(name)

    def active(self, name: str) -> int:
        """Calls that a server has."""
        return self._targets[name].load.active

    def given(self, name: str) -> int:
        """Calls that it has been given."""
        return self._targets[name].load.given

    def waiting(self, name: str) -> float:
        """Seconds that a further call would wait there."""
        return self._targets[name].load.waiting(self._timeline.now)

    @property
    def held_seconds(self) -> float:
        """What the prompts of held calls take one server; 0 where nothing is known."""
        fastest = max((target.load.rate for target in self._targets.values()), default=0.0)
        return sum(len(call.prompt) for call in self.held) / fastest if fastest else 0.0

    # -- calls ---------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """A client sends a request now."""
        if not self._open:
            self._hold_back(call)
            return
        prompt = len(call.prompt)
        by_prefix = self._policy in BY_PREFIX
        keys = keys_of(call.model or "", array("i", call.prompt).tobytes()) if by_prefix else []
        chosen = choose(self._facts(keys), prompt, self._random, self._bounds, self._policy)
        target = self._targets[chosen.name]
        now = self._timeline.now
        reservation = target.load.reserve(now, prompt - chosen.cached, call.output)
        if keys:
            self._prefixes.note(chosen.name, keys)
        self._given[call] = _Given(target, reservation)
        target.server.send(call)

    def _facts(self, keys: Sequence[int]) -> list[Facts]:
        """What the targets are for a prompt of these keys."""
        now, cached = self._timeline.now, self._prefixes.matched
        return [
            Facts(
                target.name,
                target.load.waiting(now),
                _BLOCK_TOKENS * cached(target.name, keys) if keys else 0,
                target.load.rate,
                target.load.floor(now),
                target.load.active,
                target.load.given,
            )
            for target in self._open
        ]

    def _hold_back(self, call: Call) -> None:
        if len(self.held) >= self._max_held:
            refuse(call, self._timeline.now, "http 429", "too many requests wait for an engine")
            return
        self.held[call] = None
        self._timeline.at(self._timeline.now + self._hold, partial(self._give_up, call))

    def _give_up(self, call: Call) -> None:
        if call in self.held:
            del self.held[call]
            refuse(call, self._timeline.now, "http 503", "no engine came")

    def cancel(self, call: Call) -> None:
        """The client gives up."""
        self.held.pop(call, None)
        given = self._given.get(call)
        if given is not None:
            given.target.server.cancel(call)
            self._end(call)

    def _first(self, call: Call) -> None:
        given = self._given[call]
        now = self._timeline.now
        given.target.load.first(given.reservation, now)
        self.on_first(given.target.name, now - call.zero - call.trace.sent)

    def _end(self, call: Call) -> None:
        given = self._given.pop(call, None)
        if given is not None:
            tokens = call.trace.output_tokens
            given.target.load.end(given.reservation, self._timeline.now, tokens)


def _ignore(name: str, seconds: float) -> None:
    """Nobody asks."""
