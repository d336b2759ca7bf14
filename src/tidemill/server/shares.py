"""A bound that clients share: nobody is refused for another's use while within its own share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Holder:
    weight: float
    amount: int = 0


class Shares:
    """Amounts of one resource, held by clients, under one bound.

    A client alone may hold all of it. While others hold something, each may have its part by weight
    even where another's use has reached the bound; so with k clients of equal weight no more is
    held than 1 + 1/2 + ... + 1/k times the bound, when each came after the one before had taken all
    that it may. What is held beyond the bound is given back first: a client above its share gets
    nothing until the total is below the bound again.

    Args:
        bound: of what may be held.

    Attributes:
        total: what is held.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.total = 0
        self._holders: dict[str, _Holder] = {}

    def of(self, client: str) -> int:
        """What a client holds."""
        holder = self._holders.get(client)
        return 0 if holder is None else holder.amount

    def share(self, client: str, weight: float = 1.0) -> float:
        """The part of the bound that is the client's while all who hold something want theirs."""
        others = sum(h.weight for name, h in self._holders.items() if name != client)
        return self.bound * weight / (weight + others)

    def excess(self, client: str, amount: int, weight: float = 1.0) -> float:
        """How much has to be given back before the client may have so much more; 0 when it may."""
        over = self.total + amount - self.bound
        if over <= 0:
            return 0.0
        own = self.of(client) + amount - self.share(client, weight)
        return max(0.0, min(over, own))

    def take(self, client: str, amount: int, weight: float = 1.0) -> None:
        """Let the client hold so much more, whatever is held."""
        if not amount:
            return
        holder = self._holders.setdefault(client, _Holder(weight))
        holder.weight = weight
        holder.amount += amount
        self.total += amount

    def give_back(self, client: str, amount: int) -> None:
        """The client holds so much less."""
        if not amount:
            return
        holder = self._holders[client]
        holder.amount -= amount
        self.total -= amount
        if holder.amount <= 0:
            del self._holders[client]
