"""The gateway's file: targets, routing, fallbacks and privacy, checked whole."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tidemill.base.errors import TidemillError, config_error
from tidemill.gateway.routing import privacy
from tidemill.gateway.routing.policy import DEFAULT, POLICIES, Bounds
from tidemill.gateway.wire.kinds import KINDS, Kind
from tidemill.gateway.wire.pool import Address

Positive = Annotated[float, msgspec.Meta(gt=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]

LOCAL, OUTSIDE = "local", "outside"

OVERFLOW_SECONDS = 1.0
HERE = "here"
"""Name of the server itself among its targets."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a million tokens cost, in one currency for all targets."""

    input: Amount = 0.0
    output: Amount = 0.0


class TargetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One target.

    Attributes:
        name: in logs, metrics and headers.
        url: its base, without /v1.
        kind: a name of `KINDS`.
        models: that it serves; or their names here and there. Empty: those that it lists.
        key_env: the variable of the environment that has its key; None: it needs none.
        tags: where it is, for private requests; None: `local`, or `outside` for a provider or an
            address that is not private.
        price, carbon: of a million tokens; grams.
        max_active: requests at a time; more wait elsewhere, or are refused.
        cache_tokens: of its prefix cache; None: guessed.
        budget: what it may cost on a day; None: without bound.
    """

    name: str
    url: str
    kind: str = "tidemill"
    models: list[str] | dict[str, str] = []
    key_env: str | None = None
    tags: list[str] | None = None
    price: Price = Price()
    carbon: Amount = 0.0
    max_active: Count = 1024
    cache_tokens: Count | None = None
    budget: Positive | None = None

    @property
    def address(self) -> Address:
        """Where it is."""
        return Address.parse(self.url.removesuffix("/").removesuffix("/v1"))

    @property
    def its(self) -> Kind:
        """What servers of its kind are like."""
        return KINDS[self.kind]

    @property
    def names(self) -> Mapping[str, str]:
        """Names of models here -> there."""
        return self.models if isinstance(self.models, dict) else {n: n for n in self.models}

    @property
    def where(self) -> frozenset[str]:
        """Its tags."""
        if self.tags is not None:
            return frozenset(self.tags)
        near = not self.its.outside and _is_private(self.address.host)
        return frozenset({LOCAL if near else OUTSIDE})


class RoutingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a target is chosen, and what is done when one fails.

    Attributes:
        policy: a name of `POLICIES`.
        imbalance_seconds, imbalance_ratio, objective_seconds: see `Bounds`.
        session_header: requests with equal values of it stay with a target; None: none do.
        retries: further targets that a request may try.
        retry_share: of all requests at most so many are tried again, so that a fleet that is in
            trouble does not get more work.
        hedge_seconds: a request that has no answer by then is sent to a second target as well, and
            the first to answer counts; None: never.
        connect_seconds, first_seconds, silence_seconds: to connect, to the first part of an answer,
            and between two parts.
        wake_seconds: a request waits so long for a target of its model that is down.
        probe_seconds: between two looks at a target.
        overflow_seconds: of a server with `[upstream]`: a model that it has itself is asked of
            others where one would have to wait longer for it here; None: `OVERFLOW_SECONDS`.
    """

    policy: str = DEFAULT
    imbalance_seconds: Amount = 1.0
    imbalance_ratio: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    objective_seconds: Positive = 1.0
    session_header: str | None = "x-session-id"
    retries: Annotated[int, msgspec.Meta(ge=0, le=16)] = 2
    retry_share: Amount = 0.2
    hedge_seconds: Positive | None = None
    connect_seconds: Positive = 3.0
    first_seconds: Positive = 600.0
    silence_seconds: Positive = 120.0
    wake_seconds: Amount = 10.0
    probe_seconds: Positive = 2.0
    overflow_seconds: Amount | None = None

    @property
    def bounds(self) -> Bounds:
        """As policies take them."""
        return Bounds(
            self.imbalance_seconds, self.imbalance_ratio, objective=self.objective_seconds
        )


class PrivacyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What makes a request private, and where private requests may go.

    Attributes:
        detectors: names of `privacy.DETECTORS`.
        patterns: further ones: regular expressions by name.
        allowed: tags of targets that may see private requests.
        header: a request with it (and any value but ``false``) is private.
        always: all requests are.
    """

    detectors: list[str] = []
    patterns: dict[str, str] = {}
    allowed: tuple[str, ...] = (LOCAL,)
    header: str = "x-tidemill-private"
    always: bool = False

    def rules(self) -> privacy.Rules:
        """As `privacy.judge` takes them. Raises CONFIG."""
        found = {}
        for name in self.detectors:
            if name not in privacy.DETECTORS:
                known = ", ".join(privacy.DETECTORS)
                raise _wrong("privacy.detectors", f"there is no {name!r}; there are {known}")
            found[name] = privacy.DETECTORS[name]
        for name, pattern in self.patterns.items():
            try:
                found[name] = privacy.custom(pattern)
            except re.error as error:
                raise _wrong(
                    f"privacy.patterns.{name}", f"no regular expression: {error}"
                ) from None
        return privacy.Rules(found, frozenset(self.allowed), self.always)


class ScaledConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model whose engines come and go: somebody scales them, down to none perhaps.

    Attributes:
        hold_seconds: a request waits so long for an engine.
        max_held: requests that may wait at a time; more are refused.
    """

    hold_seconds: Positive = 120.0
    max_held: Count = 256


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file.

    Attributes:
        targets: at least one, or a model in `scaled`.
        fallbacks: model -> models that answer where it cannot, in this order; a smaller model that
            runs here, say. The answer says so.
        scaled: model -> how requests wait for its engines. It exists though no target has it.
    """

    targets: list[TargetConfig] = []
    routing: RoutingConfig = RoutingConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    fallbacks: dict[str, list[str]] = {}
    scaled: dict[str, ScaledConfig] = {}


def read(path: Path) -> GatewayConfig:
    """The file's content, checked.

    Raises:
        TidemillError: kind CONFIG, naming what is wrong.
    """
    table = _table(path)
    try:
        config = checked(table, "")
    except TidemillError as error:
        raise config_error(error.param or "config", f"{path}: {error.message}") from None
    if config.routing.overflow_seconds is not None:
        raise _wrong("routing.overflow_seconds", "is of [upstream]: a gateway has no models itself")
    return config


def read_any(path: Path) -> GatewayConfig:
    """A gateway's file, or the `[upstream]` of a server's deployment file. Raises CONFIG."""
    table = _table(path)
    upstream = table.get("upstream")
    return checked(upstream, "upstream") if isinstance(upstream, dict) else checked(table)


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise config_error("config", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise config_error("config", f"{path} is no TOML: {error}") from None


def checked(table: Mapping[str, Any], what: str = "the gateway's file") -> GatewayConfig:
    """A file's content, or that of `[upstream]`, checked. Raises CONFIG."""
    try:
        config = msgspec.convert(table, GatewayConfig)
    except msgspec.ValidationError as error:
        raise config_error("config", _said(str(error), what)) from None
    if not config.targets and not config.scaled:
        raise _wrong("targets", "there must be one at least ([[targets]] with name and url)")
    seen = set[str]()
    for target in config.targets:
        _check_target(target)
        if target.name in seen:
            raise _wrong("targets.name", f"two targets are called {target.name!r}")
        seen.add(target.name)
    if config.routing.policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise _wrong("routing.policy", f"there is no {config.routing.policy!r}; there are {known}")
    config.privacy.rules()
    return config


_PLACES: Mapping[str, type[msgspec.Struct]] = {
    "": GatewayConfig,
    "targets": TargetConfig,
    "targets.price": Price,
    "routing": RoutingConfig,
    "privacy": PrivacyConfig,
    "scaled": ScaledConfig,
}
"""What stands where in the file; of an array, in each of its tables."""


def _said(message: str, what: str) -> str:
    """What `msgspec` says of a table, with the key as the file has it."""
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".").replace("[...]", "")
    if place.startswith("["):  # of a name that the file chooses
        place = ""
    about = "".join(f"{part}: " for part in (what, place) if part)
    missing = re.fullmatch(r"Object missing required field `(.*)`", text)
    if missing is not None:
        return f"{about}{missing[1]} is missing"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
    if unknown is None:
        return f"{about}{_in_words(text[:1].lower() + text[1:])}"
    fields = _PLACES.get(re.sub(r"\[\d+\]", "", place), GatewayConfig).__struct_fields__
    close = difflib.get_close_matches(unknown[1], fields, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(fields)}"
    return f"{about}{unknown[1]} is no key here; {remedy}"


_TYPES = {
    "object": "a table",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""What TOML's readers know `msgspec`'s types as."""


def _in_words(text: str) -> str:
    """A message of `msgspec`, whose types are between backticks."""
    return re.sub(
        r"`([a-z]+(?: \| [a-z]+)*)`",
        lambda found: " or ".join(_TYPES.get(name, name) for name in found[1].split(" | ")),
        text,
    )


def _check_target(target: TargetConfig) -> None:
    where = f"targets[{target.name!r}]"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", target.name):
        raise _wrong("targets.name", f"{target.name!r} must be 1 to 64 letters, digits or ._-")
    if target.name == HERE:
        raise _wrong("targets.name", f"{HERE!r} is the server itself; choose another name")
    if target.kind not in KINDS:
        raise _wrong(f"{where}.kind", f"there is no {target.kind!r}; there are {', '.join(KINDS)}")
    try:
        _ = target.address
    except ValueError as error:
        raise _wrong(f"{where}.url", str(error)) from None
    if target.key_env is not None and not os.environ.get(target.key_env, "").strip():
        raise _wrong(f"{where}.key_env", f"the variable {target.key_env} is not set")
    if not target.names and target.kind == "anthropic":
        raise _wrong(f"{where}.models", "name the models of a provider that may be used")


def _wrong(param: str, message: str) -> TidemillError:
    return config_error(param, f"{param}: {message}")


def _is_private(host: str) -> bool:
    """Whether an address is of this machine or network; a name without a dot is, too."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_private or address.is_loopback
