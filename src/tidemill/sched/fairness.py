"""Tenants: whose turn it is, as deficit round robin on tokens with weights.

Every token computed for a tenant is charged to it; a round hands every active tenant its share of
what was computed. The difference is its deficit counter, as in Shreedhar and Varghese, Efficient
Fair Queuing using Deficit Round Robin (1995), with rounds as small as a token, so that nobody waits
for a long turn of another to end. Whoever has the largest deficit is served next.

A tenant that comes back has kept at most a quantum: enough to have a prompt of that length read at
once, and nothing to be hoarded. Nobody owes more than `MAX_DEBT` for what it used while others left
it unused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

QUANTUM = 512.0
"""Tokens (per unit of weight) that a tenant is ahead at most."""

MAX_DEBT = 2048.0
"""Tokens (per unit of weight) that it is behind at most."""

MAX_IDLE = 4096
"""Tenants without a request that are remembered."""

RECENT_SECONDS = 10.0
"""So long after another tenant's last request the engine still reckons with its next one."""


@dataclass(slots=True)
class Tenant:
    """A tenant with requests in the engine, or one that had some lately.

    Attributes:
        name, weight: see `EngineRequest`.
        served: tokens charged per unit of weight, on the scale of `Tenants`' round.
        requests: in the engine now.
        turns: prompts' chunks planned for it; decides between its oldest and its shortest prompt.
        last_turn: when it had one last (a counter over all).
        seen: clock reading of its last request's end.
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
        """A request of the tenant comes."""
        tenant = self._active.get(name)
        if tenant is None:
            alone = not self._active
            tenant = self._idle.pop(name, None)
            if tenant is None or alone:
                # Who finds nobody else there needs no advantage over anybody.
                credit = 0.0 if alone else QUANTUM
                tenant = Tenant(name, weight, self._round - credit)
            self._active[name] = tenant
        else:
            self._weights -= tenant.weight
        tenant.weight = weight
        self._weights += weight
        tenant.requests += 1

    def leave(self, name: str, now: float) -> None:
        """A request of the tenant has ended; `now` is a clock reading in seconds."""
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
        """Tokens were planned for the tenant; negative when a plan is taken back."""
        tenant = self._active.get(name)
        if tenant is None:
            return  # its last request ended while the plan was out
        self._settle(tenant)
        tenant.served += tokens / tenant.weight
        self._round += tokens / self._weights

    def deficit(self, name: str) -> float:
        """Tokens the tenant is owed (negative: has had too much); 0 for one that is not there."""
        tenant = self._active.get(name)
        if tenant is None:
            return 0.0
        self._settle(tenant)
        return (self._round - tenant.served) * tenant.weight

    def share(self, name: str) -> float:
        """The part of the engine that is the tenant's while all the others want theirs."""
        tenant = self._active.get(name)
        return tenant.weight / self._weights if tenant is not None else 1.0

    def pick(self, names: Iterable[str]) -> Tenant:
        """Of these active tenants, whose turn it is."""
        return min((self._active[n] for n in names), key=self._rank)

    def record_turn(self, name: str) -> None:
        """The tenant had its turn."""
        tenant = self._active[name]
        self._turns += 1
        tenant.last_turn = self._turns
        tenant.turns += 1

    def competing(self, now: float) -> bool:
        """Several tenants want the engine, or did within the last seconds."""
        if len(self._active) != 1:
            return len(self._active) > 1
        return any(
            now - tenant.seen < RECENT_SECONDS and tenant.name not in self._active
            for tenant in list(reversed(self._idle.values()))[:2]
        )

    def _rank(self, tenant: Tenant) -> tuple[float, int]:
        self._settle(tenant)
        return tenant.served, tenant.last_turn

    def _settle(self, tenant: Tenant) -> None:
        low, high = self._round - QUANTUM, self._round + MAX_DEBT
        tenant.served = min(high, max(low, tenant.served))

    def check(self) -> None:
        """Verify the books. Raises AssertionError (a defect of ours)."""
        assert abs(self._weights - sum(t.weight for t in self._active.values())) < 1e-6
        assert all(t.requests > 0 for t in self._active.values()), "an idle tenant is active"
        assert not self._active.keys() & self._idle.keys(), "a tenant is twice there"
