"""The server under test, as the operating system sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tidemill.bench.client import HttpFailure, Target, get_json

START_SECONDS = 90


class SmallDisk:
    """A folder on a small file system of its own, where the system allows one; else a plain one.

    Attributes:
        path: the folder.
        real: it can be filled.
    """

    def __init__(self, megabytes: int = 8) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="soak-"))
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs"]
        try:
            done = subprocess.run([*command, str(self.path)], capture_output=True)
            self.real = done.returncode == 0
        except OSError:
            self.real = False

    def fill(self) -> None:
        """Take the last byte."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give it back."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount and remove."""
        if self.real:
            subprocess.run(["umount", "-l", str(self.path)], capture_output=True)
        subprocess.run(["rm", "-rf", str(self.path)], capture_output=True)


class Machine:
    """A server process with everything it writes on a small disk.

    Where no small disk can be mounted, the server may write no file beyond 16 KiB (RLIMIT_FSIZE),
    from its start, and its log goes to a pipe.
    """

    def __init__(self, disk: SmallDisk, *flags: str) -> None:
        self.disk = disk
        self._log_path = disk.path / "log"
        self._text = ""
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill", "serve", "--port", "0", *flags],
                stderr=log if disk.real else subprocess.PIPE,
                env={**os.environ, "TMPDIR": str(disk.path)},
                preexec_fn=None if disk.real else _limit_files,
            )
        if self.process.stderr is not None:
            os.set_blocking(self.process.stderr.fileno(), False)
        self.target = Target.parse(self._url(), None)
        self._api = psutil.Process(self.process.pid)

    def log(self) -> str:
        """What the server printed, as far as the disk had room for it."""
        if self.disk.real:
            return self._log_path.read_text(errors="replace")
        assert self.process.stderr is not None
        self._text += (self.process.stderr.read() or b"").decode(errors="replace")
        return self._text

    def tracebacks(self) -> list[str]:
        """Every traceback in the log, with a line before it."""
        lines = self.log().splitlines()
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
        return ["\n".join(lines[max(0, i - 1) : i + 40]) for i in starts]

    def _url(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"serving .* on (http://\S+)", self.log())
            if found:
                return found[1]
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"the server did not start:\n{self.log()}")

    def engine_pid(self) -> int | None:
        """Of the engine process there is."""
        for child in self._api.children():
            try:
                if "tidemill.engine.process" in child.cmdline():
                    return child.pid
            except psutil.Error:
                continue
        return None

    def signal_engine(self, number: int) -> bool:
        """Send the engine a signal; False when there is none."""
        pid = self.engine_pid()
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    async def ready(self) -> dict[str, Any] | None:
        """What /readyz says, or None when it says no."""
        try:
            async with asyncio.timeout(15):
                answer = await get_json(self.target, "/readyz")
        except (HttpFailure, OSError, ValueError, TimeoutError):
            return None
        return answer if isinstance(answer, dict) else None

    async def await_ready(self, seconds: float = 60.0) -> bool:
        """Wait for a positive /readyz."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if await self.ready() is not None:
                return True
            await asyncio.sleep(0.05)
        return False

    async def idle(self, seconds: float = 60.0) -> dict[str, int]:
        """The engine's figures once nothing runs, or at the end of the time."""
        deadline = time.monotonic() + seconds
        while True:
            answer = await self.ready()
            stats: dict[str, int] = (answer or {}).get("stats", {})
            quiet = answer and not (stats["running"] or stats["queued"] or stats["blocks_used"])
            if quiet or time.monotonic() > deadline:
                return stats
            await asyncio.sleep(0.1)

    async def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels."""
        text = await asyncio.to_thread(self._get_metrics)
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _get_metrics(self) -> str:
        url = f"http://{self.target.host}:{self.target.port}/metrics"
        with urllib.request.urlopen(url, timeout=15) as answer:
            text: str = answer.read().decode()
        return text

    def figures(self) -> dict[str, int]:
        """File descriptors, child processes, threads and resident bytes of the API process, and the
        engine's resident bytes."""
        pid = self.engine_pid()
        return {
            "fds": self._api.num_fds(),
            "processes": self._processes(),
            "threads": self._api.num_threads(),
            "rss": self._api.memory_info().rss,
            "engine_rss": psutil.Process(pid).memory_info().rss if pid else 0,
        }

    def _processes(self) -> int:
        """Child processes; an engine that has met a grammar may have the two of its sandbox."""
        commands = []
        for child in self._api.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                commands.append(" ".join(child.cmdline()))
        sandboxes = sum("tidemill.grammar.sandbox_process" in command for command in commands)
        return len(commands) - min(sandboxes, 2)

    def stop(self) -> int | None:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None

    def left_behind(self) -> list[str]:
        """Files in the server's temporary folder that are not ours."""
        return [p.name for p in self.disk.path.iterdir() if p.name not in ("log", "filler")]


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
