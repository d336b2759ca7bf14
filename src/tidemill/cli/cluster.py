"""`tidemill cluster`: engines and gateways on the machines of a Ray cluster."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from tidemill.base.errors import config_error
from tidemill.cli.declared import argument, command, option

_CONFIG = option(..., help="The cluster's file: [[models]], [gateway] (docs/cluster.md).")
_OF = option(
    None, "--config", help="The file of a deployment that is not called tidemill, or not here."
)
_WAIT = option(600.0, "--wait", help="Seconds to wait until engines and gateways are ready.")
_JSON = option(False, "--json", help="As a JSON document.")


def up(config: Path = _CONFIG, wait: float = _WAIT) -> None:
    """Begin a deployment: engines and gateways start on the machines of the Ray cluster.

    The gateways' key is the variable TIDEMILL_API_KEY; without it one is drawn, and printed.
    """
    _deploy(config, wait, may_exist=False)


def deploy(config: Path = _CONFIG, wait: float = _WAIT) -> None:
    """Change a deployment to what the file says now, or begin it: engines that would be started
    otherwise are replaced one after the other, and no request fails."""
    _deploy(config, wait, may_exist=True)


def status(
    config: Path | None = _OF,
    show_key: bool = option(False, "--show-key", help="Print the gateways' key."),
    as_json: bool = _JSON,
) -> None:
    """Show engines, gateways, and what the autoscaler thinks."""
    operator = _operator(config)
    if show_key:
        found = operator.deployed()
        click.echo("" if found is None else found.client_key)
        return
    known = operator.status()
    if as_json:
        click.echo(json.dumps(known, indent=2))
        return
    for name, pool in known["pools"].items():
        click.echo(_pool_line(name, pool))
    for one in sorted(known["processes"], key=lambda one: (one["kind"], one["name"])):
        click.echo(_process_line(one))


def scale(
    model: str = argument(..., help="The model's name; of one with roles, NAME.ROLE."),
    engines: str = argument(..., help="How many engines: a number, or a range such as 0-4."),
    config: Path | None = _OF,
) -> None:
    """Set how many engines a model has, until the next `deploy`."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", engines)
    if match is None:
        raise config_error("engines", f"{engines!r} is no number of engines, nor a range as 0-4")
    least, most = int(match[1]), int(match[2] or match[1])
    _operator(config).scale(model, least, most)
    click.echo(f"{model}: {least} to {most} engines")


def down(
    config: Path | None = _OF,
    seconds: float = option(30.0, "--drain", help="Seconds for requests in flight."),
) -> None:
    """End a deployment: all its gateways and engines."""
    count = _operator(config).down(seconds, click.echo)
    click.echo(f"{count} processes ended")


def _deploy(path: Path, wait: float, *, may_exist: bool) -> None:
    from tidemill.cluster.config import read
    from tidemill.cluster.operate import Operator, connect

    config = read(path)
    connect(config.address)
    operator = Operator(config.name)
    exists = operator.deployed() is not None
    if exists and not may_exist:
        raise config_error(
            "config", f"{config.name!r} is up; `tidemill cluster deploy --config {path}` changes it"
        )
    made = operator.deploy(config)
    if not exists and made.client_key and not os.environ.get("TIDEMILL_API_KEY"):
        click.echo(f"key of the gateways (role admin): {made.client_key}")
    if not operator.wait(wait, click.echo):
        click.echo(f"not ready after {wait:g} s; `tidemill cluster status` says how far it is")
        sys.exit(1)


def _operator(path: Path | None) -> Any:
    from tidemill.cluster.config import ClusterConfig, read
    from tidemill.cluster.operate import Operator, connect

    config = ClusterConfig() if path is None else read(path)
    connect(config.address)
    return Operator(config.name)


def _pool_line(name: str, pool: dict[str, Any]) -> str:
    held = f", {pool['held']} requests held" if pool["held"] else ""
    problem = f"; {pool['problem']}" if pool["problem"] else ""
    return (
        f"{name}: {pool['desired']} engines wanted ({pool['min']} to {pool['max']}), "
        f"demand {pool['demand']:g}, {pool['reason']}{held}{problem}"
    )


def _process_line(one: dict[str, Any]) -> str:
    load = f", {one['running']} requests, wait {one['wait']:g} s" if "running" in one else ""
    exits = f", ended {one['exits']} times: {one['reason']}" if one["exits"] else ""
    where = f" on {one['node'][:12]}" if one["node"] else ""
    return f"  {one['name']}: {one['phase']}{where} {one['url']}{load}{exits}".rstrip()


cluster = click.Group(
    "cluster",
    help="Engines and gateways on the machines of a Ray cluster (docs/cluster.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _name, _function in (
    ("up", up),
    ("status", status),
    ("scale", scale),
    ("deploy", deploy),
    ("down", down),
):
    cluster.add_command(command(_name, _function))
