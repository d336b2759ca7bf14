"""Examines the targets of a gateway's file one by one: `tidemill doctor --cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from statistics import median
from typing import Any

import msgspec

from tidemill.base.clock import monotonic, wall
from tidemill.contract.gateway import PROTOCOL, interoperate
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.targets import Target
from tidemill.gateway.wire.connection import Lost
from tidemill.gateway.wire.pool import Full

SECONDS = 5.0
"""That a target has for one answer."""

LOOKS = 5
"""Round trips that are measured."""

MAX_BYTES = 4 << 20

DATE_SECONDS = 2.0
"""As old as the date of an answer may be when it arrives."""

SKEW_SECONDS = 5.0
"""By which clocks may differ: records of one request are read side by side."""


@dataclass(slots=True)
class Report:
    """What was found of one target.

    Attributes:
        name, kind, url: as in the file.
        connect_ms, round_trip_ms: milliseconds: the first answer, and the median of later ones.
        version: of its software, where it says so.
        protocol: see `contract.gateway`; None: a server of another kind, or it does not say.
        clock: seconds that its clock is ahead of this machine's; whole ones.
        models: those that it lists.
        waits: model -> seconds that a request would wait now, by its own estimate.
        identities: model -> what engines must have in common to go on with each other's answers.
        problems: what must be mended.
    """

    name: str
    kind: str
    url: str
    connect_ms: float | None = None
    round_trip_ms: float | None = None
    version: str = ""
    protocol: int | None = None
    clock: float | None = None
    models: list[str] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    date: str
    seconds: float

    def decoded(self) -> dict[str, Any]:
        """Its JSON object; empty where it is none."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}
        return found if isinstance(found, dict) else {}


async def examine(config: GatewayConfig) -> tuple[list[Report], list[str]]:
    """Ask every target how it is.

    Args:
        config: of the gateway.

    Returns:
        A report of each target, and problems of all together.
    """
    targets = [Target(one, config.routing) for one in config.targets]
    reports = await asyncio.gather(*map(_examined, targets))
    for target in targets:
        target.pool.close()
    return list(reports), [*_together(config, targets, reports)]


async def _examined(target: Target) -> Report:
    config = target.config
    report = Report(target.name, config.kind, config.url)
    try:
        await _reach(target, report)
        await _models(target, report)
        if config.kind == "tidemill":
            await _tidemill(target, report)
    except (Lost, Full, TimeoutError) as error:
        report.problems.append(str(error) or f"no answer within {SECONDS:g} s")
    return report


async def _get(target: Target, path: str) -> _Answer:
    began = monotonic()
    async with asyncio.timeout(SECONDS):
        async with target.pool.exchange(target.get(path)) as connection:
            status = await connection.head()
            seconds = monotonic() - began
            body = await connection.read_all(MAX_BYTES)
            headers = dict(connection.headers)
            return _Answer(status, body, headers.get(b"date", b"").decode("latin-1"), seconds)


async def _reach(target: Target, report: Report) -> None:
    path = target.kind.probe
    first = await _get(target, path)
    if first.status in (404, 405):
        path = "/v1/models"
        first = await _get(target, path)
    later = [await _get(target, path) for _ in range(LOOKS)]
    report.connect_ms = round(first.seconds * 1000, 2)
    report.round_trip_ms = round(median(one.seconds for one in later) * 1000, 2)
    if first.status >= 500:
        reason = first.decoded().get("reason") or first.decoded().get("status") or ""
        report.problems.append(f"GET {path}: {first.status} {reason}".rstrip())
    if first.date:
        _compare_clocks(later[-1].date, report)


def clock_ahead(date: str) -> float | None:
    """Whole seconds by which the clock that wrote the date of an answer is ahead; None: it is no
    date."""
    try:
        ahead = parsedate_to_datetime(date).timestamp() - wall()
    except (ValueError, TypeError):
        return None
    # A date is a whole second that has begun, and servers make one once a second.
    return float(round(max(ahead, min(0.0, ahead + DATE_SECONDS))))


def _compare_clocks(date: str, report: Report) -> None:
    report.clock = clock_ahead(date)
    if report.clock is None:
        return
    if abs(report.clock) > SKEW_SECONDS:
        way = "ahead of" if report.clock > 0 else "behind"
        report.problems.append(
            f"its clock is {abs(report.clock):.0f} s {way} this machine's: records and expiring "
            "keys will not agree; run a time service on both"
        )


async def _models(target: Target, report: Report) -> None:
    """What it lists; a route that needs the key says whether that is right."""
    answer = await _get(target, "/v1/models")
    variable = target.config.key_env
    if answer.status in (401, 403):
        what = f"the key in {variable} is not taken" if variable else "it needs a key: set key_env"
        report.problems.append(f"{what} ({answer.status})")
        return
    listed = answer.decoded().get("data")
    if answer.status != 200 or not isinstance(listed, list):
        if not target.config.names:
            report.problems.append("it does not list its models: name them (targets.models)")
        return
    report.models = sorted(
        str(one["id"]) for one in listed if isinstance(one, dict) and "id" in one
    )
    wanted = set(target.config.names.values())
    if report.models and (missing := sorted(wanted.difference(report.models))):
        report.problems.append(f"it does not list {', '.join(missing)} (targets.models)")


async def _tidemill(target: Target, report: Report) -> None:
    version = (await _get(target, "/version")).decoded().get("version")
    report.version = str(version or "")
    answer = await _get(target, "/load")
    if answer.status != 200:
        report.problems.append(f"GET /load: {answer.status}: this is no Tidemill server (kind)")
        return
    found = answer.decoded()
    protocol = found.get("protocol", 0)
    report.protocol = protocol if isinstance(protocol, int) else 0
    if not interoperate(report.protocol, PROTOCOL):
        older = "it" if report.protocol < PROTOCOL else "this gateway"
        report.problems.append(
            f"it speaks protocol {report.protocol}, this gateway {PROTOCOL}: update {older} first"
        )
    for name, one in found.get("models", {}).items():
        report.waits[name] = float(one.get("wait", 0.0))
        report.identities[name] = str(one.get("identity", ""))


def _together(
    config: GatewayConfig, targets: Sequence[Target], reports: Sequence[Report]
) -> list[str]:
    """Problems of targets that are well each for itself."""
    found = []
    having: dict[str, list[tuple[Target, Report]]] = {}
    for target, report in zip(targets, reports, strict=True):
        for name in target.models or report.models:
            having.setdefault(name, []).append((target, report))
    for name, others in config.fallbacks.items():
        found += [f"fallbacks.{name}: no target has {o}" for o in others if o not in having]
    private = bool(config.privacy.detectors or config.privacy.patterns or config.privacy.always)
    for name, ones in having.items() if private else ():
        if not any(t.where.intersection(config.privacy.allowed) for t, _ in ones):
            tags = ", ".join(config.privacy.allowed)
            found.append(f"private requests for {name} are refused: no target of it has {tags}")
    for name, ones in having.items():
        kinds: dict[str, str] = {}
        for target, report in ones:
            identity = report.identities.get(target.named(name))
            if identity:
                kinds.setdefault(identity, target.name)
        if len(kinds) > 1:
            found.append(
                f"{name}: the engines of {' and '.join(kinds.values())} differ (files, build or "
                "settings): streams of one are not gone on with by the other"
            )
    return found


def as_builtins(reports: Sequence[Report], problems: Sequence[str]) -> dict[str, Any]:
    """The findings for programs."""
    return {
        "protocol": PROTOCOL,
        "targets": [msgspec.to_builtins(report) for report in reports],
        "problems": list(problems),
    }
