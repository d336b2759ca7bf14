"""Backups of a database that is being used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.engine import make_url

from tidemill.base.errors import TidemillError, config_error
from tidemill.store.location import Location

PAGES = 1024
"""Copied at once; between, writers go on."""


def back_up(
    location: Location, target: Path, advance: Callable[[int, int], None] = lambda left, all_: None
) -> int:
    """Copy a database into a file that does not exist yet; returns its bytes.

    SQLite: by its online backup, a consistent copy that `--database sqlite:///...` opens.
    PostgreSQL: by ``pg_dump --format=custom``, for ``pg_restore``.

    Args:
        location: the database.
        target: the file; it is whole or not there.
        advance: called with the pages left and all pages (SQLite).

    Raises:
        TidemillError: kind CONFIG: the file exists, or pg_dump is missing; or it failed.
    """
    if target.exists():
        raise config_error("target", f"{target} exists; give another name")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        if location.path is not None:
            _copy(location.path, draft, advance)
        else:
            _dump(location, draft)
        os.link(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, target: Path, advance: Callable[[int, int], None]) -> None:
    if not source.exists():
        raise config_error("database", f"{source} does not exist")
    # Journal and locks are those of the file that is read: through SQLite, never by copying bytes.
    reading = sqlite3.connect(f"file:{source}?mode=rw", uri=True, timeout=30)
    writing = sqlite3.connect(target)
    try:
        reading.backup(writing, pages=PAGES, progress=lambda _, left, pages: advance(left, pages))
        writing.execute("PRAGMA journal_mode=DELETE")
        [(said,)] = writing.execute("PRAGMA quick_check(1)").fetchall()
        if said != "ok":
            raise config_error("database", f"the copy of {source.name} is damaged: {said}")
    finally:
        writing.close()
        reading.close()


def _dump(location: Location, target: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        raise config_error(
            "database", "pg_dump is not installed: it is in PostgreSQL's client package"
        )
    url = make_url(location.url)
    # The password goes by the environment: arguments can be read by every user of the machine.
    environment = {**os.environ, "PGPASSWORD": url.password or ""}
    plain = url.set(drivername="postgresql", password=None).render_as_string()
    done = subprocess.run(
        [program, "--format=custom", f"--file={target}", plain],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()
        raise _failed(reason[-1] if reason else f"exit code {done.returncode}")


def _failed(why: str) -> TidemillError:
    return config_error("database", f"pg_dump: {why}")
