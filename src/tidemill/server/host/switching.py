"""Which model is loaded, evicted or waited for next: facts in, one action out.

The rules:

- A model with work is never evicted, nor a pinned one.
- The model whose request has waited longest is loaded first.
- KV caches are shrunk before anything is evicted; idle models are evicted, least recently used
  first.
- If that is not enough, busy models are closed to new requests in the order in which they were
  opened, after each had its turn: their requests end, they are evicted, and what came meanwhile
  waits for their next turn. So no model is starved by a busier one, and the machine computes for at
  least a turn between two switches.
- What can never fit is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TURN_SECONDS = 2.0
"""A busy model is served for at least so long before it is closed for another one."""

TURN_OF_LOAD = 4.0
"""And for at least so many times the time that its load took."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a model takes, in bytes.

    Attributes:
        fixed: weights, activations, the process.
        kv_least: the smallest KV cache that serves one request of full length.
        kv_most: the largest of use.
    """

    fixed: int
    kv_least: int
    kv_most: int

    @property
    def least(self) -> int:
        """The least that it runs with."""
        return self.fixed + self.kv_least


@dataclass(frozen=True, slots=True)
class Fact:
    """A model's state as the policy sees it.

    Attributes:
        name: of the model.
        need: its memory; None: not known yet.
        held: it is loaded or being loaded.
        busy: requests that use it.
        waiting_since: when its longest waiting request arrived; None: none waits.
        pinned: it is never evicted.
        closed: new requests wait, so that it can be evicted.
        opened: when its turn began.
        turn: seconds of its turn.
        last_used: when a request used it last.
    """

    name: str
    need: Need | None
    held: bool = False
    busy: int = 0
    waiting_since: float | None = None
    pinned: bool = False
    closed: bool = False
    opened: float = 0.0
    turn: float = TURN_SECONDS
    last_used: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model; everything held fits beside it once KV caches have their shares."""

    name: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Unload an idle model."""

    name: str


@dataclass(frozen=True, slots=True)
class Close:
    """Let new requests of a busy model wait."""

    name: str


@dataclass(frozen=True, slots=True)
class Reopen:
    """Nobody waits for the memory of a closed model any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A model can never fit.

    Attributes:
        least: bytes that it needs.
        available: bytes that it could get.
    """

    name: str
    least: int
    available: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Until something changes, at most until a time (None: for ever)."""

    until: float | None = None


Action = Load | Evict | Close | Reopen | Refuse | Wait


def next_action(facts: Sequence[Fact], budget: int | None, now: float) -> Action:
    """The next thing to do.

    Args:
        facts: of every model.
        budget: bytes for all models together; None: without bound.
        now: seconds of the same clock as in the facts.
    """
    wanted = [f for f in facts if not f.held and f.waiting_since is not None]
    if not wanted:
        closed = next((f for f in facts if f.closed and f.held), None)
        return Wait() if closed is None else Reopen(closed.name)
    target = min(wanted, key=lambda f: (f.waiting_since or 0.0, f.name))
    if budget is None or target.need is None:
        return Load(target.name)
    held = [f for f in facts if f.held]
    free = budget - sum(_least(f) for f in held)
    missing = target.need.least - free
    if missing <= 0:
        return Load(target.name)
    victims = [f for f in held if not f.pinned]
    possible = sum(map(_least, victims))
    if missing > possible:
        return Refuse(target.name, target.need.least, free + possible)
    idle = sorted((f for f in victims if not f.busy), key=lambda f: (not f.closed, f.last_used))
    if missing <= sum(map(_least, idle)):
        return Evict(_smallest(idle, missing).name)
    # Idle ones go at once, whatever else has to follow.
    missing -= sum(map(_least, idle))
    closing = sum(_least(f) for f in victims if f.busy and f.closed)
    if missing <= closing:
        return Evict(idle[0].name) if idle else Wait()
    busy = sorted((f for f in victims if f.busy and not f.closed), key=lambda f: f.opened)
    missing -= closing
    for fact in busy:
        over = fact.opened + fact.turn
        if over > now:
            return Evict(idle[0].name) if idle else Wait(over)
        return Close(fact.name)
    return Wait()


def _smallest(idle: Sequence[Fact], missing: int) -> Fact:
    """The first of the models in order of eviction; one of them alone if that is enough."""
    return next((f for f in idle if _least(f) >= missing), idle[0])


def _least(fact: Fact) -> int:
    return 0 if fact.need is None else fact.need.least


def shares(needs: Sequence[tuple[str, Need]], budget: int) -> dict[str, int]:
    """The KV caches of models that are held together, in bytes.

    Each gets its least, and of the rest a share in proportion to what it could still use.
    """
    rest = budget - sum(need.least for _, need in needs)
    extras = {name: max(0, need.kv_most - need.kv_least) for name, need in needs}
    total = sum(extras.values())
    part = min(1.0, max(0, rest) / total) if total else 0.0
    return {name: need.kv_least + int(extras[name] * part) for name, need in needs}
