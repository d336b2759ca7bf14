"""All targets: which one a request gets, and who waits for one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.gateway.asked import BYTES_PER_TOKEN, Asked
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.holding import Holding
from tidemill.gateway.routing import homes
from tidemill.gateway.routing.announced import Announced
from tidemill.gateway.routing.health import State, usable
from tidemill.gateway.routing.load import Reservation
from tidemill.gateway.routing.policy import BY_PREFIX, choose
from tidemill.gateway.routing.prefixes import BLOCK_BYTES, Prefixes
from tidemill.gateway.targets import Target
from tidemill.server.errors import Rejection, reject

if TYPE_CHECKING:
    from tidemill.gateway.here import Here

MAX_SESSIONS = 1 << 16
BLOCK_TOKENS = int(BLOCK_BYTES / BYTES_PER_TOKEN)
RETRY_FLOOR = 10.0
"""Retries that are permitted whatever the share: of the first requests, and of few."""


@dataclass(slots=True)
class Route:
    """A request on its way to a target; `end` or `abandon` it once.

    Attributes:
        target: where.
        asked: what, under the model that answers.
        reservation: in the target's load.
        cached: tokens of its prompt that are presumably there.
        presumed: because other gateways may have sent it there; see `homes.Trust`.
        announced: what targets have, where this one says so; None: it does not.
    """

    target: Target
    asked: Asked
    reservation: Reservation
    cached: int
    presumed: bool = False
    announced: Announced | None = None

    def used(self, prompt: int, cached: int, answer: int) -> None:
        """The answer says of how many tokens it was made."""
        self.target.spend(prompt, answer)
        if self.presumed and self.asked.prompt:
            share = len(self.asked.keys) * BLOCK_BYTES / len(self.asked.prompt)
            self.target.trust.learn(cached, round(share * prompt))

    def first(self) -> None:
        """The first part of the answer has come."""
        self.target.load.first(self.reservation, monotonic())

    def end(self, tokens: int = 0) -> None:
        """It has ended, with so many tokens of answer."""
        now = monotonic()
        self.target.load.end(self.reservation, now, tokens)
        if self.announced is not None:
            model = self.target.named(self.asked.model)
            self.announced.ended(self.target.name, model, _name(self.asked, self.reservation), now)

    def abandon(self) -> None:
        """Nobody waits for it any more: it says nothing of the target."""
        self.end()
        self.target.health.abandoned()


class Fleet:
    """See the module docstring.

    Args:
        config: of the gateway.
        random: breaks ties.
        here: the server itself, which is its first target; None: it has no models.
    """

    def __init__(
        self, config: GatewayConfig, random: Random | None = None, here: Here | None = None
    ) -> None:
        self.config = config
        self.rules = config.privacy.rules()
        self.here = here
        self.targets = [Target(one, config.routing) for one in config.targets]
        if here is not None:
            self.targets.insert(0, here.target)
        self._random = random or Random()
        self._prefixes = Prefixes()
        self.announced = Announced(BLOCK_TOKENS)
        for target in self.targets:
            self._size(target)
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self.moved: dict[str, str] | None = None
        self.holding = Holding()
        self._changed = asyncio.Event()
        self._requests = self._retries = 0.0

    def _size(self, target: Target) -> None:
        if target.config.cache_tokens is not None:
            self._prefixes.resize(target.name, target.config.cache_tokens // BLOCK_TOKENS)

    def reload(self, config: GatewayConfig) -> list[Target]:
        """Go on with another configuration, that was checked. Targets that are the same in it keep
        what is known of them; requests that run end where they are.

        Returns:
            Targets that no further request is given to: they are gone, or others by the same name.
        """
        before = {target.name: target for target in self.targets}
        same_pools = config.routing.connect_seconds == self.config.routing.connect_seconds
        after = [] if self.here is None else [self.here.target]
        for one in config.targets:
            known = before.get(one.name)
            if known is None or known.config != one or not same_pools:
                made = Target(one, config.routing)
                if known is not None:
                    made.spent_like(known)
                known = made
            after.append(known)
        gone = [target for target in self.targets if target not in after]
        self.config, self.rules = config, config.privacy.rules()
        self.targets[:] = after
        for target in gone:
            self.forget(target)
        for target in after:
            if target not in before.values():
                self._size(target)
        self.changed()
        return gone

    # -- models --------------------------------------------------------------------------------

    @property
    def models(self) -> list[str]:
        """All names, each once."""
        names = (name for target in self.targets for name in target.models)
        return list(dict.fromkeys((*names, *self.config.scaled, *self.config.fallbacks)))

    def default(self, path: str) -> str:
        """The model of a request that names none. Raises NOT_FOUND."""
        for target in self.targets:
            if target.models and target.speaks(path):
                return target.models[0]
        for model in self.config.scaled:
            return model
        raise self._unknown("", path)

    def order(self, model: str) -> tuple[str, ...]:
        """The models that may answer for one, itself first."""
        return (model, *self.config.fallbacks.get(model, ()))

    # -- choices -------------------------------------------------------------------------------

    async def route(self, asked: Asked, tried: Collection[str] = ()) -> Route:
        """Choose a target for a request; waits for one that is down or full, and for one that does
        not exist yet where the model's engines come and go (`scaled`).

        Args:
            asked: the request, with its model.
            tried: names of targets that it was given to already.

        Raises:
            TidemillError: NOT_FOUND: no target has the model, or speaks the route.
            Rejection: 403, a private request that no target may see; 429 and 503 with Retry-After
                where none has room, or all are down.
        """
        scaled = self.config.scaled.get(asked.model)
        seconds = 0.0 if tried else self.config.routing.wake_seconds
        ends = monotonic() + (seconds if scaled is None else scaled.hold_seconds)
        if asked.deadline is not None:
            ends = min(ends, asked.deadline)
        is_held = False
        with ExitStack() as holding:
            while True:
                possible = self._possible(asked)
                now = monotonic()
                free = self._free(possible, tried, now)
                if is_held and not free:  # what was tried may be back
                    back = self._free(possible, (), now)
                    free = [one for one in back if one.health.state(now) is State.CLOSED]
                if free:
                    return self._give(free, asked, now)
                if now >= ends or not (
                    scaled is not None
                    or any(one.name not in tried and one.within_budget for one in possible)
                ):
                    raise self._none(possible, now)
                if scaled is not None and not is_held:
                    is_held = True
                    hold = self.holding.hold(asked.model, asked.prompt_tokens, scaled.max_held)
                    holding.enter_context(hold)
                self._changed.clear()
                try:
                    async with asyncio.timeout(min(0.1, ends - now)):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def _possible(self, asked: Asked) -> list[Target]:
        having = [one for one in self.targets if one.has(asked.model)]
        if not having and asked.model in self.config.scaled:
            return []
        if not having:  # those that nobody could ask yet what they have
            having = [one for one in self.targets if not one.models]
        speaking = [one for one in having if one.speaks(asked.path)]
        if asked.position:
            speaking = [one for one in speaking if one.continues]
        if not speaking:
            raise self._unknown(asked.model, asked.path, known=bool(having))
        permitted = [
            one for one in speaking if self.is_here(one) or asked.verdict.permits(one.where)
        ]
        if not permitted:
            raise reject(
                403,
                "this request is private "
                f"({', '.join(asked.verdict.because)}), and no target that may see it has the "
                f"model {asked.model!r}",
                code="private_request",
            )
        return permitted

    def _free(self, possible: list[Target], tried: Collection[str], now: float) -> list[Target]:
        able = [
            one
            for one in possible
            if one.name not in tried
            and not one.pool.full
            and one.within_budget
            and one.health.busy_until <= now
        ]
        return usable(able, lambda one: one.health, now)

    def _give(self, free: Sequence[Target], asked: Asked, now: float) -> Route:
        routing = self.config.routing
        here = self.here
        if here is not None and here.target in free and here.preferred(asked.model, now):
            free = [here.target]
        # What computes prompts for others answers where nothing else does.
        free = [one for one in free if not one.prefills(asked.model)] or free
        session = self._sessions.get(asked.session) if asked.session else None
        cached = {one.name: self._cached(one, asked, now) for one in free}
        home = homes.home([one.name for one in free], asked.home)
        cold = home is not None and not any(cached.values())
        if home is not None and cold:
            trust = next(one.trust for one in free if one.name == home)
            cached[home] = int(trust.share * len(asked.keys)) * BLOCK_TOKENS
        table = [
            one.facts(
                asked,
                now,
                cached[one.name],
                session=one.name == session,
                home=cold and one.name == home,
            )
            for one in free
        ]
        chosen = choose(table, asked.prompt_tokens, self._random, routing.bounds, routing.policy)
        target = next(one for one in free if one.name == chosen.name)
        target.health.begin(now)
        if asked.session:
            if self.moved is not None and session != target.name and not self.is_here(target):
                self.moved[asked.session] = target.name
            self.place(asked.session, target.name)
        reservation = target.load.reserve(now, asked.prompt_tokens - chosen.cached, asked.expected)
        route = Route(target, asked, reservation, chosen.cached, chosen.home)
        blocks, name = len(asked.prompt) / BLOCK_BYTES, _name(asked, reservation)
        model = target.named(asked.model)
        if self.announced.note(target.name, model, name, asked.keys, blocks):
            route.announced = self.announced
        else:
            self._prefixes.note(target.name, asked.keys)
        return route

    @property
    def follows(self) -> bool:
        """Whether it matters what targets have cached."""
        return self.config.routing.policy in BY_PREFIX and len(self.targets) > 1

    def _cached(self, target: Target, asked: Asked, now: float) -> int:
        """Tokens of a prompt that a target has, as it says, or presumably."""
        model = target.named(asked.model)
        told = self.announced.matched(target.name, model, asked.keys, now)
        if told is not None:
            return told
        return BLOCK_TOKENS * self._prefixes.matched(target.name, asked.keys)

    def place(self, session: str, target: str) -> None:
        """A session is answered by a target from now on."""
        self._sessions[session] = target
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def is_here(self, target: Target) -> bool:
        """Whether a target is the server itself, which a request has reached already."""
        return self.here is not None and target is self.here.target

    def forget(self, target: Target) -> None:
        """A target is down: what it had cached is gone."""
        self._prefixes.forget(target.name)
        self.announced.forget(target.name)

    def cached(self, target: Target, tokens: int, engines: Mapping[str, str]) -> None:
        """A target says how much its prefix caches hold together, and which engines have them: what
        one that is gone had is forgotten."""
        if target.config.cache_tokens is None:
            self._prefixes.resize(target.name, tokens // BLOCK_TOKENS)
        before, target.engines = target.engines, dict(engines)
        if any(before.get(name, engine) != engine for name, engine in engines.items()):
            self.forget(target)

    def changed(self) -> None:
        """A target may have become able to take requests."""
        self._changed.set()

    # -- retries -------------------------------------------------------------------------------

    def began(self) -> None:
        """A request has come."""
        self._requests = self._requests * 0.999 + 1
        self._retries *= 0.999

    def may_retry(self) -> bool:
        """Count a retry, if there are not too many."""
        share = self.config.routing.retry_share
        if self._retries + 1 > RETRY_FLOOR + share * self._requests:
            return False
        self._retries += 1
        return True

    # -- refusals ------------------------------------------------------------------------------

    def _unknown(self, model: str, path: str, *, known: bool = False) -> TidemillError:
        if known:
            message = f"no target that has the model {model!r} answers {path}"
            return TidemillError(ErrorKind.UNSUPPORTED, message, param="model")
        names = ", ".join(self.models[:8]) or "none yet"
        message = f"no target has the model {model[:128]!r}; there are {names}"
        return TidemillError(ErrorKind.NOT_FOUND, message, param="model")

    def _none(self, possible: Iterable[Target], now: float) -> Rejection:
        possible = list(possible)
        busy = [one for one in possible if one.health.busy_until > now or one.pool.full]
        if busy:
            seconds = min(max(1.0, one.health.busy_until - now) for one in busy)
            # Clients that come back together would be refused together again.
            after = round(seconds * self._random.uniform(1.0, 1.5) + 0.5)
            return reject(
                429,
                "every target of this model is busy; try again later",
                code="overloaded",
                headers={"Retry-After": str(after)},
            )
        if possible and not any(one.within_budget for one in possible):
            return reject(
                429,
                "the budget of every target of this model is spent (targets.budget)",
                code="budget_spent",
                headers={"Retry-After": "3600"},
            )
        return reject(
            503,
            "no target of this model answers; try again later",
            code="no_target",
            headers={"Retry-After": str(self._random.randint(1, 5))},
        )


def _name(asked: Asked, reservation: Reservation) -> str:
    """What a target calls a request. One that is gone on with has another prompt than its text, and
    is known by a name that no target tells."""
    return f"#{id(reservation)}" if asked.position or not asked.name else asked.name
