"""A server as a child process: started, watched, started again when it ends, told to reload.

The socket of a gateway is the parent's, so that connections wait while the gateway is started
again. An engine has its own: its connections are to be refused, so that gateways ask another one.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.cluster.placement import GATEWAY, Phase, ProcessSpec

log = get_logger(__name__)

POLL_SECONDS = 0.1
WELL_SECONDS = 60.0
"""A child that ran for so long is started again at once when it ends."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a child that ended is started again: doubled each time."""

BACKLOG = 2048
PORTS = 64
"""How many ports are tried from the first on."""

_KEPT_LINES = 8


class Process:
    """See the module docstring. `start` it once, and `stop` it.

    Args:
        spec: what runs.
        host: the address of this machine.
    """

    def __init__(self, spec: ProcessSpec, host: str) -> None:
        self.spec = spec
        self._host = spec.host or host
        self._reached = host if self._host in ("0.0.0.0", "::") else self._host
        self._port = 0
        self._listener: socket.socket | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-cluster-"))
        self._child: subprocess.Popen[str] | None = None
        self._ready = False
        self._exits = 0
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reason = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._write(self.spec.files)
        self._thread.start()

    def describe(self) -> dict[str, object]:
        """As far as `Placed` has it: phase, url, exits, reason; and the child's pid."""
        child = self._child
        phase = Phase.READY if self._ready else Phase.STARTING
        return {
            "phase": str(Phase.STOPPING if self._stopping.is_set() else phase),
            "url": f"http://{_bracketed(self._reached)}:{self._port}" if self._port else "",
            "exits": self._exits,
            "reason": self._reason,
            "pid": None if child is None else child.pid,
        }

    def write(self, files: dict[str, str]) -> None:
        """Replace files, and have the server read them again."""
        self._write(files)
        child = self._child
        if child is not None and child.poll() is None and self._ready:
            child.send_signal(signal.SIGHUP)

    def stop(self, seconds: float) -> None:
        """End it; after so many seconds without mercy."""
        self._stopping.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
        if self._listener is not None:
            self._listener.close()
        if child is not None:
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()
        self._thread.join(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the thread that is the child's parent ---------------------------------------------------

    def _watch(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = monotonic()
            try:
                child = self._spawn()
            except OSError as error:
                self._ended(f"it could not be started: {error}")
            else:
                self._follow(child)
                if self._stopping.is_set():
                    child.wait()
                    return
                last = " | ".join(self._lines) or "it said nothing"
                self._ended(f"exit code {child.returncode}: {last}")
            pause = FIRST_PAUSE if monotonic() - began > WELL_SECONDS else pause
            self._stopping.wait(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _spawn(self) -> subprocess.Popen[str]:
        if self._listener is None and (not self._port or self._exits):
            one = _bound(self._host, self._port or self.spec.port)
            self._port = one.getsockname()[1]
            if self.spec.kind == GATEWAY:
                one.listen(BACKLOG)
                self._listener = one
            else:
                one.close()
        descriptor = None if self._listener is None else self._listener.fileno()
        known = {"host": self._host, "port": str(self._port), "files": str(self._folder)}
        arguments = [_filled(one, known) for one in self.spec.arguments]
        parent = [str(os.getpid()), "-" if descriptor is None else str(descriptor)]
        command = [sys.executable, "-m", "tidemill.cluster.child", *parent, *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
        environment |= _home() | self.spec.env
        self._lines.clear()
        self._child = subprocess.Popen(
            command,
            env=environment,
            pass_fds=() if descriptor is None else (descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if self._stopping.is_set():  # `stop` has not seen it
            self._child.terminate()
        assert self._child.stdout is not None
        reader = threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True)
        reader.start()
        return self._child

    def _read(self, stream: IO[str]) -> None:
        """Pass the child's lines on to this process's log; the last ones explain its end."""
        with stream:
            for line in stream:
                self._lines.append(line.rstrip()[:500])
                sys.stderr.write(f"{self.spec.name}: {line}")

    def _follow(self, child: subprocess.Popen[str]) -> None:
        """Until the child has ended."""
        while child.poll() is None:
            if not self._ready and not self._stopping.is_set():
                self._ready = self._is_ready()
                if self._ready and self.spec.files:  # they may have been replaced while it started
                    child.send_signal(signal.SIGHUP)
            try:
                child.wait(POLL_SECONDS if not self._ready else 1.0)
            except subprocess.TimeoutExpired:
                continue
        self._ready = False

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self._reached, self._port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ended(self, reason: str) -> None:
        self._exits += 1
        self._reason = reason
        log.warning("%s ended: %s", self.spec.name, reason)

    def _write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            part = self._folder / f"{name}.part"
            part.write_text(text)
            part.replace(self._folder / name)


def _home() -> dict[str, str]:
    """Variables of Tidemill that say where this machine keeps what: those of a node stay."""
    kept = (
        "TIDEMILL_HOME",
        "TIDEMILL_PACKED_CACHE",
        "TIDEMILL_KV_KEY",
        "TIDEMILL_KV_DISK_KEY",
        "TIDEMILL_DATABASE",
    )
    return {name: os.environ[name] for name in kept if name in os.environ}


def _filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _bound(host: str, first: int) -> socket.socket:
    """A socket on a port that nobody listens on: the first from `first` on, or any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, first + PORTS) if first else (0,):
        one = socket.socket(family)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError:
            one.close()
            continue
        return one
    raise OSError(f"no port from {first} to {first + PORTS - 1} is free on {host}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
