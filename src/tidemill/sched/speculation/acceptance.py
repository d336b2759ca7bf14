"""Acceptance: how likely drafts come true, learned from those that were verified.

A chance is that of a draft whose predecessors came true. It is learned per request, which starts
from its tenant's, which starts from all requests', which start from a hopeful guess. Older results
count less and less.
"""

from __future__ import annotations

from collections import OrderedDict

from tidemill.contract.plan import MOST_CONFIDENT

Key = tuple[str, int]
"""A drafter, and a confidence, `position` in a proposal, or `proposes`."""

# Of no evidence, by confidence. Hopeful: what is tried is learned.
_GUESSES = (0.7, 0.6, 0.7, 0.8, 0.9, 0.95, 0.95, 0.95)
_GUESS_BY_POSITION = 0.7
_GUESS_PROPOSES = 0.5
_PROPOSES = 64

# How many results of a level weigh as much as the chance of the level above, and how many it keeps.
_WEIGHT, _KEPT = (6.0, 24.0, 24.0), (48.0, 500.0, 2000.0)
_MOST_TENANTS = 256


def position(index: int) -> int:
    """The part of a key that means the draft at this index."""
    return MOST_CONFIDENT + 1 + index


def proposes(least: int) -> int:
    """The part of a key that means: asked for drafts of at least this certainty, and not quiet,
    it proposes some."""
    return _PROPOSES + least


class Acceptance:
    """Chances of one level: of a request (0), of a tenant (1) or of all (2)."""

    __slots__ = ("_above", "_chances", "_counts", "_kept", "_weight")

    def __init__(self, level: int, above: Acceptance | None) -> None:
        self._above, self._weight, self._kept = above, _WEIGHT[level], _KEPT[level]
        self._counts: dict[Key, list[float]] = {}
        self._chances: dict[Key, float] = {}

    def chance(self, key: Key) -> float:
        """The probability that such a draft comes true. What the levels above learn later is seen
        with this level's next result."""
        chance = self._chances.get(key)
        if chance is None:
            chance = self._chances[key] = self._estimate(key)
        return chance

    def _estimate(self, key: Key) -> float:
        above = _guess(key[1]) if self._above is None else self._above.chance(key)
        came, tried = self._counts.get(key, (0.0, 0.0))
        return (came + self._weight * above) / (tried + self._weight)

    def observe(self, key: Key, came_true: bool) -> None:
        """A draft was verified, whose predecessors came true; the levels above learn it as well."""
        if self._above is not None:
            self._above.observe(key, came_true)
        counts = self._counts.setdefault(key, [0.0, 0.0])
        counts[0] += came_true
        counts[1] += 1.0
        if counts[1] > self._kept:
            counts[0] *= 0.5
            counts[1] *= 0.5
        self._chances.pop(key, None)


def _guess(index: int) -> float:
    if index <= MOST_CONFIDENT:
        return _GUESSES[index]
    return _GUESS_BY_POSITION if index < _PROPOSES else _GUESS_PROPOSES


class Acceptances:
    """Those of all requests and of the latest tenants."""

    def __init__(self) -> None:
        self.all = Acceptance(2, None)
        self._tenants: OrderedDict[str, Acceptance] = OrderedDict()

    def of_request(self, tenant: str) -> Acceptance:
        """A new request's."""
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = Acceptance(1, self.all)
            if len(self._tenants) > _MOST_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return Acceptance(0, known)
