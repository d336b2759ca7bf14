"""The units of systemd under which `tidemill serve` runs: a socket, and a hardened service."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PLAIN = re.compile(r"[\w@%+=:,./-]+")

_SOCKET = """\
# Holds the address, so that no connection is refused while the server restarts.
[Unit]
Description=Tidemill's address

[Socket]
ListenStream={listen}
Backlog=4096
NoDelay=true

[Install]
WantedBy=sockets.target
"""

_SERVICE = """\
# Written by `tidemill install-service`. Change it by `systemctl edit {name}`, or install it again.
[Unit]
Description=Tidemill: LLM inference and serving
Requires={name}.socket
After={name}.socket{after}

[Service]
# Ready when the first model is; a large one may take minutes.
Type=notify
NotifyAccess=main
TimeoutStartSec=infinity
TimeoutStopSec=90
ExecStart={command}
# Reads the deployment file, key files and certificates again.
ExecReload=kill -HUP $MAINPID
# The server alone is told to stop: it lets its engine finish what runs.
KillMode=mixed
# An engine that the system ends for its memory is replaced by the server.
OOMPolicy=continue
Restart=on-failure
RestartSec=2
# 2: a flag, a file or a name is wrong, and will be the next time.
RestartPreventExitStatus=2
EnvironmentFile=-{environment}
{own}
[Install]
WantedBy={target}
Also={name}.socket
"""

_SYSTEM = """\
Environment=TIDEMILL_HOME=%S/{name} XDG_CACHE_HOME=%C/{name} HF_HOME=%S/{name}/hub

# A user of its own, that exists while the server runs, with two folders.
DynamicUser=yes
StateDirectory={name}
StateDirectoryMode=0700
CacheDirectory={name}
CacheDirectoryMode=0700
UMask=0077

# It reads the system and writes those folders; it has no rights, devices or other processes.
ProtectSystem=strict
ProtectHome={home}
PrivateTmp=yes
PrivateUsers=yes
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
{devices}"""

_NO_DEVICES = """\
PrivateDevices=yes
DevicePolicy=closed
MemoryDenyWriteExecute=yes
"""

# Compilers of kernels write code at run time.
_GPU = """\
DevicePolicy=closed
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-uvm rw
DeviceAllow=char-nvidia-caps rw
DeviceAllow=char-drm rw
"""

# What a user's own manager can do without rights.
_USER = """\
NoNewPrivileges=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
UMask=0077
"""

ENVIRONMENT = """\
# Variables of the service, NAME=VALUE in a line, read by systemd itself. Every flag has one.
# TIDEMILL_MODEL=owner/name
# TIDEMILL_CONFIG=/etc/tidemill/tidemill.toml
# TIDEMILL_API_KEY=
# HF_TOKEN=
"""


@dataclass(frozen=True, slots=True)
class Service:
    """What differs between installations.

    Attributes:
        name: of the units.
        program: the path of `tidemill`, and what stands before it.
        arguments: of `serve`.
        listen: ADDRESS:PORT of the socket.
        environment: path of the file with variables.
        user: whether it belongs to a user's own manager.
        gpu: whether devices of graphics are open to it.
        at_home: whether the program is in a home, which then has to be read.
    """

    name: str
    program: Sequence[str]
    arguments: Sequence[str]
    listen: str
    environment: str
    user: bool = False
    gpu: bool = False
    at_home: bool = False

    def units(self) -> dict[str, str]:
        """The units by their files' names."""
        own = _USER
        if not self.user:
            own = _SYSTEM.format(
                name=self.name,
                home="read-only" if self.at_home else "yes",
                devices=_GPU if self.gpu else _NO_DEVICES,
            )
        service = _SERVICE.format(
            name=self.name,
            after="" if self.user else " network-online.target\nWants=network-online.target",
            command=" ".join(map(quoted, (*self.program, "serve", *self.arguments))),
            environment=self.environment.replace("%", "%%"),
            target="default.target" if self.user else "multi-user.target",
            own=own,
        )
        socket = _SOCKET.format(listen=self.listen)
        return {f"{self.name}.service": service, f"{self.name}.socket": socket}


def quoted(word: str) -> str:
    """A word of a command as systemd reads it."""
    word = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
