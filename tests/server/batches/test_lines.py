"""A batch's input is checked line by line."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tidemill.server.batches import lines
from tidemill.server.batches.lines import LineReader
from tidemill.store.batches import Line

URL = "/v1/chat/completions"


def one(name: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    return {"custom_id": name, "method": "POST", "url": URL, "body": body, **changes}


def read(text: bytes, size: int = 7) -> tuple[list[Line], LineReader]:
    reader = LineReader(URL)
    found = []
    for i in range(0, len(text), size):
        found += reader.feed(text[i : i + size])
    found += reader.end()
    return found, reader


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n  \n"])
def test_lines_are_the_same_however_the_file_is_cut(end: str) -> None:
    names = ["a", "ü", "c" * 512]
    text = "\n".join(json.dumps(one(n), ensure_ascii=False) for n in names) + end
    for size in (1, 7, 10_000):
        found, reader = read(text.encode(), size)
        assert [line.custom_id for line in found] == names
        assert [line.number for line in found] == [1, 2, 3]
        assert not reader.errors and reader.count == 3
        assert json.loads(found[1].body) == one()["body"]


def test_a_byte_order_mark_and_empty_lines_are_no_lines() -> None:
    text = b"\xef\xbb\xbf" + json.dumps(one()).encode() + b"\n\n" + json.dumps(one("b")).encode()
    found, reader = read(text)
    assert not reader.errors and [line.number for line in found] == [1, 3]


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (one(method="GET"), "invalid_method", "method"),
        (one(url="/v1/embeddings"), "invalid_url", "url"),
        (one(""), "invalid_value", "custom_id"),
        (one("x" * 513), "invalid_value", "custom_id"),
        (one(body={"stream": True}), "invalid_value", "body.stream"),
        (one(body=[1]), "invalid_json_line", None),
        (one(custom_id=7), "invalid_json_line", None),
        ({"custom_id": "a"}, "invalid_json_line", None),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    line: dict[str, Any], code: str, param: str | None
) -> None:
    text = json.dumps(one("good")) + "\n" + json.dumps(line)
    _, reader = read(text.encode())
    [error] = reader.errors
    assert (error["code"], error["param"], error["line"]) == (code, param, 2)


def test_a_name_twice() -> None:
    text = "\n".join(json.dumps(one()) for _ in range(2)).encode()
    _, reader = read(text)
    assert [(e["code"], e["line"]) for e in reader.errors] == [("duplicate_custom_id", 2)]


def test_hostile_files_are_refused_and_nothing_else_happens() -> None:
    choose = random.Random(3)
    for _ in range(300):
        text = bytes(
            choose.choices(b'{}[]",:\n\\u0a\xc3\xff0 truefalsenull', k=choose.randint(0, 60))
        )
        found, reader = read(text, choose.randint(1, 9))
        assert reader.errors and not found
        assert all(error["message"] for error in reader.errors)
    _, reader = read(b"[" * 100_000, 4096)
    assert reader.errors


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 3)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200)
    text = "\n".join(json.dumps(one(str(i))) for i in range(6)).encode()
    found, reader = read(text)
    assert len(found) == 3 and [e["code"] for e in reader.errors] == ["too_many_lines"]
    _, reader = read(json.dumps(one("x" * 400)).encode() + b"\n")
    assert reader.errors[0]["code"] == "line_too_long"
    monkeypatch.setattr(lines, "MAX_LINES", 1000)
    _, reader = read(b"nonsense\n" * 500)
    assert len(reader.errors) == lines.MAX_ERRORS
