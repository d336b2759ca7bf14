"""The page in Debian's Chromium, before a real server with the bundled model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.real_server import RealServer
from helpers.web_page import Page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

collect_ignore = [] if os.environ.get("TIDEMILL_UI_TESTS") == "all" else ["test_smooth.py"]
"""What takes long, or measures times, is for `make test-ui`."""

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with its module: while it is open, an event loop runs in this thread, and no test
    could run another."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        # Root, as in a container, has no sandbox of processes.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server without keys, with a database."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    home = tmp_path_factory.mktemp("home")
    with RealServer(
        "--database", f"sqlite:///{home / 'tidemill.db'}", environment={"TIDEMILL_HOME": str(home)}
    ) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: RealServer) -> Iterator[Page]:
    """The page in a new profile; what its console says in error fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, locale="en-GB")
    context.set_default_timeout(30_000)
    opened = Page(context.new_page(), server.url)
    opened.open()
    yield opened
    context.close()
    assert not opened.errors, opened.errors


@pytest.fixture
def screenshots() -> Path | None:
    """Where screenshots are kept, where somebody wants them."""
    folder = os.environ.get("TIDEMILL_SCREENSHOTS")
    return Path(folder) if folder else None
