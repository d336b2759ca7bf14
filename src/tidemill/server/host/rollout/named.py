"""The traffic of one name: its versions, the rule in force, and what is known of the comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidemill.base import clock
from tidemill.base.errors import ErrorKind, TidemillError, bad_request, config_error
from tidemill.server.host.rollout.experiment import Experiment
from tidemill.server.host.rollout.machine import Event, Phase, Rollout, RolloutState
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.routing import Choice, route, unit_of
from tidemill.server.host.rollout.traffic import (
    Canary,
    Shadow,
    Single,
    Sticky,
    Traffic,
    Weights,
    versions_of,
)


class Saved(msgspec.Struct, kw_only=True):
    """What a restart goes on from.

    Attributes:
        configured: the rule that the deployment said; None: it said nothing.
        rule: the rule in force.
        rollout: the latest one.
        experiment: of weights or a shadow.
    """

    configured: Traffic | None
    rule: Traffic
    rollout: RolloutState | None = None
    experiment: Experiment | None = None


class NameTraffic:
    """See the module docstring. It does no I/O.

    Attributes:
        name: what clients use.
        aliases: further names.
        versions: those that are served.
        configured: the deployment's rule; None: it says nothing.
        rule: the rule in force. A rollout that has ended has left a `Single`.
        rollout: the latest rollout, ended or not.
        experiment: of the rule in force, where versions get traffic side by side.
        changed: something is to be saved.
        urgent: at once.
    """

    def __init__(
        self,
        name: str,
        versions: Sequence[str],
        *,
        aliases: Sequence[str] = (),
        configured: Traffic | None = None,
        monotonic: Callable[[], float] = clock.monotonic,
        wall: Callable[[], float] = clock.wall,
    ) -> None:
        """A name with `versions` (the first answers where `configured` says nothing)."""
        self.name = name
        self.aliases = tuple(aliases)
        self.versions = list(versions)
        self.configured = configured
        self.rollout: Rollout | None = None
        self.experiment: Experiment | None = None
        self.changed = self.urgent = False
        self._monotonic, self._wall = monotonic, wall
        self.rule: Traffic = Single(version=self.versions[0])
        if configured is not None:
            self._follow(configured)

    @property
    def stable(self) -> str:
        """The version that requests get that no comparison sends elsewhere."""
        return versions_of(self.rule)[0]

    @property
    def running(self) -> bool:
        """A rollout is under way."""
        return self.rollout is not None and self.rollout.state.phase is Phase.RUNNING

    def percents(self) -> dict[str, float]:
        """Version -> share of the traffic in percent; of a shadow: of the copies."""
        if self.experiment is not None:
            return dict(self.experiment.percents)
        if self.rollout is not None and self.running:
            share = self.rollout.percent
            rule = self.rollout.state.rule
            return {rule.stable: 100 - share, rule.canary: share}
        return {self.stable: 100.0}

    def route(self, *, request_id: str, principal: str | None, user: str | None) -> Choice:
        """Where one request goes; see `routing.unit_of`."""
        if isinstance(self.rule, Single):
            return Choice(self.rule.version)
        unit = unit_of(_sticky(self.rule), request_id=request_id, principal=principal, user=user)
        if isinstance(self.rule, Canary):
            assert self.rollout is not None
            return self.rollout.route(unit)
        return route(self.name, self.rule, unit)

    def observe(self, observation: Observation) -> Event | None:
        """Counts a request that has ended; returns what it led to."""
        self.changed = True
        if self.experiment is not None:
            self.experiment.observe(observation)
        return self._settled(self.rollout.observe(observation)) if self.rollout else None

    def tick(self) -> Event | None:
        """Takes the step that time and evidence allow; to be called about once a second."""
        return self._settled(self.rollout.tick()) if self.rollout is not None else None

    # -- operators -------------------------------------------------------------------------------

    def set_rule(self, rule: Traffic) -> Event | None:
        """Divide the traffic by another rule; comparisons start anew.

        Returns:
            The start of a rollout.

        Raises:
            TidemillError: BAD_REQUEST, a rollout runs, or a version does not exist.
        """
        if self.running:
            raise bad_request(
                "name", f"a rollout of {self.name} runs; promote or abort it before another starts"
            )
        self.check(rule)
        return self._follow(rule)

    def check(self, rule: Traffic) -> None:
        """Check that the versions of a rule exist.

        Raises:
            TidemillError: BAD_REQUEST.
        """
        for version in versions_of(rule):
            if version not in self.versions:
                known = ", ".join(self.versions)
                raise bad_request(
                    "to", f"{self.name} has no version {version[:64]!r}; it has {known}"
                )

    def promote(self) -> Event:
        """End the rollout with all traffic to the new version.

        Raises:
            TidemillError: BAD_REQUEST, none runs.
        """
        return self._end(lambda rollout: rollout.promote())

    def abort(self) -> Event | None:
        """End a rollout, or weights or a shadow, with all traffic to the stable version.

        Raises:
            TidemillError: BAD_REQUEST, nothing runs.
        """
        if self.experiment is not None and not self.running:
            self._follow(Single(version=self.stable))
            return None
        return self._end(lambda rollout: rollout.abort())

    def withdraw(self, version: str) -> bool:
        """A version is served no longer: it gets no traffic, and what compares it ends.

        Returns:
            Whether the rule in force named it.
        """
        if version not in versions_of(self.rule):
            return False
        if self.running:
            self._end(lambda rollout: rollout.abort(f"{version} is served no longer"))
        left = [v for v in versions_of(self.rule) if v in self.versions]
        self._follow(Single(version=(left or self.versions)[0]))
        return True

    # -- restarts --------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The state as JSON."""
        self.changed = False
        rollout = self.rollout
        return msgspec.json.encode(
            Saved(
                configured=self.configured,
                rule=self.rule,
                rollout=None if rollout is None else rollout.snapshot(),
                experiment=self.experiment,
            )
        )

    def restore(self, data: bytes) -> bool:
        """Go on from what `save` wrote.

        Returns:
            False where the deployment says another rule than then, or a version is gone: then what
            was saved is of no use.

        Raises:
            TidemillError: CONFIG, it cannot be read.
        """
        try:
            saved = msgspec.json.decode(data, type=Saved)
        except msgspec.DecodeError as error:
            raise config_error(
                None, f"the saved traffic of {self.name} is damaged: {error}"
            ) from None
        if saved.configured != self.configured:
            return False
        if not {*versions_of(saved.rule)} <= {*self.versions}:
            return False
        rollout = None
        if saved.rollout is not None:
            rollout = Rollout.resume(saved.rollout, monotonic=self._monotonic, wall=self._wall)
        if isinstance(saved.rule, Canary) and rollout is None:
            return False
        self.rule, self.rollout, self.experiment = saved.rule, rollout, saved.experiment
        return True

    # -- helpers ---------------------------------------------------------------------------------

    def _follow(self, rule: Traffic) -> Event | None:
        self.rule, self.experiment, self.changed = rule, None, True
        if isinstance(rule, Canary):
            self.rollout = Rollout.start(
                self.name, rule, monotonic=self._monotonic, wall=self._wall
            )
            return self.rollout.state.events[-1]
        if isinstance(rule, Weights | Shadow):
            self.rollout = None
            self.experiment = Experiment.start(self.name, rule)
        return None

    def _end(self, end: Callable[[Rollout], Event]) -> Event:
        if self.rollout is None or not self.running:
            raise TidemillError(
                ErrorKind.BAD_REQUEST, f"no rollout of {self.name} runs; start one", param="name"
            )
        event = end(self.rollout)
        self._settled(event)
        return event

    def _settled(self, event: Event | None) -> Event | None:
        """After an event: what has ended leaves a rule for one version."""
        if event is None or self.rollout is None:
            return None
        self.changed = True
        rule = self.rollout.state.rule
        if self.rollout.state.phase is Phase.PROMOTED:
            self.rule = Single(version=rule.canary)
        elif self.rollout.state.phase is not Phase.RUNNING:
            self.rule = Single(version=rule.stable)
        return event


def _sticky(rule: Traffic) -> Sticky:
    return rule.sticky if isinstance(rule, Canary | Weights) else "request"
