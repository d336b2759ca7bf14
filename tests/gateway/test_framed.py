"""Streams cut between events."""

from __future__ import annotations

import pytest

from tidemill.gateway.framed import Ends, Whole, is_comment, without_usage


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_only_whole_events_come_out(size: int, end: bytes) -> None:
    data = end.join([b"data: one", b"data: two", b"data: three", b""])
    whole, got = Whole(events=True), []
    for begin in range(0, len(data), size):
        if part := whole.feed(data[begin : begin + size]):
            assert part.endswith(end)
            got.append(part)
    assert b"".join(got) == data and whole.rest() == b""


def test_what_is_left_at_the_end() -> None:
    whole = Whole(events=False)
    assert whole.feed(b'{"a":1}\n{"b"') == b'{"a":1}\n'
    assert whole.rest() == b'{"b"'


def test_first_and_last_parts() -> None:
    ends = Ends()
    for number in range(20):
        ends.note(b"<%d>" % number)
    assert ends.text == b"<0><14><15><16><17><18><19>" and ends.parts == 20


def test_events_of_usage_are_left_out() -> None:
    data = b'data: {"choices":[{}]}\n\ndata: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n'
    assert without_usage(data) == b'data: {"choices":[{}]}\n\ndata: [DONE]\n\n'
    assert without_usage(data[:24]) == data[:24]
    other = b'data: {"choices":[],"prompt_filter_results":[]}\n\n'
    assert without_usage(other) == other


def test_comments() -> None:
    assert is_comment(b": keep-alive\n\n") and not is_comment(b": x\n\ndata: 1\n\n")
