"""Values of --speculate, and what then drafts for a request."""

from __future__ import annotations

import pytest

from tidemill.contract.speculation import Setting, available, drafters_of, read_setting


def test_values_of_the_setting() -> None:
    assert read_setting("off") == Setting("off", ("lookup",))
    assert read_setting("auto") == Setting("auto", ("lookup",))
    assert read_setting("lookup") == Setting("lookup", ("lookup",))
    assert read_setting("draft=a/b") == Setting("auto", ("lookup", "draft"), "a/b")
    assert read_setting("skip") == Setting("auto", ("lookup", "skip"))
    assert read_setting("mtp") == Setting("auto", ("lookup", "mtp"))
    assert read_setting("eagle=x") == Setting("auto", ("lookup", "eagle"), "x")
    told = "off, auto, lookup, draft=MODEL, medusa=PATH, skip, eagle=PATH, mtp"
    assert ", ".join(available()) == told
    for bad in ("", "on", "draft", "draft=", "skip=2", "off=", "mtp=x", "lookup=1", "OFF"):
        with pytest.raises(ValueError, match=f"must be one of {told}"):
            read_setting(bad)


def test_what_drafts_for_a_request() -> None:
    loaded = ("draft", "lookup")
    assert drafters_of("auto", loaded, None, expected=False) == ("lookup", "draft")
    assert drafters_of("off", loaded, None, expected=False) == ()
    assert drafters_of("off", loaded, None, expected=True) == ("lookup",)
    assert drafters_of("off", loaded, "auto", expected=False) == ("lookup", "draft")
    assert drafters_of("auto", loaded, "draft", expected=True) == ("draft",)
    assert drafters_of("auto", loaded, "off", expected=True) == ()
    assert drafters_of(None, loaded, "auto", expected=True) == ()
