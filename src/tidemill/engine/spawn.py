"""Starting and stopping an engine process, with its folder and flight log."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill.base.cpu_share import BACKGROUND, NORMAL, set_group_priority
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.base.log import get_logger, log_format
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import exception_of
from tidemill.engine.client import SocketClient
from tidemill.engine.flightlog import FlightLog
from tidemill.engine.reports import FOLDER_PREFIX, LoadProgress, Report

_log = get_logger(__name__)

# The system's limit on the path of a Unix socket, less a byte.
MAX_SOCKET_PATH = 106
SOCKET_NAME = "engine.sock"
STOP_SECONDS = 10.0

# An engine whose heartbeat stalls for so long while it loads is taken to be stopped.
LOAD_STALL_SECONDS = 30.0
PRIORITY_SECONDS = 0.2

# The usual cause of each signal.
_SIGNALS = {
    "SIGKILL": "killed manually, or by the system's out-of-memory killer",
    "SIGBUS": "a mapped file was truncated, or its disk failed",
    "SIGABRT": "an assertion in native code failed",
    "SIGSEGV": "a segmentation fault in native code",
    "SIGILL": "an instruction that this processor does not support",
}
# A younger folder may belong to an owner that has not locked it yet.
STALE_SECONDS = 60.0


class EngineHome:
    """The resources that successive engines of one owner share: a private folder (mode 0700) with
    their socket, and the flight log. Close it when the last engine has ended.

    The owner locks the folder. Folders left by a killed owner (and its killed engine) are removed
    when the next one is created.

    Args:
        capacity: maximum rows of a step.

    Raises:
        TidemillError: CONFIG if TMPDIR cannot be used, RESOURCE without memory.
    """

    def __init__(self, capacity: int) -> None:
        self._folder = _make_folder()
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._remove()
            raise config_error(
                "TMPDIR", f"{self._folder} cannot be locked ({error}); set TMPDIR to a local folder"
            ) from error
        self._closed = False
        self.socket_path = str(self._folder / SOCKET_NAME)
        try:
            self.log = FlightLog.create(capacity)
        except OSError as error:
            self._remove()
            raise TidemillError(
                ErrorKind.RESOURCE, f"shared memory for the engine cannot be created: {error}"
            ) from error
        _remove_stale_folders(self._folder.parent)

    def prepare(self) -> None:
        """Clean up after the previous engine, before the next one starts."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        Path(self.socket_path).unlink(missing_ok=True)
        self.log.clear()

    def close(self) -> None:
        """Remove everything. Idempotent."""
        if not self._closed:
            self._closed = True
            self.log.close()
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


class EngineProcess:
    """A running engine process. It ends on `stop`, or when its owner ends.

    Attributes:
        pid: process id.
        socket_path: path of the socket that clients connect to.
        log: its flight log.
    """

    def __init__(self, process: Process, home: EngineHome, *, owns_home: bool = False) -> None:
        self._process = process
        self._home: EngineHome | None = home if owns_home else None
        self.pid = process.pid
        self.socket_path = home.socket_path
        self.log = home.log
        self._following: asyncio.Task[None] | None = None

    def follow(
        self, progress: Callable[[str], None], on_load: Callable[[LoadProgress], None]
    ) -> None:
        """Pass on the further reports of an engine that is ready."""

        async def follow() -> None:
            assert self._process.stdout is not None
            async for line in self._process.stdout:
                report = msgspec.json.decode(line, type=Report)
                if report.progress is not None:
                    progress(report.progress)
                if report.weights is not None:
                    on_load(report.weights)

        self._following = asyncio.create_task(follow(), name="tidemill-reports")

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal of that number killed it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = await self._process.wait()
        # Processes of the model's other parts end with it; one that is stopped has to be killed.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        home, self._home = self._home, None
        if home is not None:
            home.close()
        return code

    async def stop(self, timeout: float = STOP_SECONDS) -> int:
        """End it by SIGTERM, and by SIGKILL if it has not ended after `timeout` seconds."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(timeout):
                return await self.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """End it by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return await self.wait()


async def start_engine(
    config: EngineConfig,
    home: EngineHome,
    progress: Callable[[str], None] = lambda line: None,
    *,
    on_load: Callable[[LoadProgress], None] = lambda progress: None,
    background: bool = False,
    log_level: str = "info",
    owns_home: bool = False,
) -> EngineProcess:
    """Start an engine process and wait until it listens.

    Args:
        config: the engine's configuration.
        home: its folder and flight log; no other engine may use them.
        progress: called with a line for each stage, also for weights that load after it is ready.
        on_load: called with how far its weights are loaded, once it is ready and until all are.
        background: it gets a small share of the processors until its weights are loaded.
        log_level: level of its log, which it writes to stderr.
        owns_home: close the home when the process has ended.

    Raises:
        TidemillError: why it could not start, as raised in the engine (CONFIG, MODEL_FILE,
            RESOURCE, ...).
    """
    try:
        home.prepare()
    except OSError as error:
        raise config_error("TMPDIR", f"the engine's folder cannot be used: {error}") from error
    process = await _start(home, log_level)
    engine = EngineProcess(process, home, owns_home=owns_home)
    lowered = background and set_group_priority(process.pid, BACKGROUND)

    def note_load(told: LoadProgress) -> None:
        if lowered and told.loaded >= told.total:
            _raise_priority(engine)
        on_load(told)

    watch = asyncio.ensure_future(_watch_load(engine))
    try:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        await _wait_ready(process, progress)
        engine.follow(progress, note_load)
    except BaseException:
        await engine.kill()
        raise
    finally:
        watch.cancel()
    return engine


async def spawn_engine(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    *,
    log_level: str = "info",
) -> tuple[EngineProcess, SocketClient]:
    """Start an unsupervised engine process, and connect to it as its owner.

    Raises:
        TidemillError: see `start_engine`.
    """
    home = EngineHome(config.max_num_seqs)
    try:
        engine = await start_engine(config, home, progress, log_level=log_level, owns_home=True)
    except BaseException:
        home.close()
        raise
    try:
        return engine, await SocketClient.connect(engine.socket_path, config.digest(), owner=True)
    except BaseException:
        await engine.kill()
        raise


def ending(code: int) -> str:
    """How a process ended: the predicate of a sentence about it."""
    if code >= 0:
        return f"ended with exit code {code} (see its log above)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    reason = _SIGNALS.get(name, "")
    return f"was ended by {name}{reason and f' ({reason})'}"


def _make_folder() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    except OSError as error:
        raise config_error(
            "TMPDIR",
            f"the folder for the engine's socket cannot be created ({error}); set TMPDIR to a "
            "writable folder",
        ) from error
    if _too_long(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp"))
    if _too_long(folder):
        raise config_error("TMPDIR", f"{folder} is too long for a socket; set a shorter TMPDIR")
    return folder


def _too_long(folder: Path) -> bool:
    return len(os.fsencode(folder)) + len(f"/{SOCKET_NAME}") > MAX_SOCKET_PATH


def _remove_stale_folders(parent: Path) -> None:
    """Remove the folders of killed owners; folders with any other content are kept."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            young = time.time() - status.st_mtime < STALE_SECONDS
            if young or status.st_uid != os.getuid() or not folder.is_dir():
                continue
            if any(entry.name != SOCKET_NAME for entry in folder.iterdir()):
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


async def _start(home: EngineHome, log_level: str) -> Process:
    descriptor = home.log.descriptor
    command = ("-P", "-m", "tidemill.engine.process", "--socket", home.socket_path)
    flags = (
        *("--log-level", log_level, "--log-format", log_format()),
        *("--flight-log", f"{descriptor}:{home.log.capacity}"),
    )
    # numpy's BLAS would start a spinning thread per processor. The engine never uses BLAS: its
    # kernels (or torch's) compute everything.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *flags,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,),
            # Ctrl-C reaches the terminal's whole process group; the owner decides when the engine
            # ends.
            start_new_session=True,
        )
    except OSError as error:
        raise TidemillError(
            ErrorKind.RESOURCE, f"the engine process cannot be started: {error}", retryable=True
        ) from error


async def _wait_ready(process: Process, progress: Callable[[str], None]) -> None:
    """Read the engine's reports until it listens."""
    assert process.stdout is not None
    async for line in process.stdout:
        report = msgspec.json.decode(line, type=Report)
        if report.error is not None:
            raise exception_of(report.error)
        if report.ready:
            return
        if report.progress is not None:
            progress(report.progress)
    code = await process.wait()
    raise TidemillError(
        ErrorKind.UNAVAILABLE,
        f"the engine process {ending(code)} before it was ready",
        retryable=True,
    )


def _raise_priority(engine: EngineProcess) -> None:
    """Give a loaded engine its full share; the system takes few such changes a second."""
    if engine.exit_code is None and not set_group_priority(engine.pid, NORMAL):
        asyncio.get_running_loop().call_later(PRIORITY_SECONDS, _raise_priority, engine)


async def _watch_load(engine: EngineProcess) -> None:
    """Kill an engine that stalls while it loads; otherwise the wait would never end.

    A large read may block every thread for long, so growing memory also counts as progress.
    """
    seen, unchanged = _progress_of(engine), 0.0
    while unchanged < LOAD_STALL_SECONDS:
        await asyncio.sleep(1.0)
        latest = _progress_of(engine)
        unchanged = 0.0 if latest != seen else unchanged + 1.0
        seen = latest
    _log.error("engine process %d made no progress while loading and is killed", engine.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(engine.pid, signal.SIGKILL)


def _progress_of(engine: EngineProcess) -> tuple[object, ...]:
    import psutil  # slow to import, and only needed when a start takes more than a second

    try:
        process = psutil.Process(engine.pid)
        return engine.log.pulse, process.cpu_times(), process.memory_info().rss
    except psutil.Error:
        return ()
