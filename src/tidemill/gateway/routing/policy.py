"""Which target answers a request: a small rule over a table of facts.

A policy scores a target for a request; the least score is best. Two rules hold for all of them,
so that no preference fills one target:

- A target whose queue is more than `Bounds` beyond the shortest is no candidate, whatever it has
  cached, however cheap it is.
- Scores that differ by less than `Bounds.near` are equal. Of two drawn at random among equals the
  less loaded one is taken, so that an idle fleet does not give everything to its first target, and
  what is cached nowhere goes to the least loaded target rather than to the one that has least.

Of equal ones for a prompt that was sent nowhere, `predicted` takes its home (`homes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Facts:
    """One target as one request sees it.

    Attributes:
        name: the target's name.
        waiting: seconds until the target has computed what it was given before.
        cached: tokens of this request's prompt that are presumably cached there.
        rate: prompt tokens per second.
        floor: seconds that a first token takes beyond that (the way there and back, a step).
        active: requests that it is answering.
        given: requests that it has been given so far.
        price: of this request there, in whatever unit all targets have.
        carbon: of this request there, likewise.
        session: the request's session was answered there before.
        home: see `homes`: nobody has been sent its prompt by this gateway, and it goes there while
            nothing else makes a difference.
    """

    name: str
    waiting: float
    cached: int
    rate: float
    floor: float = 0.0
    active: int = 0
    given: int = 0
    price: float = 0.0
    carbon: float = 0.0
    session: bool = False
    home: bool = False

    @property
    def load(self) -> tuple[float, int]:
        """How loaded it is; the less, the better."""
        return self.waiting, self.active


@dataclass(frozen=True, slots=True)
class Bounds:
    """How uneven the load may be for the sake of anything else.

    Attributes:
        seconds: a queue may be this much longer than the shortest.
        ratio: or this many times as long, where that is more.
        near: share by which scores differ that are taken as equal; see `TOLERANCE`.
        objective: seconds to the first token that `latency` asks for.
    """

    seconds: float = 1.0
    ratio: float = 1.5
    near: float = 0.05
    objective: float = 1.0


Score = Callable[[Facts, int, Bounds], float]


def predicted(target: Facts, prompt: int) -> float:
    """Seconds to the first token of a prompt of so many tokens."""
    return target.floor + target.waiting + max(1, prompt - target.cached) / target.rate


def _latency(target: Facts, prompt: int, bounds: Bounds) -> float:
    """The cheapest target that meets the objective; where none does, the quickest."""
    late = predicted(target, prompt) - bounds.objective
    return target.price if late <= 0 else _NEVER + late


_NEVER = 1e12
"""More than any price."""

POLICIES: Mapping[str, Score] = {
    "predicted": lambda target, prompt, bounds: predicted(target, prompt),
    "prefix": lambda target, prompt, bounds: float(prompt - min(prompt, target.cached)),
    "least-wait": lambda target, prompt, bounds: target.waiting,
    "two-choices": lambda target, prompt, bounds: 0.0,
    "least-connections": lambda target, prompt, bounds: float(target.active),
    "round-robin": lambda target, prompt, bounds: float(target.given),
    "cost": lambda target, prompt, bounds: target.price,
    "carbon": lambda target, prompt, bounds: target.carbon,
    "latency": _latency,
}
"""By the name that the configuration calls them."""

DEFAULT = "predicted"

BY_PREFIX = frozenset({"predicted", "prefix", "latency"})
"""Policies whose score depends on what a target has cached."""

TOLERANCE: Mapping[str, float] = {"predicted": 0.02, "least-wait": 0.02}
"""Scores that differ by less are equal whatever their share: seconds that nobody feels, and that
one slow connection would otherwise hold against a target for good."""

UNBOUND = frozenset({"round-robin", "least-connections", "two-choices"})
"""Policies of other gateways, as these know them: without a bound, exact."""


def choose(
    targets: Sequence[Facts],
    prompt: int,
    random: Random,
    bounds: Bounds = Bounds(),
    policy: str = DEFAULT,
) -> Facts:
    """The target for a request.

    Args:
        targets: that can take it.
        prompt: its tokens.
        random: breaks ties.
        bounds: how uneven the load may get.
        policy: a name of `POLICIES`.

    Raises:
        ValueError: there is no target.
    """
    if not targets:
        raise ValueError("no target can take the request")
    score = POLICIES[policy]
    if policy in UNBOUND:
        able, near, tolerance = list(targets), 0.0, 0.0
    else:
        able, near = within(targets, bounds), bounds.near
        tolerance = TOLERANCE.get(policy, 0.0)
        if known := [target for target in able if target.session]:
            able = known
    scores = [score(target, prompt, bounds) for target in able]
    best = min(scores)
    most = best + max(abs(best) * near, tolerance)
    equal = [target for found, target in zip(scores, able, strict=True) if found <= most]
    if policy == DEFAULT:
        equal = [target for target in equal if target.home] or equal
    if len(equal) > 2:
        equal = random.sample(equal, 2)
    if len(equal) == 2 and equal[0].load == equal[1].load:
        return random.choice(equal)
    return min(equal, key=lambda target: target.load)


def within(targets: Sequence[Facts], bounds: Bounds) -> list[Facts]:
    """The targets whose queues are not too long beside the shortest."""
    shortest = min(target.waiting for target in targets)
    most = max(shortest + bounds.seconds, shortest * bounds.ratio)
    return [target for target in targets if target.waiting <= most]
