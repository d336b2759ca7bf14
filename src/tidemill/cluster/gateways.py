"""Gateways of a deployment: their file, and how many there are where."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.cluster.config import ENGINE_KEY, Deployment, GatewaysConfig, ModelConfig
from tidemill.cluster.placement import GATEWAY, Phase, Placed, ProcessSpec
from tidemill.deployment.toml_text import literal, path_text

FILE = "gateway.toml"


def target(engine: Placed, model: ModelConfig) -> dict[str, Any]:
    """An engine as the gateways' file has it."""
    return {
        "name": engine.name,
        "url": engine.url,
        "models": [model.name],
        "key_env": ENGINE_KEY,
        "tags": ["local"],
    }


def text(content: Mapping[str, Any]) -> str:
    """A gateway's file as TOML."""
    return "".join(f"{path_text((key,))} = {literal(value)}\n" for key, value in content.items())


def digest(deployment: Deployment) -> str:
    """Of what a gateway is started with; its file is not part of it."""
    parts = [deployment.config.gateway, deployment.engine_key, deployment.client_key]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=4).hexdigest()


def missing(
    config: GatewaysConfig, existing: Sequence[Placed], nodes: Iterable[str] | None
) -> list[str | None]:
    """Nodes that need a gateway; None: anywhere.

    Args:
        config: how many there should be.
        existing: those that there are.
        nodes: all that are alive, where each should have one.
    """
    if nodes is None:
        return [None] * max(0, config.count - len(existing))
    have = {one.node for one in existing}
    return [node for node in nodes if node not in have]


def surplus(
    deployment: Deployment, existing: Sequence[Placed], nodes: Sequence[str] | None
) -> list[str]:
    """Names of gateways that go: one of those that were started otherwise, once all others are
    ready, and those that are too many."""
    wanted = digest(deployment)
    going = [one.name for one in existing if nodes is not None and one.node not in nodes]
    if nodes is None:
        going = [one.name for one in existing[deployment.config.gateway.count :]]
    whole = not missing(deployment.config.gateway, existing, nodes)
    if not going and whole and all(one.phase is Phase.READY for one in existing):
        going = [one.name for one in existing if one.digest != wanted][:1]
    return going


def spec(deployment: Deployment, name: str, node: str | None, file: str) -> ProcessSpec:
    """A gateway that is to be started."""
    config = deployment.config.gateway
    passed = {one["key_env"] for one in deployment.config.targets if "key_env" in one}
    env = {key: deployment.passed[key] for key in (*passed, *config.pass_env)}
    env |= {**config.env, ENGINE_KEY: deployment.engine_key}
    flags = ["--insecure"] if config.insecure else []
    if deployment.client_key:
        env["TIDEMILL_API_KEY"] = deployment.client_key
    return ProcessSpec(
        name=name,
        kind=GATEWAY,
        pool="",
        digest=digest(deployment),
        arguments=(
            *("gateway", "--config", f"{{files}}/{FILE}"),
            *("--host", "{host}", "--port", "{port}", *flags, *config.args),
        ),
        env=env,
        files={FILE: file},
        host=config.host,
        port=config.port,
        cpus=config.cpus,
        resources=config.resources,
        node=node,
    )
