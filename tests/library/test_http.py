"""How long a busy server is waited for, and what is said of it."""

from __future__ import annotations

import email.utils
import time
from threading import Event

import httpx
import pytest

from tidemill.base.errors import TidemillError
from tidemill.library import http


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    found = http.interruption(429, "hub", httpx.Headers(headers))
    assert found is not None and found.wait == seconds
    assert http.interruption(404, "hub", httpx.Headers(headers)) is None


def test_a_wait_until_a_date() -> None:
    date = email.utils.formatdate(time.time() + 100, usegmt=True)
    found = http.interruption(503, "hub", httpx.Headers({"Retry-After": date}))
    assert found is not None and found.wait is not None and 90 < found.wait <= 101


def test_progress_begins_the_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_WAIT_SECONDS", 0.0)
    patience = http.Patience("f", Event(), lambda line: None)

    def tries() -> int:
        count = 0
        while True:
            try:
                patience.wait(http.Interrupted("gone"))
            except TidemillError as error:
                assert error.retryable and "f: gone; try again later" in error.message
                return count
            count += 1

    assert tries() == 4
    patience.progress()
    assert tries() == 7


def test_a_redirect_away_from_https() -> None:
    first = httpx.Response(302, request=httpx.Request("GET", "https://a.invalid/x"))
    last = httpx.Response(200, request=httpx.Request("GET", "http://b.invalid/x"), history=[first])
    with pytest.raises(TidemillError, match=r"a\.invalid leads to an address that is not https"):
        http.check_response(last, "x")
