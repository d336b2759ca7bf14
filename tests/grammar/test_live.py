"""The memory limit of compiled grammars of requests in flight."""

from __future__ import annotations

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.grammar.live import LiveGrammars


class Holder:
    """Lives, and then does not."""


def test_what_is_held_counts_as_long_as_its_holder_lives() -> None:
    live = LiveGrammars(100)
    one, two = Holder(), Holder()
    live.hold(one, "a", 60)
    live.hold(two, "a", 40)
    with pytest.raises(TidemillError, match="retry later") as caught:
        live.hold(Holder(), "a", 1)
    assert caught.value.kind is ErrorKind.OVERLOADED and caught.value.retryable
    del one
    assert live.total == 40
    live.hold(two, "a", 60)
    del two
    assert live.total == 0


def test_a_tenant_that_holds_nothing_has_no_share() -> None:
    live = LiveGrammars(100)
    gone, hog, other = Holder(), Holder(), Holder()
    live.hold(gone, "a", 60)
    del gone
    live.hold(hog, "b", 100)
    live.hold(other, "c", 50)  # half: there are two


def test_no_tenant_keeps_another_out() -> None:
    live = LiveGrammars(100)
    hog, other = Holder(), Holder()
    live.hold(hog, "a", 100)
    live.hold(other, "b", 50)
    for tenant in ("a", "b"):
        with pytest.raises(TidemillError):
            live.hold(other, tenant, 1)
