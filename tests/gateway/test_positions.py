"""Marks in streams: what may go on to the client, and the position that is kept."""

from __future__ import annotations

import pytest

from tidemill.contract.position import Begun, Mark, Told, encoder, position_decoder
from tidemill.gateway.positions import Positions


def _mark(mark: Mark, *, events: bool) -> bytes:
    data = encoder.encode(mark)
    return b": tidemill " + data + b"\n\n" if events else b'{"tidemill":' + data + b"}\n"


def _stream(*, events: bool) -> tuple[list[bytes], list[Mark]]:
    texts = [b"one", b": tidemill {", b'{"tidemill":1}', b"four"]
    ends = b"data: %b\n\n" if events else b'{"response": "%b"}\n'
    marks = [Mark(Begun("ab", 1.0), (Told(0, 0, (1,)),))]
    marks += [Mark(told=(Told(0, 0, (i,)), Told(0, 1, (i, i)))) for i in range(3)]
    return [ends % text for text in texts], marks


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_marks_are_taken_out_however_parts_are_joined(events: bool, size: int) -> None:
    parts, marks = _stream(events=events)
    pieces = [x for p, m in zip(parts, marks, strict=True) for x in (p, _mark(m, events=events))]
    pieces.append(b"closing\n\n")
    found, out = Positions(events=events), b""
    if size == 1:  # an event and its mark come together, as the server writes them
        joined = [b"".join(pieces[i : i + 2]) for i in range(0, len(pieces), 2)]
    else:
        joined = [b"".join(pieces[i : i + size]) for i in range(0, len(pieces), size)]
    for part in joined:
        out += found.feed(part)
    assert found.possible and b"closing" not in out
    assert out + found.rest() == b"".join(parts) + b"closing\n\n"
    position = position_decoder.decode(found.position())
    assert position.begun == marks[0].begun
    assert position.told == [one for mark in marks for one in mark.told]


def test_what_has_no_mark_is_not_sent_when_another_goes_on() -> None:
    parts, marks = _stream(events=True)
    found = Positions(events=True)
    assert found.feed(parts[0] + _mark(marks[0], events=True) + parts[1]) == parts[0]
    assert found.waiting == parts[1] and not found.moved
    found.again()
    assert found.feed(parts[1] + _mark(marks[1], events=True)) == parts[1]
    assert len(position_decoder.decode(found.position()).told) == 3


def test_an_answer_that_has_not_begun_is_begun_anew() -> None:
    found = Positions(events=True)
    assert found.feed(b"data: opening\n\n") == b"" and found.possible
    assert found.position() == b""


def test_streams_without_marks_pass() -> None:
    found = Positions(events=True)
    assert found.feed(b"data: 1\n\n") == b""
    assert found.feed(b"data: 2\n\n") == b"data: 1\n\ndata: 2\n\n"
    assert not found.possible and found.feed(b"data: 3\n\n") == b"data: 3\n\n"


def test_a_server_says_that_it_moves() -> None:
    found = Positions(events=True)
    found.feed(b"data: 1\n\n" + _mark(Mark(Begun("ab", 1.0), moved=True), events=True))
    assert found.moved
