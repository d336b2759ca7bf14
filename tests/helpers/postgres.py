"""A PostgreSQL server for a test run: Debian's package, in a temporary folder, on a Unix socket."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class Postgres:
    """A server that runs, until it is stopped.

    Args:
        folder: for its data and socket; the server's account owns it.
        programs: folder of PostgreSQL's programs.
        account: it refuses to run as root.
    """

    def __init__(self, folder: Path, programs: Path, account: str | None) -> None:
        self.folder = folder
        self._programs = programs
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        self._made: set[str] = set()
        self._free: list[str] = []
        self._run("initdb", "-D", str(folder / "data"), "-N", "-A", "trust", "-U", "tidemill")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        self._process = subprocess.Popen(
            [
                str(self._programs / "postgres"),
                *("-D", str(self.folder / "data")),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ],
            user=self._account,
            group=self._account and pwd.getpwnam(self._account).pw_gid,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
        self._run("pg_isready", "-h", str(self.folder), "-t", "30", repeat=600)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends its connections, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """An empty database; its URL as of `--database`."""
        # Emptying one takes a tenth of the time of making one.
        name = self._free.pop() if self._free else f"test_{secrets.token_hex(6)}"
        if name not in self._made:
            self.sql(f"CREATE DATABASE {name}")
            self._made.add(name)
        yield f"postgresql://tidemill@/{name}?host={self.folder}"
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid(); "
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public",
            name,
        )
        self._free.append(name)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement by psql; what it prints."""
        return self._run(
            *("psql", "-h", str(self.folder), "-U", "tidemill", "-d", database),
            *("-qtAX", "-v", "ON_ERROR_STOP=1", "-c", statement),
        )

    def _run(self, program: str, *arguments: str, repeat: int = 1) -> str:
        import time

        for left in reversed(range(repeat)):
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                user=self._account,
                group=self._account and pwd.getpwnam(self._account).pw_gid,
                capture_output=True,
                text=True,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                timeout=120,
            )
            if done.returncode == 0:
                return done.stdout
            if left:
                time.sleep(0.05)
        raise AssertionError(f"{program} failed: {done.stderr}")


def programs() -> Path | None:
    """The folder of the newest PostgreSQL that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).parent if named else None


@contextmanager
def running() -> Iterator[Postgres]:
    """A server; the test is skipped where PostgreSQL is not installed."""
    where = programs()
    if where is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    account = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="tm-pg-"))
    if account:
        os.chown(folder, pwd.getpwnam(account).pw_uid, pwd.getpwnam(account).pw_gid)
    server = None
    try:
        server = Postgres(folder, where, account)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of a process; they take a database each."""
    with running() as server:
        yield server
