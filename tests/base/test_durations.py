"""Durations as people write them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidemill.base.durations import stay_seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("0", 0.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("7d", 604800.0),
        ("1d12h", 129600.0),
        ("1.5h", 5400.0),
        ("300ms", 0.3),
        ("2h45m10s", 9910.0),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1m", math.inf),
        ("forever", math.inf),
        (1e12, math.inf),
        ("100000000h", math.inf),
    ],
)
def test_what_people_write(written: Any, seconds: float) -> None:
    assert stay_seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize("wrong", ["", "m", "soon", "5 m", "5x", True, None, [], "nan", "inf"])
def test_what_is_no_duration(wrong: Any) -> None:
    with pytest.raises(ValueError):
        stay_seconds(wrong)
