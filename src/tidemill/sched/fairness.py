"""Tenants: weighted fair scheduling by deficit round robin on tokens.

Every token computed for a tenant is charged to it, and every active tenant is credited its share of
all tokens computed. The difference is its deficit counter, as in Shreedhar and Varghese, Efficient
Fair Queuing using Deficit Round Robin (1995), with rounds as small as one token, so that no tenant
waits for a long round of another. The tenant with the largest deficit is served next.

The deficit is bounded on both sides. A returning tenant has at most one `QUANTUM` of credit: enough
to prefill a prompt of that length at once, and not more for having been idle. A tenant that used
capacity which others left idle has at most `MAX_DEBT` of debt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

QUANTUM = 512.0
"""Maximum credit of a tenant, in tokens per unit of weight."""

MAX_DEBT = 2048.0
"""Maximum debt of a tenant, in tokens per unit of weight."""

MAX_IDLE = 4096
"""Maximum number of tenants without a request whose counters are stored."""

RECENT_SECONDS = 10.0
"""Seconds after its last request during which a tenant still counts as competing."""


@dataclass(slots=True)
class Tenant:
    """A tenant that has or recently had requests in the engine.

    Attributes:
        name, weight: see `EngineRequest`.
        served: tokens charged per unit of weight, on the scale of `Tenants`' round.
        requests: number of its requests in the engine.
        turns: prefill chunks planned for it; its parity selects the oldest or the shortest prompt.
        last_turn: global turn counter at its latest turn.
        seen: clock time in seconds at which a request of it ended last.
    """

    name: str
    weight: float
    served: float
    requests: int = 0
    turns: int = 0
    last_turn: int = 0
    seen: float = 0.0


class Tenants:
    """The tenants and their deficits."""

    def __init__(self) -> None:
        self._active: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, Tenant] = OrderedDict()
        self._round = 0.0
        self._weights = 0.0
        self._turns = 0

    def __len__(self) -> int:
        """Tenants with a request in the engine."""
        return len(self._active)

    def enter(self, name: str, weight: float) -> None:
        """Register a request of the tenant."""
        tenant = self._active.get(name)
        if tenant is None:
            alone = not self._active
            tenant = self._idle.pop(name, None)
            if tenant is None or alone:
                # Without another active tenant there is no one to have credit over.
                credit = 0.0 if alone else QUANTUM
                tenant = Tenant(name, weight, self._round - credit)
            self._active[name] = tenant
        else:
            self._weights -= tenant.weight
        tenant.weight = weight
        self._weights += weight
        tenant.requests += 1

    def leave(self, name: str, now: float) -> None:
        """Unregister a request that has ended; `now` is in clock seconds."""
        tenant = self._active[name]
        tenant.requests -= 1
        tenant.seen = now
        if tenant.requests == 0:
            del self._active[name]
            self._weights = sum(t.weight for t in self._active.values())
            self._idle[name] = tenant
            if len(self._idle) > MAX_IDLE:
                self._idle.popitem(last=False)

    def charge(self, name: str, tokens: int) -> None:
        """Charge planned tokens to the tenant; negative on rollback."""
        tenant = self._active.get(name)
        if tenant is None:
            return  # its last request ended while the plan was in flight
        self._clamp(tenant)
        tenant.served += tokens / tenant.weight
        self._round += tokens / self._weights

    def charge_each(self, name: str, tokens: int) -> None:
        """Charge the only active tenant tokens one by one: as so many calls of `charge`."""
        if tokens <= 0 or name not in self._active:
            return
        self.charge(name, 1)
        tenant = self._active[name]
        # Both grow alike, so that no bound is reached that the first token has not.
        mine, all_of = 1 / tenant.weight, 1 / self._weights
        for _ in range(tokens - 1):
            tenant.served += mine
            self._round += all_of

    def deficit(self, name: str) -> float:
        """The tenant's deficit in tokens: positive if it got less than its share, negative if it
        got more; 0 for an inactive tenant."""
        tenant = self._active.get(name)
        if tenant is None:
            return 0.0
        self._clamp(tenant)
        return (self._round - tenant.served) * tenant.weight

    def share(self, name: str) -> float:
        """The tenant's fraction of the total weight of active tenants; 1 for an inactive one."""
        tenant = self._active.get(name)
        return tenant.weight / self._weights if tenant is not None else 1.0

    def pick(self, names: Iterable[str]) -> Tenant:
        """Of these active tenants, the one to serve next."""
        return min((self._active[n] for n in names), key=self._rank)

    def record_turn(self, name: str) -> None:
        """Count a prefill chunk planned for the tenant."""
        tenant = self._active[name]
        self._turns += 1
        tenant.last_turn = self._turns
        tenant.turns += 1

    def competing(self, now: float) -> bool:
        """True if several tenants are active, or were within `RECENT_SECONDS`."""
        if len(self._active) != 1:
            return len(self._active) > 1
        return any(
            now - tenant.seen < RECENT_SECONDS and tenant.name not in self._active
            for tenant in list(reversed(self._idle.values()))[:2]
        )

    def _rank(self, tenant: Tenant) -> tuple[float, int]:
        self._clamp(tenant)
        return tenant.served, tenant.last_turn

    def _clamp(self, tenant: Tenant) -> None:
        low, high = self._round - QUANTUM, self._round + MAX_DEBT
        tenant.served = min(high, max(low, tenant.served))

    def check(self) -> None:
        """Verify the invariants. Raises AssertionError (a bug in Tidemill)."""
        assert abs(self._weights - sum(t.weight for t in self._active.values())) < 1e-6
        assert all(t.requests > 0 for t in self._active.values()), "an idle tenant is active"
        assert not self._active.keys() & self._idle.keys(), "a tenant is both active and idle"
