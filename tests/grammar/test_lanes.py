"""Round-robin over tenants' jobs."""

from __future__ import annotations

import threading

import pytest

from tidemill.grammar.lanes import Lane


def test_tenants_take_turns_each_in_its_own_order() -> None:
    lane, go, done = Lane("t"), threading.Event(), []
    lane.submit("a", lambda: go.wait() or None)
    for i in range(3):
        lane.submit("a", lambda i=i: done.append(f"a{i}"))  # type: ignore[misc]
    for i in range(2):
        lane.submit("b", lambda i=i: done.append(f"b{i}"))  # type: ignore[misc]
    lane.submit("c", lambda: done.append("c0"))
    go.set()
    lane.close(wait=True)
    assert done == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_closing_drops_what_waits() -> None:
    lane, go, begun, done = Lane("t"), threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        go.wait()

    lane.submit("a", first)
    lane.submit("a", lambda: done.append(1))
    begun.wait()
    lane.close()
    go.set()
    lane.close(wait=True)
    assert not done
    with pytest.raises(RuntimeError):
        lane.submit("a", lambda: None)
