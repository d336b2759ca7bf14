"""Starting an engine process and connecting to it as its owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.contract.config import EngineConfig
from tidemill.engine.client import SocketClient
from tidemill.engine.process import FOLDER_PREFIX, Report
from tidemill.engine.streams import raise_error

# The kernel's bound on a Unix socket's path, with a byte to spare.
MAX_SOCKET_PATH = 106
STOP_SECONDS = 10.0


class EngineProcess:
    """A running engine process. `stop` ends it; it also ends by itself when its owner is gone.

    Attributes:
        pid: of the process.
        socket_path: where further clients may connect.
    """

    def __init__(self, process: Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.pid = process.pid
        self.socket_path = str(folder / "engine.sock")

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: killed by that signal."""
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        code = await self._process.wait()
        self._clean_up()
        return code

    async def stop(self, timeout: float = STOP_SECONDS) -> int:
        """End it: by SIGTERM, and by SIGKILL when that does nothing within `timeout` seconds."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(timeout):
                return await self.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """End it now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return await self.wait()

    def _clean_up(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


async def spawn_engine(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    *,
    log_level: str = "info",
) -> tuple[EngineProcess, SocketClient]:
    """Start an engine process and wait until it serves.

    Args:
        config: what it serves.
        progress: told in a line each what it is doing.
        log_level: of its log, which goes to stderr.

    Returns:
        The process, and the client that owns it.

    Raises:
        TidemillError: why it could not start, as raised there (CONFIG, MODEL_FILE, RESOURCE, ...).
    """
    folder = _make_folder()
    path = str(folder / "engine.sock")
    try:
        process = await _start(path, log_level)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    engine = EngineProcess(process, folder)
    try:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        await _wait_ready(process, progress)
        return engine, await SocketClient.connect(path, config.digest(), owner=True)
    except BaseException:
        await engine.kill()
        raise


def _make_folder() -> Path:
    """A folder for the socket that only this user can enter (mode 0700)."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    except OSError as error:
        raise config_error(
            "TMPDIR",
            f"no folder for the engine's socket can be made ({error}); set TMPDIR to a folder "
            "that can be written to",
        ) from error
    if len(os.fsencode(folder)) + len("/engine.sock") > MAX_SOCKET_PATH:
        shutil.rmtree(folder, ignore_errors=True)
        raise config_error("TMPDIR", f"{folder} is too long for a socket; set a shorter TMPDIR")
    return folder


async def _start(path: str, log_level: str) -> Process:
    command = ("-P", "-m", "tidemill.engine.process", "--socket", path, "--log-level", log_level)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C goes to the whole group of a terminal; the owner decides when the engine ends.
            start_new_session=True,
        )
    except OSError as error:
        raise TidemillError(
            ErrorKind.RESOURCE, f"no engine process can be started: {error}", retryable=True
        ) from error


async def _wait_ready(process: Process, progress: Callable[[str], None]) -> None:
    """Follow the engine's reports until it listens."""
    assert process.stdout is not None
    async for line in process.stdout:
        report = msgspec.json.decode(line, type=Report)
        if report.error is not None:
            raise_error(report.error)
        if report.ready:
            return
        if report.progress is not None:
            progress(report.progress)
    code = await process.wait()
    raise TidemillError(
        ErrorKind.UNAVAILABLE,
        f"the engine process ended with code {code} before it was ready; its log says why",
    )
