"""The time limit of a rendering counts its own CPU time only."""

from __future__ import annotations

import pytest

from tidemill.text import bounds
from tidemill.text.bounds import Budget, TimeExceeded


def test_time_in_which_others_compute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 100.0, "own": 7.0}
    monkeypatch.setattr(bounds, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(bounds, "thread_cpu", lambda: clock["own"])
    budget = Budget(2.0)
    for _ in range(5):
        clock["now"] += 10.0
        clock["own"] += 0.3
        budget.tick()
    clock["own"] += 0.6
    budget.tick()  # 0.5 s were left at the last check
    clock["now"] += 0.6
    with pytest.raises(TimeExceeded, match="longer than 2 s"):
        budget.tick()


def test_a_template_that_never_ends_is_stopped() -> None:
    budget = Budget(0.05)
    with pytest.raises(TimeExceeded):
        while True:
            budget.tick()
