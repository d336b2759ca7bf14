"""A bound shared by clients: none is rejected for another's use while within its own share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Holder:
    weight: float
    amount: int = 0


class Shares:
    """Amounts of one resource that clients hold under one bound.

    A single client may hold all of it. With several clients each may hold its share by weight, even
    if another client has used up the bound. So k clients of equal weight hold at most
    1 + 1/2 + ... + 1/k times the bound: the case in which each starts after the previous one took
    all it may. While the total is above the bound, a client above its share gets nothing.

    Args:
        bound: the total that may be held.

    Attributes:
        total: the amount held by all clients.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.total = 0
        self._holders: dict[str, _Holder] = {}

    def of(self, client: str) -> int:
        """The amount that a client holds."""
        holder = self._holders.get(client)
        return 0 if holder is None else holder.amount

    def share(self, client: str, weight: float = 1.0) -> float:
        """The client's share of the bound among the clients that hold something."""
        others = sum(h.weight for name, h in self._holders.items() if name != client)
        return self.bound * weight / (weight + others)

    def excess(self, client: str, amount: int, weight: float = 1.0) -> float:
        """How much must be released before the client may take `amount`; 0 if it may now."""
        over = self.total + amount - self.bound
        if over <= 0:
            return 0.0
        own = self.of(client) + amount - self.share(client, weight)
        return max(0.0, min(over, own))

    def take(self, client: str, amount: int, weight: float = 1.0) -> None:
        """Add to what the client holds, without checking the bound."""
        if not amount:
            return
        holder = self._holders.setdefault(client, _Holder(weight))
        holder.weight = weight
        holder.amount += amount
        self.total += amount

    def give_back(self, client: str, amount: int) -> None:
        """Release an amount that the client holds."""
        if not amount:
            return
        holder = self._holders[client]
        holder.amount -= amount
        self.total -= amount
        if holder.amount <= 0:
            del self._holders[client]
