"""`tidemill install-service`: the server as a service of systemd."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.base.errors import config_error
from tidemill.cli.declared import argument, command, option
from tidemill.cli.outputs import writing

if TYPE_CHECKING:
    from tidemill.cli.service_units import Service

_ADDRESS = re.compile(r"(?:(?:\[[0-9a-fA-F:.]+\]|[\d.]+):)?\d{1,5}")
_OF_THE_SOCKET = ("--host", "--port")
_HOMES = ("/home", "/root", "/run/user")


def install_service(
    arguments: tuple[str, ...] = argument(
        (), help="Models and flags of `tidemill serve`; flags stand behind --."
    ),
    name: str = option("tidemill", help="Of the units."),
    listen: str = option("127.0.0.1:8000", help="ADDRESS:PORT, or a port of every address."),
    user: bool = option(
        False, "--user", help="For this user's own services, without root's rights."
    ),
    gpu: bool = option(False, "--gpu", help="Let it use graphics devices (torch)."),
    now: bool = option(False, "--now", help="Start it now, and at every start of the machine."),
    remove: bool = option(False, "--remove", help="Stop it and remove the units."),
    to: Path | None = option(None, help="Folder to write the units into, for packagers."),
    show: bool = option(False, "--print", help="Print the units; write nothing."),
) -> None:
    """Run the server as a service of systemd: a hardened unit, and a socket that outlives restarts.

    `tidemill install-service --now -- brook --threads 4`. Variables of the service are in
    /etc/tidemill/environment (--user: ~/.config/tidemill/environment).
    """
    from tidemill.cli.service_units import ENVIRONMENT

    service = _service(name, arguments, listen, user=user, gpu=gpu)
    units = service.units()
    if show:
        click.echo("\n".join(f"# {file}\n{text}" for file, text in units.items()), nl=False)
        return
    folder = to or (_config_home() / "systemd/user" if user else Path("/etc/systemd/system"))
    if remove:
        _systemctl(user, "disable", "--now", *units, check=False)
        for file in units:
            (folder / file).unlink(missing_ok=True)
        _systemctl(user, "daemon-reload")
        click.echo(f"removed: {', '.join(units)}; its data stays")
        return
    if to is None:
        _check_reachable(service)
        environment = Path(service.environment)
        if not environment.exists():
            environment.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(environment, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file_of_variables:
                file_of_variables.write(ENVIRONMENT)
    with writing("--to" if to is not None else "--user" if user else "install-service", folder):
        for file, text in units.items():
            (folder / file).write_text(text)
            click.echo(f"written: {folder / file}")
    _start(service, now=now, packaged=to is not None)


def _service(
    name: str, arguments: tuple[str, ...], listen: str, *, user: bool, gpu: bool
) -> Service:
    """What the units say. Raises CONFIG."""
    from tidemill.cli.serve import serve
    from tidemill.cli.service_units import Service

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise config_error("name", "--name is of letters, digits, - and _")
    if not _ADDRESS.fullmatch(listen) or not 0 < int(listen.rpartition(":")[2]) < 65536:
        raise config_error("listen", f"--listen is ADDRESS:PORT or PORT, not {listen!r}")
    for word in arguments:
        if word.partition("=")[0] in _OF_THE_SOCKET:
            raise config_error("listen", f"{word}: the socket has the address; --listen says it")
    try:
        command("serve", serve).make_context("serve", [*arguments])
    except click.UsageError as error:
        message = error.format_message()
        raise config_error("arguments", f"`tidemill serve` does not take this: {message}") from None
    program = _program()
    environment = _config_home() / "tidemill/environment" if user else "/etc/tidemill/environment"
    return Service(
        name,
        program,
        arguments,
        listen,
        str(environment),
        user=user,
        gpu=gpu,
        at_home=program[0].startswith(_HOMES),
    )


def _program() -> tuple[str, ...]:
    """How this program is started, as found from anywhere."""
    neighbour = Path(sys.executable).parent / "tidemill"
    return (str(neighbour),) if neighbour.is_file() else (sys.executable, "-m", "tidemill")


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _check_reachable(service: Service) -> None:
    """Raise CONFIG where the service's user could not read the program."""
    if service.user:
        return
    for folder in Path(service.program[0]).parents:
        if not folder.stat().st_mode & 0o001:
            raise config_error(
                "install-service",
                f"the service has a user of its own, who cannot enter {folder}; install tidemill "
                "elsewhere (python3 -m venv /opt/tidemill), or take --user",
            )


def _start(service: Service, *, now: bool, packaged: bool) -> None:
    both = (f"{service.name}.socket", f"{service.name}.service")
    if now and not packaged:
        _systemctl(service.user, "daemon-reload")
        _systemctl(service.user, "enable", "--now", *both)
        click.echo(f"{service.name} is running, on {service.listen}")
        return
    systemctl = "systemctl --user" if service.user else "systemctl"
    click.echo(f"start it: {systemctl} daemon-reload && {systemctl} enable --now {' '.join(both)}")
    follow = "journalctl --user" if service.user else "journalctl"
    click.echo(f"its log: {follow} -u {service.name} -f")


def _systemctl(user: bool, *words: str, check: bool = True) -> None:
    from tidemill.base.errors import ErrorKind, TidemillError

    command = ["systemctl", *(["--user"] if user else []), *words]
    try:
        done = subprocess.run(command, check=False)
    except FileNotFoundError:
        raise TidemillError(
            ErrorKind.UNAVAILABLE, "there is no systemctl here; --print shows the units"
        ) from None
    if check and done.returncode:
        raise TidemillError(ErrorKind.UNAVAILABLE, f"`{' '.join(command)}` failed")
