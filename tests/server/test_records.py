"""What is said of records of requests that cannot be kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from helpers.live_server import fake_context
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.prices import Prices
from tidemill.server.records import keep_records
from tidemill.store.location import location_of


@pytest.mark.parametrize(("name", "said"), [("file", True), ("folder/new", False)])
def test_a_home_that_cannot_be_written_is_said_at_the_start(
    name: str, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / name
    location = location_of(None, home)
    assert location is not None
    context = fake_context(ScriptedEngine())
    context.open_database(location)
    with caplog.at_level(logging.ERROR):
        keep_records(context, home, Prices())
    assert ("answered and not counted" in caplog.text) is said
    assert not (tmp_path / "folder").exists()
