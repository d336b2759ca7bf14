"""Shared test set-up: allowed skips, and paths of optional data."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.databases import database_url, location
from helpers.postgres import postgres
from helpers.shared_data import SHARED_DATA
from hypothesis import HealthCheck, settings

# How long drawing an example takes says something of the machine's other work, not of the code.
settings.register_profile("shared", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared")

TESTS = Path(__file__).parent

__all__ = ["database_url", "location", "postgres"]  # fixtures for all tests


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Undo `set_up_logging`: it ends propagation, and pytest then captures such a logger on its
    own, so that a later test in this process would see no line or each line twice."""
    yield
    root = logging.getLogger("tidemill")
    if not root.propagate:
        root.propagate = True
        root.handlers.clear()
        root.setLevel(logging.NOTSET)
        logging.raiseExceptions = True


def _allowed_skips() -> list[str]:
    lines = (TESTS / "skips.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class _SkipPolice:
    """Fails a CI run that skipped a test for a reason not listed in tests/skips.txt."""

    def __init__(self) -> None:
        self.allowed = _allowed_skips()
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._judge(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._judge(report.nodeid, report.longrepr)

    def _judge(self, nodeid: str, longrepr: object) -> None:
        reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
        if not any(allowed in reason for allowed in self.allowed):
            self.unlisted.append(f"{nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_worker = hasattr(session.config, "workerinput")
        if self.unlisted and os.environ.get("CI") and not is_worker:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unlisted:
            terminalreporter.section("skips not listed in tests/skips.txt (CI fails on them)")
            for line in self.unlisted:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background jobs, and all they start, ignore Ctrl-C, which tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests of gRPC leave its threads behind, whose hooks would run in every process that is forked.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Whoever runs the tests may have models of their own; this library is empty.
    os.environ["TIDEMILL_HOME"] = str(TESTS / "fixtures" / "no-library")
    os.environ["TIDEMILL_DATABASE"] = "none"  # servers of tests that say nothing of it
    config.pluginmanager.register(_SkipPolice(), "skip-police")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a group share what must not be there twice; pytest-xdist marks their ids with it."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid} has a group and pytest-xdist cannot tell: take the pytest "
                "that pyproject.toml asks for"
            )


@pytest.fixture(scope="session")
def shared_vocab() -> Path:
    """Folder of real vocabularies; a fresh clone does not have it."""
    folder = SHARED_DATA / "vocab"
    if not folder.is_dir():
        pytest.skip("shared data is absent: real vocabularies")
    return folder
