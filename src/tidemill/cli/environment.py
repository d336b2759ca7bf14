"""`TIDEMILL_*`: an environment variable for every flag, and those that have no flag.

The settings of a deployment and the flags of `serve` are ``TIDEMILL_`` and the flag, in every
command that has them. Any other flag's variable has the command's name in between, for there one
word may mean several things: ``TIDEMILL_RUN_TEMPERATURE``, ``TIDEMILL_KEYS_CREATE_ROLE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

PREFIX = "TIDEMILL"

# Variables that are no flag's -> what they say. docs/deployment.md lists them, too.
FIXED: Mapping[str, str] = {
    "TIDEMILL_HOME": "folder of the library and the database; default: tidemill in XDG_DATA_HOME",
    "TIDEMILL_MODEL": "models that `tidemill serve` takes where none is typed, with spaces between",
    "TIDEMILL_SECRET": "the server's secret; default: the file `secret` in TIDEMILL_HOME",
    "TIDEMILL_SIGNATURE_KEY": "a secret by which signatures of thinking outlive the server",
    "TIDEMILL_AUDIT_KEY": "the key that seals the audit log; default: from the secret",
    "TIDEMILL_KV_KEY": "the key of --kv-listen, --kv-peers and --pipeline-peers, the same on all "
    "their machines",
    "TIDEMILL_KV_DISK_KEY": "the key that encrypts the folder of --kv-disk; default: it is not",
}

# Kubernetes gives every container such variables about each service of its namespace.
_SERVICE_LINK = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set this variable because a service is called tidemill."""
    return bool(
        _SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value))
    )


def variable(flag: str, *command: str) -> str:
    """The variable of a flag as typed, of a command's path; without one, of every command's."""
    words = (PREFIX, *command, flag.removeprefix("--"))
    return "_".join(words).replace("-", "_").upper()


def name_variables(command: click.Command, *path: str) -> click.Command:
    """Give every option of a command that has no variable its own; groups with all below them."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.envvar is None:
            parameter.envvar = variable(_typed(parameter), *path)
            parameter.show_envvar = True
    for name, below in getattr(command, "commands", {}).items():
        name_variables(below, *path, name)
    return command


def variables_of(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    """The variables of a command and of all below it."""
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar, parameter
    for below in getattr(command, "commands", {}).values():
        yield from variables_of(below)


def unknown_variables(
    environment: Mapping[str, str], known: Iterable[str], commands: Iterable[str]
) -> list[str]:
    """A line about each variable that looks like one of Tidemill's and is none.

    Args:
        environment: of the process.
        known: variables of the command's own flags.
        commands: names of all commands, whose flags' variables are not looked at.
    """
    import difflib

    own = {*known, *FIXED}
    others = tuple(variable(name) + "_" for name in commands)
    lines = []
    for name, value in sorted(environment.items()):
        if not name.startswith(f"{PREFIX}_") or name in own or name.startswith(others):
            continue
        if is_service_link(name, value):
            continue
        close = difflib.get_close_matches(name, own, 1, 0.75)
        remedy = f"; did you mean {close[0]}?" if close else ""
        lines.append(f"{name} is set, and no flag has this variable{remedy}")
    return lines


class EnvironmentOption(click.Option):
    """An option whose variable may be one of Kubernetes' by accident: a service that is called
    tidemill sets TIDEMILL_PORT to tcp://ADDRESS:PORT."""

    def resolve_envvar_value(self, ctx: click.Context) -> Any:
        """The variable's value; None where it is not set, empty, or about a service."""
        value = super().resolve_envvar_value(ctx)
        if value and isinstance(self.envvar, str) and is_service_link(self.envvar, value):
            return None
        return value


def _typed(option: click.Option) -> str:
    """The flag as it is written out: ``--all`` of ``-a, --all``."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])
