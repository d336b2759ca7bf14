"""Traffic rules of a name as data: all to one version, weights, a canary, a shadow.

A rule is a frozen struct. `parse_traffic` reads one from a deployment file or an admin request,
`to_builtins` writes it back. Reading what was written gives an equal rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from tidemill.base.errors import TidemillError, config_error

MAX_VERSIONS = 32
MAX_STEPS = 20
MAX_SECONDS = 30 * 86400.0
MAX_OBSERVATIONS = 10_000_000

Sticky = Literal["request", "key", "user"]
Off = Literal["off"]
ErrorMaker = Callable[[str | None, str], TidemillError]

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _Rule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """What all rules share: frozen, unknown fields are errors, `kind` names the rule."""


class Single(_Rule, frozen=True, tag="single"):
    """All traffic to one version.

    Attributes:
        version: the version that answers.
    """

    version: str


class Weights(_Rule, frozen=True, tag="weights"):
    """Traffic in proportion to weights (A/B).

    Attributes:
        weights: version -> weight, at least one above 0. The first version is the baseline that
            the others are compared with.
        sticky: what keeps its version: each request alone, an API key, or a key's `user`.
    """

    weights: dict[str, float]
    sticky: Sticky = "user"


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much worse than the stable version a canary may be; "off" leaves a metric out.

    Attributes:
        errors: rise of the error rate, absolute: 0.01 is one percentage point.
        ttft: relative rise of the time to the first token: 0.15 is 15 %.
        itl: relative rise of a request's mean inter-token latency.
        itl_p95: relative rise of a request's 95th percentile of inter-token latency.
        shorter: relative fall of the number of output tokens, below 1.
        longer: relative rise of the number of output tokens.
    """

    errors: float | Off = 0.01
    ttft: float | Off = 0.15
    itl: float | Off = 0.15
    itl_p95: float | Off = "off"
    shorter: float | Off = 0.2
    longer: float | Off = 0.3


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of a canary.

    Attributes:
        percent: share of the traffic that the canary gets, above 0 and below 100.
        observations: requests of the canary that the step waits for; None: the canary's.
        seconds: the least duration of the step; None: the canary's.
    """

    percent: float
    observations: int | None = None
    seconds: float | None = None


class Canary(_Rule, frozen=True, tag="canary"):
    """A new version gets traffic in steps, compared with the stable version all the time.

    Attributes:
        stable: the version to compare with and to return to.
        canary: the new version.
        steps: percentages that rise, or `Step`s. A last step of 100 may be written and means the
            promotion, which follows the step before it.
        observations: requests of the canary that each step waits for.
        seconds: the least duration of each step.
        bounds: see `Bounds`.
        alpha: probability of a wrong rollback, and again of a wrong promotion.
        sticky: see `Weights`. "request" makes the statistics exact. With "key" or "user" they
            compare two groups of users, which `min_units` keeps from being a handful.
        min_units: distinct keys or users that the canary must have answered before it goes on;
            without effect when `sticky` is "request".
        max_seconds: a rollout still undecided after this time rolls back; "off": never.
    """

    stable: str
    canary: str
    steps: tuple[float | Step, ...] = (1.0, 5.0, 25.0, 50.0)
    observations: int = 100
    seconds: float = 300.0
    bounds: Bounds = Bounds()
    alpha: float = 0.05
    sticky: Sticky = "request"
    min_units: int = 50
    max_seconds: float | Off = "off"

    def plan(self) -> tuple[Step, ...]:
        """The steps below 100 %, each with its own observations and seconds filled in."""
        steps = (s if isinstance(s, Step) else Step(percent=float(s)) for s in self.steps)
        return tuple(
            Step(
                percent=s.percent,
                observations=self.observations if s.observations is None else s.observations,
                seconds=self.seconds if s.seconds is None else s.seconds,
            )
            for s in steps
            if s.percent < 100
        )


class Shadow(_Rule, frozen=True, tag="shadow"):
    """All traffic to one version; another gets copies whose answers are thrown away.

    Attributes:
        version: the version that answers.
        shadow: the version that gets copies.
        fraction: share of the requests that is copied, above 0 and at most 1.
        while_busy: copies run beside requests. Where both versions compute on one device that slows
            the requests down; else copies wait until nothing is answered, and end when a request
            comes.
    """

    version: str
    shadow: str
    fraction: float = 0.1
    while_busy: bool = False


Traffic: TypeAlias = Single | Weights | Canary | Shadow


def parse_traffic(
    raw: object, where: str = "traffic", *, error: ErrorMaker = config_error
) -> Traffic:
    """A checked rule from the values of TOML or JSON; a string is the version of a `Single`.

    Args:
        raw: a string, or a table with `kind`.
        where: the key in front of every field's name in errors.
        error: makes the error; `bad_request` for HTTP.

    Raises:
        TidemillError: names field and remedy.
    """
    if isinstance(raw, str):
        raw = {"kind": "single", "version": raw}
    try:
        rule: Traffic = msgspec.convert(raw, Traffic)
    except msgspec.ValidationError as fault:
        what, _, path = str(fault).partition(" - at `$")
        path = path.rstrip("`").removeprefix(".key in ")
        field = where + path
        raise error(
            field, f"{field}: {what}; a rule's kind is single, weights, canary or shadow"
        ) from None
    check_traffic(rule, where, error=error)
    return rule


def to_builtins(rule: Traffic) -> dict[str, Any]:
    """A rule as plain values for JSON or TOML; `parse_traffic` reads them back."""
    plain: dict[str, Any] = _without_none(msgspec.to_builtins(rule))
    return plain


def versions_of(rule: Traffic) -> tuple[str, ...]:
    """The versions that a rule names, the stable or baseline one first."""
    match rule:
        case Single():
            return (rule.version,)
        case Weights():
            return tuple(rule.weights)
        case Canary():
            return (rule.stable, rule.canary)
        case Shadow():
            return (rule.version, rule.shadow)


def check_traffic(rule: Traffic, where: str, *, error: ErrorMaker = config_error) -> None:
    """Checks what types do not: names, ranges and order.

    Raises:
        TidemillError: names field and remedy.
    """
    for field, text in _faults(rule):
        name = f"{where}.{field}"
        raise error(name, f"{name} {text}")


def _faults(rule: Traffic) -> Iterable[tuple[str, str]]:
    """Pairs of a field and what is wrong with it."""
    for version in versions_of(rule):
        if not _VERSION.fullmatch(version):
            yield (
                "weights" if isinstance(rule, Weights) else _field_of(rule, version),
                f"has the version {version!r}; use 1 to 64 letters, digits, '.', '_' or '-'",
            )
    match rule:
        case Weights():
            yield from _weight_faults(rule)
        case Canary():
            yield from _canary_faults(rule)
        case Shadow():
            if rule.shadow == rule.version:
                yield "shadow", "is the version that answers; name another version"
            if not 0 < rule.fraction <= 1:
                yield "fraction", f"is above 0 and at most 1, not {rule.fraction:g}"


def _field_of(rule: Traffic, version: str) -> str:
    return next(f for f in rule.__struct_fields__ if getattr(rule, f) == version)


def _weight_faults(rule: Weights) -> Iterable[tuple[str, str]]:
    if not 1 <= len(rule.weights) <= MAX_VERSIONS:
        yield "weights", f"names 1 to {MAX_VERSIONS} versions, not {len(rule.weights)}"
    for version, weight in rule.weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            yield f"weights.{version}", f"is a number of at least 0, not {weight:g}"
    total = sum(rule.weights.values())
    if not (0 < total < math.inf):
        yield "weights", f"add up to {total:g}; give a version a weight above 0"


def _canary_faults(rule: Canary) -> Iterable[tuple[str, str]]:
    if rule.canary == rule.stable:
        yield "canary", "is the stable version; name another version"
    if not 1 <= len(rule.steps) <= MAX_STEPS:
        yield "steps", f"has 1 to {MAX_STEPS} steps, not {len(rule.steps)}"
    before = 0.0
    for index, step in enumerate(rule.steps):
        percent = step.percent if isinstance(step, Step) else step
        if not before < percent <= 100:
            yield (
                f"steps[{index}]",
                f"is {percent:g}; steps are percentages that rise from above 0 to at most 100",
            )
        before = percent
    if not rule.plan():
        yield "steps", "has no step below 100 %, where the versions can be compared; add one"
    for index, step in enumerate(rule.plan()):
        yield from _waiting_faults(step, f"steps[{index}].")
    yield from _bound_faults(rule.bounds)
    if not 1e-6 <= rule.alpha <= 0.2:
        yield "alpha", f"is at least 0.000001 and at most 0.2, not {rule.alpha:g}"
    if not 1 <= rule.min_units <= MAX_OBSERVATIONS:
        yield "min_units", f"is 1 to {MAX_OBSERVATIONS}, not {rule.min_units}"
    if rule.max_seconds != "off" and not 0 < rule.max_seconds <= MAX_SECONDS:
        yield (
            "max_seconds",
            f'is "off", or above 0 and at most {MAX_SECONDS:.0f}, not {rule.max_seconds:g}',
        )


def _waiting_faults(step: Step, prefix: str) -> Iterable[tuple[str, str]]:
    assert step.observations is not None and step.seconds is not None  # `plan` filled them in
    if not 1 <= step.observations <= MAX_OBSERVATIONS:
        yield f"{prefix}observations", f"is 1 to {MAX_OBSERVATIONS}, not {step.observations}"
    if not 0 <= step.seconds <= MAX_SECONDS:
        yield f"{prefix}seconds", f"is 0 to {MAX_SECONDS:.0f}, not {step.seconds:g}"


def _bound_faults(bounds: Bounds) -> Iterable[tuple[str, str]]:
    values = {f: getattr(bounds, f) for f in bounds.__struct_fields__}
    for field, value in values.items():
        most = 1.0 if field in ("errors", "shorter") else 100.0
        if value != "off" and not 0 < value < most:
            yield f"bounds.{field}", f'is "off", or above 0 and below {most:g}, not {value:g}'
    if all(value == "off" for value in values.values()):
        yield "bounds", 'has "off" everywhere; a canary needs a bound to be compared by'


def _without_none(value: Any) -> Any:
    """TOML has no null: a field that is None is its default and left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
