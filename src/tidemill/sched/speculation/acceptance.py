"""Acceptance: how likely drafts come true, learned from those that were verified.

A chance is that of a draft whose predecessors came true. It is learned per request, which starts
from its tenant's, which starts from all requests', which start from a hopeful guess. Older results
count less and less.

What a drafter's proposals bring is learned from all of them (`Yields`), by the chances of their
drafts. Those that were verified would say too much: they are the ones that were likely.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from tidemill.contract.plan import MOST_CONFIDENT

Key = tuple[str, int]
"""A drafter, and a confidence or `proposes`."""

# Of no evidence, by confidence. Hopeful: what is tried is learned.
_GUESSES = (0.7, 0.6, 0.7, 0.8, 0.9, 0.95, 0.95, 0.95)
_GUESS_PROPOSES = 0.5
_PROPOSES = 64

MAX_MODEL_DRAFTS = 8
"""Drafts of a row by a drafter that computes for each of them."""

# Of no evidence, what `Yields` begin with: each draft comes true as often as not and is worth it.
_GUESS_YIELD = tuple((0.7**i, 1.0, 1.0) for i in range(1, MAX_MODEL_DRAFTS + 1))

# How many results of a level weigh as much as the chance of the level above, and how many it keeps.
_WEIGHT, _KEPT = (6.0, 24.0, 24.0), (48.0, 500.0, 2000.0)
_MOST_TENANTS = 256


def proposes(least: int) -> int:
    """The part of a key that means: asked for drafts of at least this certainty, and not quiet,
    it proposes some."""
    return _PROPOSES + least


class Acceptance:
    """Chances of one level: of a request (0), of a tenant (1) or of all (2)."""

    __slots__ = ("_above", "_chances", "_counts", "_kept", "_level", "_weight", "_yields")

    def __init__(self, level: int, above: Acceptance | None) -> None:
        self._above, self._weight, self._kept = above, _WEIGHT[level], _KEPT[level]
        self._level = level
        self._yields: dict[str, Yields] = {}
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

    def yields(self, drafter: str) -> Yields:
        """What a drafter's proposals bring."""
        found = self._yields.get(drafter)
        if found is None:
            above = None if self._above is None else self._above.yields(drafter)
            found = self._yields[drafter] = Yields(self._level, above)
        return found


class Yields:
    """What proposals of one drafter bring, by position, at one level.

    Of each position that was asked for: the mean product of chances up to there where that is worth
    what verifying a token costs, else 0; how often it is; and how often a draft is there.
    """

    __slots__ = ("_above", "_kept", "_sums", "_tried", "_weight")

    def __init__(self, level: int, above: Yields | None) -> None:
        self._above, self._weight, self._kept = above, _WEIGHT[level], _KEPT[level]
        self._sums = [[0.0, 0.0, 0.0] for _ in range(MAX_MODEL_DRAFTS)]
        self._tried = [0.0] * MAX_MODEL_DRAFTS

    def observe(self, asked: int, products: Sequence[float], price: float) -> None:
        """A drafter was asked for so many drafts.

        Args:
            asked: drafts wanted.
            products: of those proposed, the chances that they and all before them come true.
            price: of verifying one token, in tokens.
        """
        if self._above is not None:
            self._above.observe(asked, products, price)
        tried = self._tried
        for index in range(min(asked, MAX_MODEL_DRAFTS)):
            tried[index] += 1.0
            sums = self._sums[index]
            if index < len(products):
                product = products[index]
                if product > price:
                    sums[0] += product
                    sums[1] += 1.0
                sums[2] += 1.0
            if tried[index] > self._kept:
                tried[index] *= 0.5
                sums[:] = [0.5 * value for value in sums]

    def by_position(self) -> list[tuple[float, float, float]]:
        """The estimates, see the class."""
        above = _GUESS_YIELD if self._above is None else self._above.by_position()
        weight = self._weight
        return [
            (
                (sums[0] + weight * known[0]) / (tried + weight),
                (sums[1] + weight * known[1]) / (tried + weight),
                (sums[2] + weight * known[2]) / (tried + weight),
            )
            for sums, tried, known in zip(self._sums, self._tried, above, strict=True)
        ]


def _guess(index: int) -> float:
    return _GUESSES[index] if index <= MOST_CONFIDENT else _GUESS_PROPOSES


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
