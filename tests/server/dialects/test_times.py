"""How long a request took: as the engine measured it, else as its tokens came."""

from __future__ import annotations

import pytest

from tidemill.contract.request import RequestTimings
from tidemill.server.dialects.times import Times


def test_the_engine_s_own_times_are_taken_where_it_told_them() -> None:
    came = Times(arrival=1.0, leased=2.0, first=9.0, last=9.1)
    told = came.measured(RequestTimings(2.5, 3.0, 5.0, 8.0))
    assert (told.prompt_seconds, told.output_seconds) == (2.0, 3.0)
    assert (told.arrival, told.leased) == (1.0, 2.0)
    for nothing in (None, RequestTimings(2.5, 3.0, 0.0, 8.0)):
        assert came.measured(nothing) == came
    assert came.prompt_seconds == 7.0 and came.output_seconds == pytest.approx(0.1)


def test_rates() -> None:
    times = Times(0.0, 1.0, first=1.5, last=3.5)
    found = times.timings(prompt=12, cached=2, output=8)
    assert (found["cache_n"], found["prompt_n"], found["predicted_n"]) == (2, 10, 8)
    assert (found["prompt_ms"], found["predicted_ms"]) == (500.0, 2000.0)
    assert (found["prompt_per_second"], found["prompt_per_token_ms"]) == (20.0, 50.0)
    assert (found["predicted_per_second"], found["predicted_per_token_ms"]) == (4.0, 250.0)
    unknown = Times(0.0, 1.0).timings(0, 0, 0)
    assert unknown["prompt_per_second"] == unknown["predicted_per_token_ms"] == 0.0
