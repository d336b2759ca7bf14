"""The cluster's file: models with their engines, and gateways, checked whole."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tidemill.base.durations import duration_seconds
from tidemill.base.errors import TidemillError, config_error
from tidemill.cluster.scaling import ROLE_SIGNALS, Objectives

Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Duration = float | int | str
"""Seconds, or a text such as ``5m``."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,48}")
ENGINE_KEY = "ENGINE_KEY"
"""The variable in which gateways have the key of engines."""

CLIENT_KEY = "TIDEMILL_API_KEY"
"""The variable of whoever deploys: the key of gateways, with the role admin."""


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, or one role of its engines.

    Attributes:
        name: that clients use.
        model: what `tidemill serve` opens; empty: `name`.
        role: of its engines: `both`, `prefill` or `decode`. One model may stand in several tables
            with different roles, which are scaled separately.
        args: further flags of `tidemill serve`.
        env: further variables of its environment.
        pass_env: variables that are read where the deployment is made, and passed on.
        revision: any text; engines of another one are replaced, one after the other.
        cpus, gpus, resources: that Ray reserves for each engine, on one node. Whole cpus are also
            its `--threads`.
        min, max, target_wait, target_load, target_running, goodput, burst, cooldown,
        stabilization, idle: see `scaling.Objectives`.
        ttft: to the first token, which is the objective that `goodput` counts by.
        hold, max_held: see the gateway's `[scaled]`.
        start: until when an engine that was placed is ready, or counts as failed.
        drain: that an engine which goes may take for its last requests.
    """

    name: str
    model: str = ""
    role: str = "both"
    args: list[str] = []
    env: dict[str, str] = {}
    pass_env: list[str] = []
    revision: str = ""
    cpus: Amount = 1
    gpus: Amount = 0
    resources: dict[str, float] = {}
    min: Count = 1
    max: Count | None = None
    target_wait: Duration = 2.0
    target_load: float = 0.8
    target_running: float | None = None
    goodput: float | None = None
    ttft: Duration = 1.0
    burst: int = 4
    cooldown: Duration = 30.0
    stabilization: Duration = 300.0
    idle: Duration = 600.0
    hold: Duration = 120.0
    max_held: Annotated[int, msgspec.Meta(ge=1)] = 256
    start: Duration = 600.0
    drain: Duration = 120.0

    @property
    def pool(self) -> str:
        """What is scaled as one."""
        return self.name if self.role == "both" else f"{self.name}.{self.role}"

    def seconds(self, key: str) -> float:
        """A duration's seconds. Raises CONFIG."""
        value = getattr(self, key)
        try:
            found = float(value) if isinstance(value, int | float) else duration_seconds(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < 1e9:
            raise _wrong(f"{_place(self)}.{key}", f"{value!r} is no duration (2.5, '5m')")
        return found

    @property
    def objectives(self) -> Objectives:
        """As the autoscaler takes them. Raises CONFIG."""
        try:
            return Objectives(
                min_engines=self.min,
                max_engines=max(1, self.min) if self.max is None else self.max,
                target_load=self.target_load,
                target_running=self.target_running,
                goodput=self.goodput,
                burst=self.burst,
                signals=ROLE_SIGNALS[self.role],
                **{
                    key: self.seconds(key)
                    for key in ("target_wait", "cooldown", "stabilization", "idle")
                },
            )
        except ValueError as error:
            key, _, message = str(error).partition(": ")
            key, message = key.removesuffix("_engines"), message.replace("max_engines", "max")
            raise _wrong(f"{_place(self)}.{key}", message) from None

    @property
    def digest(self) -> str:
        """Of what an engine is started with: engines of another one are replaced."""
        parts: tuple[Any, ...] = (self.model or self.name, self.args, self.env, self.revision)
        parts += (self.cpus, self.gpus, self.resources)
        return hashlib.blake2b(
            msgspec.json.encode(parts, order="sorted"), digest_size=4
        ).hexdigest()


class GatewaysConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gateways.

    Attributes:
        count: how many, spread over the nodes.
        per_node: one on every node instead.
        host: that they listen on; empty: their node's address.
        port: of the first on a node; further ones take the next free ports.
        cpus, resources: that Ray reserves for each.
        args: further flags of `tidemill gateway`.
        env, pass_env: as of a model.
        insecure: clients need no key.
    """

    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    per_node: bool = False
    host: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    cpus: Amount = 0
    resources: dict[str, float] = {}
    args: list[str] = []
    env: dict[str, str] = {}
    pass_env: list[str] = []
    insecure: bool = False


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file.

    Attributes:
        name: of the deployment; one Ray cluster may have several.
        address: of Ray's head; empty: RAY_ADDRESS, or the cluster that this machine belongs to.
        interval: seconds between two looks at everything.
        models: what is served.
        gateway: who sends requests to it.
        targets, routing, privacy, fallbacks: further content of the gateways' file.
    """

    name: str = "tidemill"
    address: str = ""
    interval: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0
    models: list[ModelConfig] = []
    gateway: GatewaysConfig = GatewaysConfig()
    targets: list[dict[str, Any]] = []
    routing: dict[str, Any] = {}
    privacy: dict[str, Any] = {}
    fallbacks: dict[str, list[str]] = {}

    def gateway_file(self, engines: list[dict[str, Any]]) -> dict[str, Any]:
        """Content of the gateways' file, with these targets before the file's own."""
        scaled = {
            one.name: {"hold_seconds": one.seconds("hold") or 0.001, "max_held": one.max_held}
            for one in self.models
        }
        rest = {"routing": self.routing, "privacy": self.privacy, "fallbacks": self.fallbacks}
        return {
            "targets": [*engines, *self.targets],
            **{key: table for key, table in rest.items() if table},
            "scaled": scaled,
        }

    def scaled(self, pool: str, least: int, most: int) -> ClusterConfig:
        """With other bounds of a pool. Raises CONFIG."""
        if pool not in {one.pool for one in self.models}:
            known = ", ".join(one.pool for one in self.models)
            raise config_error(
                "model", f"there is no {pool!r} in this deployment; there are {known}"
            )
        models = [
            msgspec.structs.replace(one, min=least, max=most) if one.pool == pool else one
            for one in self.models
        ]
        for one in models:
            _ = one.objectives
        return msgspec.structs.replace(self, models=models)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A checked file, with what stood in the environment of whoever deployed it.

    Attributes:
        config: the file.
        engine_key: that engines ask for.
        client_key: that gateways ask for, with the role admin; empty: they are open.
        passed: values of variables that the file passes on.
    """

    config: ClusterConfig
    engine_key: str
    client_key: str
    passed: dict[str, str]


def read(path: Path) -> ClusterConfig:
    """The file's content, checked.

    Raises:
        TidemillError: kind CONFIG, naming what is wrong.
    """
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise config_error("config", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise config_error("config", f"{path} is no TOML: {error}") from None
    try:
        return checked(table)
    except TidemillError as error:
        raise config_error(error.param or "config", f"{path}: {error.message}") from None


def checked(table: Mapping[str, Any]) -> ClusterConfig:
    """A file's content, checked. Raises CONFIG."""
    from tidemill.gateway.config import checked as checked_gateway

    try:
        config = msgspec.convert(table, ClusterConfig)
    except msgspec.ValidationError as error:
        raise config_error("config", f"the cluster's file: {error}") from None
    if not _NAME.fullmatch(config.name):
        raise _wrong("name", f"{config.name!r} must be 1 to 48 letters, digits or ._-")
    if not config.models:
        raise _wrong("models", "there must be one at least ([[models]] with name)")
    seen = set[str]()
    for one in config.models:
        _check_model(one)
        if one.pool in seen:
            raise _wrong("models.name", f"two tables are of {one.pool!r}; give them other roles")
        seen.add(one.pool)
    checked_gateway(config.gateway_file([]), "")
    return config


def _check_model(one: ModelConfig) -> None:
    if not _NAME.fullmatch(one.name):
        raise _wrong("models.name", f"{one.name!r} must be 1 to 48 letters, digits or ._-")
    if one.role not in ROLE_SIGNALS:
        known = ", ".join(ROLE_SIGNALS)
        raise _wrong(f"{_place(one)}.role", f"there is no {one.role!r}; there are {known}")
    _ = one.objectives
    for key in ("ttft", "hold", "start", "drain"):
        one.seconds(key)
    taken = {"--port", "--host", "--served-name", "--api-key"}
    for flag in one.args:
        if flag.partition("=")[0] in taken:
            raise _wrong(f"{_place(one)}.args", f"{flag} is set by the deployment")


def deployment(config: ClusterConfig, environment: Mapping[str, str], key: str) -> Deployment:
    """A file with its secrets.

    Args:
        config: the file.
        environment: of whoever deploys.
        key: drawn for engines; and for gateways, where `environment` has none.

    Raises:
        TidemillError: CONFIG; a variable that is to be passed on is not set.
    """
    names = [n for one in config.models for n in one.pass_env] + config.gateway.pass_env
    names += [one["key_env"] for one in config.targets if "key_env" in one]
    for name in names:
        if name not in environment:
            raise config_error("pass_env", f"the variable {name} is not set")
    passed = {name: environment[name] for name in names}
    client = "" if config.gateway.insecure else environment.get(CLIENT_KEY, "").strip() or key
    return Deployment(config=config, engine_key=key, client_key=client, passed=passed)


def from_environment(config: ClusterConfig, key: str) -> Deployment:
    """`deployment` with this process's environment."""
    return deployment(config, os.environ, key)


def _place(model: ModelConfig) -> str:
    return f"models[{model.name!r}]"


def _wrong(param: str, message: str) -> TidemillError:
    return config_error(param, f"{param}: {message}")
