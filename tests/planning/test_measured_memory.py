"""What is planned beside what a server takes: one small case of `make plan-memory`."""

from __future__ import annotations

from pathlib import Path

import pytest
from load.plan_memory import Case, measure


def test_a_server_takes_what_was_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    found = measure(Case(None, 2048, 4), tmp_path)
    # Mostly the processes themselves, which differ by a few MiB between Pythons.
    assert -0.12 < found.error < 0.15
    assert found.planned["cache_bytes"] == 4 * 2048 * found.planned["kv_bytes_per_token"]
