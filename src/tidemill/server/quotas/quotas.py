"""The seam between requests and limits: who is charged, what is reserved, what the answer says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

from tidemill.base.clock import monotonic, wall
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import NO_LIMITS, Defaults, Level, Limit, Limits, QuotaView, merged
from tidemill.metrics.quotas import QuotaMetrics
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Owner
from tidemill.server.errors import Rejection
from tidemill.server.quotas.account import Account, Subject, local_meter
from tidemill.server.quotas.leased import Leased
from tidemill.server.quotas.ledger import Cost, Exceeded, Ledger, Reservation
from tidemill.server.quotas.meters import Meter, Now
from tidemill.server.quotas.refusal import gone, refusal, unavailable, warning
from tidemill.server.quotas.standing import Standing, standing
from tidemill.server.quotas.treasury import Treasury

MAX_ACCOUNTS = 16384
"""Accounts in memory; beyond, the least recently used one is forgotten."""

ROUNDS = 3
"""How often a request waits for a draw; more than one where others take what was drawn for it."""

Clock = Callable[[], Now]


def read_clocks() -> Now:
    """The clocks of this machine."""
    return Now(monotonic(), wall())


def subjects_of(principal: Principal) -> list[tuple[Subject, str]]:
    """The subjects that a principal's requests count on, from the widest, with their names."""
    owner = principal.owner
    found = [
        (Level.SERVER, "", ""),
        (Level.ORGANISATION, owner.organisation, owner.organisation_name),
        (Level.TEAM, owner.team, owner.team_name),
        (Level.USER, owner.user, owner.user_name),
        (Level.KEY, principal.key_id or principal.client_id, principal.name),
    ]
    return [((lvl, key), shown) for lvl, key, shown in found if key or lvl is Level.SERVER]


class Quotas:
    """The limits of a server, and what is used of them.

    Args:
        defaults: limits of each subject of a level that has no limit of its own on that measure.
        prices: of models.
        metrics: counts refusals.
        clock: reads the clocks.
        treasury: shares limits with other servers, and keeps what is used over restarts; None:
            this server counts for itself, in memory.
    """

    def __init__(
        self,
        defaults: Defaults | None = None,
        prices: Prices | None = None,
        metrics: QuotaMetrics | None = None,
        clock: Clock = read_clocks,
        treasury: Treasury | None = None,
    ) -> None:
        self.defaults = defaults or Defaults()
        self.defaults.on_change.append(self._follow)
        self.prices = Prices() if prices is None else prices  # an empty list may be filled later
        self.ledger = Ledger(clock)
        self.metrics = metrics or QuotaMetrics()
        self.metrics.open.set_function(lambda: self.ledger.open)
        self.treasury = treasury
        self._own: dict[Subject, Limits] = {}
        self._accounts: OrderedDict[Subject, Account] = OrderedDict()
        # Of a client: whose it is, its limits in a key file, and its accounts that have limits.
        self._known: dict[str, tuple[Owner, Limits, list[Account]]] = {}

    @property
    def accounts(self) -> Collection[Account]:
        """The accounts of those who were seen lately."""
        return self._accounts.values()

    def set_limits(self, own: Mapping[Subject, Limits]) -> None:
        """Replace the limits that subjects have of their own; what is used stays used."""
        self._own = dict(own)
        self._follow()

    def _follow(self) -> None:
        now = self.ledger.now()
        self._known.clear()
        for account in self._accounts.values():
            account.follow(self._limits_of(account), now, self._make)

    def request(self, principal: Principal) -> RequestQuota | None:
        """What one request of a principal is charged to; None where nothing limits it."""
        if not (self._own or principal.limits or self.defaults):
            return None
        client = principal.key_id or principal.client_id
        known = self._known.get(client)
        if known is None or known[0] != principal.owner or known[1] is not principal.limits:
            known = (principal.owner, principal.limits, self._accounts_of(principal))
            self._known[client] = known
        return RequestQuota(self, known[2]) if known[2] else None

    def _accounts_of(self, principal: Principal) -> list[Account]:
        found = []
        for subject, shown in subjects_of(principal):
            stated = principal.limits if subject[0] is Level.KEY else NO_LIMITS
            account = self._account(subject, shown, stated)
            if account.meters:
                found.append(account)
        return found

    def _account(self, subject: Subject, shown: str, stated: Limits) -> Account:
        account = self._accounts.get(subject)
        if account is None:
            account = self._accounts[subject] = Account(subject, shown, stated)
            account.follow(self._limits_of(account), self.ledger.now(), self._make)
            while len(self._accounts) > MAX_ACCOUNTS:
                _, oldest = self._accounts.popitem(last=False)
                oldest.follow(NO_LIMITS, self.ledger.now())
                self._known.clear()
            return account
        self._accounts.move_to_end(subject)
        if account.stated is not stated:  # the key file was read again
            account.stated = stated
            account.follow(self._limits_of(account), self.ledger.now(), self._make)
        return account

    def _make(self, subject: Subject, limit: Limit, now: Now) -> Meter:
        meter = local_meter(subject, limit, now)
        return meter if self.treasury is None else self.treasury.lease(subject, meter, now)

    async def reserve(self, accounts: Sequence[Account], cost: Cost) -> Reservation:
        """Reserve what a request may use; waits where more must be drawn for it.

        Raises:
            Rejection: 429, naming the limit and its level; 503, what was drawn is used up and the
                database does not answer.
        """
        if self.treasury is not None and self.treasury.given_up:
            await self.treasury.ask()
            if self.treasury.given_up:
                raise gone()
        for _ in range(ROUNDS):
            try:
                return self.ledger.reserve(accounts, cost)
            except Exceeded as exceeded:
                growing = self._growing(exceeded)
                if growing is None or self.treasury is None:
                    raise self._refuse(exceeded) from None
                if not self.treasury.worth_asking:
                    raise unavailable(exceeded) from None
            await self.treasury.top_up(growing)
        try:
            return self.ledger.reserve(accounts, cost)
        except Exceeded as exceeded:
            if self.treasury is not None and not self.treasury.answers:
                raise unavailable(exceeded) from None
            raise self._refuse(exceeded) from None

    def _growing(self, exceeded: Exceeded) -> list[tuple[Leased, int]] | None:
        """The meters for which more can be drawn; None where one limit has no room in any case."""
        now = self.ledger.now()
        found: list[tuple[Leased, int]] = []
        for meter, need in exceeded.all:
            if not isinstance(meter, Leased) or not meter.may_grow(need, now):
                return None
            found.append((meter, need))
        return found

    def _refuse(self, exceeded: Exceeded) -> Rejection:
        for meter, _ in exceeded.all:
            if isinstance(meter, Leased):
                meter.look()
        measure, level = exceeded.meter.measure, exceeded.account.subject[0]
        self.metrics.refused(measure.name, level.value)
        return refusal(exceeded, self.ledger.now())

    def _limits_of(self, account: Account) -> Limits:
        """Those of the store replace those of a key file, and both the level's defaults."""
        subject = account.subject
        default, own = self.defaults.of(subject[0]), self._own.get(subject, NO_LIMITS)
        return merged(default, account.stated, own)


class RequestQuota:
    """What one request is charged to; a `generation.caller.Quota`.

    Its parts (a pipeline's calls) reserve their tokens one by one; the request counts once, with
    the first.
    """

    __slots__ = ("_accounts", "_counted", "_quotas", "_warnings")

    def __init__(self, quotas: Quotas, accounts: Sequence[Account]) -> None:
        self._quotas = quotas
        self._accounts = accounts
        self._counted = False
        self._warnings: tuple[str, ...] = ()

    async def reserve(self, model: str, prompt: int, expected: int, most: int) -> Held:
        """See `generation.caller.Quota`.

        Raises:
            Rejection: 429, naming the limit and its level.
        """
        quotas = self._quotas
        prices = quotas.prices
        money = prices.of(model).most(prompt, most) if prices else 0
        cost = Cost(0 if self._counted else 1, prompt, expected, most, money)
        reservation = await quotas.reserve(self._accounts, cost)
        self._counted = True
        if reservation.warnings:
            self._warn(reservation)
        return Held(reservation, prices, model, self._accounts, quotas.ledger.now)

    def standing(self) -> Standing:
        """What is left of the limits now, for headers."""
        return standing(self._accounts, self._quotas.ledger.now(), self._warnings)

    def _warn(self, reservation: Reservation) -> None:
        for account, meter in reservation.warnings:
            self._quotas.metrics.warned(meter.measure.name, account.subject[0].value)
        found = (warning(account.title, meter) for account, meter in reservation.warnings)
        self._warnings = tuple(dict.fromkeys((*self._warnings, *found)))


class Held:
    """A reservation with the price of its model; a `generation.caller.Reservation`."""

    __slots__ = ("_accounts", "_model", "_now", "_prices", "_reservation", "progress", "release")

    def __init__(
        self,
        reservation: Reservation,
        prices: Prices,
        model: str,
        accounts: Sequence[Account],
        now: Clock,
    ) -> None:
        self._reservation = reservation
        self._accounts = accounts
        self._now = now
        self._prices = prices
        self._model = model
        self.progress = reservation.progress
        self.release = reservation.release

    def taken(self) -> tuple[QuotaView, ...]:
        """See `generation.caller.Reservation`."""
        now, cost = self._now(), self._reservation.cost
        return tuple(
            QuotaView(
                *(account.subject[0].value, account.shown, meter.measure.name),
                *(meter.measure.unit.value, meter.amount, cost.of(meter.measure)),
                *(meter.remaining(now), meter.soft),
            )
            for account in self._accounts
            for meter in account.meters
        )

    def settle(self, prompt: int, cached: int, generated: int) -> None:
        """See `generation.caller.Reservation`."""
        money = self._prices.cost(self._model, prompt, cached, generated)
        self._reservation.settle(prompt + generated, money)
