"""Accounts: the meters of one subject, such as a team or a key."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.contract.quotas import MEASURES, NO_LIMITS, Level, Limit, Limits
from tidemill.server.quotas.meters import Meter, Now, make_meter

Subject = tuple[Level, str]
"""Whose use is metered: a level, and an identity there."""

MakeMeter = Callable[[Subject, Limit, Now], Meter]


def local_meter(subject: Subject, limit: Limit, now: Now) -> Meter:
    """The meter of a limit that this server has for itself."""
    assert limit.amount is not None
    return make_meter(MEASURES[limit.measure], limit.amount, now, soft=limit.soft)


class Account:
    """What one subject may use.

    Args:
        subject: whose.
        shown: its name in messages.
        stated: its limits in a key file.

    Attributes:
        meters: of its limits; those of lifted limits are dropped, and only end what they held.
        hard: those of hard limits, by the names of their measures.
        limits: that the meters follow.
    """

    __slots__ = ("hard", "limits", "meters", "shown", "stated", "subject")

    def __init__(self, subject: Subject, shown: str, stated: Limits = NO_LIMITS) -> None:
        self.subject = subject
        self.shown = shown
        self.meters: tuple[Meter, ...] = ()
        self.hard: dict[str, Meter] = {}
        self.limits: Limits = NO_LIMITS
        self.stated = stated

    @property
    def title(self) -> str:
        """In messages: ``team 'search'``."""
        level = self.subject[0]
        return "this server" if level is Level.SERVER else f"{level.value} {self.shown!r}"

    def follow(self, limits: Limits, now: Now, make: MakeMeter = local_meter) -> None:
        """Change the limits; what is used under a limit that stays, stays used."""
        if limits == self.limits:
            return
        before = {(meter.measure.name, meter.soft): meter for meter in self.meters}
        meters = []
        for limit in limits:
            if limit.amount is None:
                continue
            meter = before.get((limit.measure, limit.soft))
            if meter is None:
                meter = make(self.subject, limit, now)
            elif meter.amount != limit.amount:
                meter.change(limit.amount, now)
            meters.append(meter)
        self.limits = limits
        self.meters = tuple(meters)
        self.hard = {meter.measure.name: meter for meter in meters if not meter.soft}
        for meter in before.values():
            if meter not in meters:
                meter.retire()
