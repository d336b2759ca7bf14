"""Names with versions: which version answers each request, and what their comparisons lead to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidemill.base.errors import TidemillError, config_error
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.generation.caller import Caller
from tidemill.metrics.rollouts import RolloutMetrics
from tidemill.server.host.rollout.machine import Event
from tidemill.server.host.rollout.named import NameTraffic
from tidemill.server.host.rollout.observation import VERSION_ERRORS, Observation
from tidemill.server.host.rollout.traffic import Shadow, Single, Traffic, to_builtins
from tidemill.server.host.routed import Routed
from tidemill.server.host.samples import sample_of
from tidemill.server.host.served import ServedModel
from tidemill.server.host.shadows import Copy, Shadows
from tidemill.server.host.watching import Watch

if TYPE_CHECKING:
    from tidemill.server.host.host import ModelHost
    from tidemill.server.host.source import NameOptions

log = get_logger(__name__)

TICK_SECONDS = 1.0

SAVE_SECONDS = 10.0
"""Evidence is saved at most so often; what happens to a rollout is saved at once."""

_KEY = "key:"


class Versions:
    """The names of one server that have versions; a version is the model ``name@version``.

    Args:
        host: the models.
        metrics: of rollouts.
        folder: where the state of comparisons is kept over restarts; None: nowhere.
        tick_seconds: how often rollouts look at the time.

    Attributes:
        metrics, tick_seconds: as given; the latter may be changed.
        shadows: the copies.
    """

    def __init__(
        self,
        host: ModelHost,
        metrics: RolloutMetrics,
        folder: Path | None = None,
        *,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._host = host
        self.metrics = metrics
        self._folder = folder
        self.tick_seconds = tick_seconds
        self._traffic: dict[str, NameTraffic] = {}  # by name
        self._by_name: dict[str, NameTraffic] = {}  # and by alias
        self._task: asyncio.Task[None] | None = None
        self._requests = 0
        self.shadows = Shadows(
            host,
            lambda: self._requests > 0,
            lambda name, outcome: metrics.copies.labels(name, outcome).inc(),
        )

    # -- names -------------------------------------------------------------------------------

    @property
    def all(self) -> tuple[NameTraffic, ...]:
        """Every name's traffic."""
        return tuple(self._traffic.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and alias."""
        return tuple(self._by_name)

    def find(self, name: str) -> NameTraffic | None:
        """The traffic of a name or an alias."""
        return self._by_name.get(name)

    def declare(
        self,
        name: str,
        versions: Sequence[str],
        *,
        aliases: Sequence[str] = (),
        rule: Traffic | None = None,
    ) -> NameTraffic:
        """Serve a name whose versions the host has; it goes on from the state that was saved.

        Args:
            name: what clients use.
            versions: at least one. The first answers where `rule` is None.
            aliases: further names.
            rule: as the deployment says it.

        Raises:
            TidemillError: CONFIG, one of the names is taken.
        """
        for known in (name, *aliases):
            if self._host.has(known) or known in self._by_name:
                raise config_error("name", f"{known!r} is the name of another model; rename one")
        made = NameTraffic(name, versions, aliases=aliases, configured=rule)
        self._restore(made)
        self._traffic[name] = made
        self._by_name |= dict.fromkeys((name, *aliases), made)
        if made.running:
            self._wake()
        return made

    def follow(self, names: Sequence[NameOptions]) -> None:
        """Serve these names as a deployment says, and no others that one said. A rollout goes on
        where the rule of its name is the one that it was."""
        said = {one.name for one in names}
        for traffic in self.all:
            if traffic.name not in said and traffic.configured is not None:
                self.forget(traffic.name)
        for one in names:
            known = self._traffic.get(one.name)
            if known is not None and known.configured == one.traffic:
                self._rename(known, one.aliases)
                known.versions[:] = one.versions
                continue
            if known is not None:
                self.forget(one.name)
            made = self.declare(one.name, one.versions, aliases=one.aliases, rule=one.traffic)
            if known is not None:
                self._happened(made, None)

    def _rename(self, traffic: NameTraffic, aliases: Sequence[str]) -> None:
        for alias in traffic.aliases:
            del self._by_name[alias]
        traffic.aliases = tuple(aliases)
        self._by_name |= dict.fromkeys(aliases, traffic)

    def claims(self, name: str) -> bool:
        """Whether a model may not be called so. A name that nobody declared gives way: as in the
        library, a model of exactly that name is what the name means."""
        traffic = self._by_name.get(name)
        if traffic is None or traffic.configured is not None:
            return traffic is not None
        log.warning("%s is a model from now on, and not versions any more", name)
        self.forget(traffic.name)
        return False

    def forget(self, name: str) -> None:
        """Serve a name no longer; its versions stay."""
        made = self._traffic.pop(name)
        for known in (made.name, *made.aliases):
            self._by_name.pop(known, None)

    def group(self) -> None:
        """Declare names whose versions the host has and nobody declared: of ``chat@1`` and
        ``chat@2`` the highest version answers ``chat``."""
        found: dict[str, list[str]] = {}
        for slot in self._host.slots:
            name, at, version = slot.name.rpartition("@")
            if at and name not in self._by_name and not self._host.has(name):
                found.setdefault(name, []).append(version)
        for name, versions in found.items():
            self.declare(name, sorted(versions, key=_number, reverse=True))

    def added(self, name: str) -> None:
        """The host has a further model. A version of a known name gets no traffic by itself."""
        base, _, version = name.rpartition("@")
        traffic = self._traffic.get(base)
        if traffic is None:
            self.group()
        elif version not in traffic.versions:
            traffic.versions.append(version)

    def removed(self, name: str) -> None:
        """The host has a model no longer."""
        base, at, version = name.rpartition("@")
        if not at:
            self.group()
        traffic = self._traffic.get(base)
        if traffic is None or version not in traffic.versions:
            return
        traffic.versions.remove(version)
        if not traffic.versions:
            self.forget(base)
        elif traffic.withdraw(version):
            log.warning("%s is gone; %s goes to %s", name, base, traffic.stable)
            self._happened(traffic, None)

    # -- requests ----------------------------------------------------------------------------

    def route(self, name: str, caller: Caller) -> Routed | None:
        """Where a request goes; None where the name has no versions."""
        traffic = self._by_name.get(name)
        if traffic is None:
            return None
        choice = traffic.route(
            request_id=new_id("route"),
            principal=caller.client if caller.client.startswith(_KEY) else None,
            user=caller.user or None,
        )
        slot = self._host.find(_version_name(traffic, choice.version))
        watch = None
        if traffic.running or traffic.experiment is not None:
            watch = Watch(choice, partial(self._observe, traffic))
        return Routed(slot, traffic.name, watch)

    @asynccontextmanager
    async def lease(
        self, routed: Routed, lease: AbstractAsyncContextManager[ServedModel]
    ) -> AsyncIterator[ServedModel]:
        """A request's model, with what is measured of its answer.

        Args:
            routed: the request's model.
            lease: of it.
        """
        if routed.copy:
            async with lease as model:
                yield routed.view(model)
            return
        self._requests += 1
        self.shadows.give_way(all_of_them=not routed.slot.open)
        try:
            async with lease as model:
                yield routed.view(model)
        except BaseException as error:
            if routed.watch is not None:
                routed.watch.failed(error)
            raise
        finally:
            self._requests -= 1
            if routed.watch is not None:
                self._offer(routed.watch, routed.called or "")
            self.shadows.quiet()

    def _offer(self, watch: Watch, name: str) -> None:
        """Offer a copy of an answered request to the shadow."""
        traffic, choice, outcome = self._traffic.get(name), watch.choice, watch.outcome
        if choice.shadow is None or watch.asked is None or outcome is None or traffic is None:
            return
        if outcome.error is not None and outcome.error not in VERSION_ERRORS:
            return
        rule = traffic.rule
        if not isinstance(rule, Shadow) or choice.shadow != rule.shadow:
            return
        if not self._host.has(_version_name(traffic, choice.shadow)):
            return
        copied = Watch(choice, partial(self._observe, traffic), copy=True)
        slot = self._host.find(_version_name(traffic, choice.shadow))
        self.shadows.offer(Copy(slot, watch.asked, copied, rule.while_busy))

    def _observe(self, traffic: NameTraffic, observation: Observation) -> None:
        event = traffic.observe(observation)
        if event is not None:
            self._happened(traffic, event)
        self._wake()

    # -- operators ---------------------------------------------------------------------------

    def set_rule(self, traffic: NameTraffic, rule: Traffic) -> None:
        """Divide a name's traffic by another rule.

        Raises:
            TidemillError: BAD_REQUEST, see `NameTraffic.set_rule`.
        """
        self._happened(traffic, traffic.set_rule(rule))

    def promote(self, traffic: NameTraffic) -> None:
        """See `NameTraffic.promote`."""
        self._happened(traffic, traffic.promote())

    def abort(self, traffic: NameTraffic) -> None:
        """See `NameTraffic.abort`."""
        self._happened(traffic, traffic.abort())

    async def close(self) -> None:
        """End copies and save."""
        self.shadows.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._save()

    # -- time and state ----------------------------------------------------------------------

    def _happened(self, traffic: NameTraffic, event: Event | None) -> None:
        """Log a change and have it saved."""
        what, rule = "set", to_builtins(traffic.rule)
        if event is None:
            log.info("traffic of %s: %s", traffic.name, rule)
        else:
            what = str(event.kind).replace(" ", "_")
            log.info(
                "rollout of %s %s: %g %% to %g %%: %s",
                *(traffic.name, event.kind, event.percent_before, event.percent_after),
                event.reason,
                extra={"event": {"event": "rollout", "model": traffic.name, "rollout": what}},
            )
        self.metrics.events.labels(traffic.name, what).inc()
        traffic.urgent = True
        self._wake()

    @property
    def attending(self) -> bool:
        """Whether a task looks at the time: while a rollout runs or something is to be saved."""
        return self._task is not None and not self._task.done()

    def _wake(self) -> None:
        if not self.attending:
            self._task = asyncio.create_task(self._attend(), name="tidemill-rollouts")

    async def _attend(self) -> None:
        since_saved = 0.0
        while any(t.running or t.changed for t in self.all):
            try:
                if since_saved >= SAVE_SECONDS or any(t.urgent for t in self.all):
                    since_saved = 0.0
                    await self._save()
                await asyncio.sleep(self.tick_seconds)
                since_saved += self.tick_seconds
                for traffic in self.all:
                    event = traffic.tick()
                    if event is not None:
                        self._happened(traffic, event)
            except Exception:
                log.exception("a rollout could not be looked at; it goes on")
                await asyncio.sleep(SAVE_SECONDS)

    def refresh(self) -> None:
        """Bring the metrics up to date."""
        self.metrics.samples = tuple(map(sample_of, self.all))

    async def _save(self) -> None:
        for traffic in self.all:
            if traffic.changed or traffic.running:
                data = traffic.save()
                traffic.urgent = False
                if self._folder is not None:
                    await asyncio.to_thread(_write, self._file(traffic.name), data)

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{quote(name, safe='@')}.json"

    def _restore(self, traffic: NameTraffic) -> None:
        if self._folder is None:
            return
        try:
            data = self._file(traffic.name).read_bytes()
            used = traffic.restore(data)
        except FileNotFoundError:
            return
        except (OSError, TidemillError) as error:
            log.warning("traffic of %s begins anew: %s", traffic.name, error)
            return
        if not used:
            log.info("traffic of %s is as configured: that has changed since", traffic.name)
        elif traffic.rule != (traffic.configured or Single(version=traffic.versions[0])):
            log.info("traffic of %s goes on: %s", traffic.name, to_builtins(traffic.rule))


def _write(file: Path, data: bytes) -> None:
    """Replace a file as a whole; a failure is logged, since the traffic goes on without it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_bytes(data)
        os.replace(new, file)
    except OSError as error:
        log.warning("the state of a rollout is not saved, and a restart begins anew: %s", error)


def _version_name(traffic: NameTraffic, version: str) -> str:
    return f"{traffic.name}@{version}"


def _number(version: str) -> tuple[int, str]:
    return (int(version) if version.isdecimal() else -1, version)
