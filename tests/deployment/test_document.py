"""What is wrong with a deployment file as TOML is said with its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.base.errors import ErrorKind
from tidemill.deployment.document import MAX_BYTES, parse_document, read_document
from tidemill.deployment.problems import DeploymentError


def _problems(data: bytes) -> list[str]:
    with pytest.raises(DeploymentError) as caught:
        parse_document(data, "t.toml", Path("/"))
    assert caught.value.kind is ErrorKind.CONFIG
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (b"a = 1\nb =\n", "t.toml:2:4: is not valid TOML here: invalid value"),
        (b"a = 1\n\nb = [1", "t.toml:3:7: is not valid TOML here: unclosed array"),
        (b"a = '\nb", "t.toml:2:2: is not valid TOML here"),
        (b'a = 1\n b = "\xff"', "t.toml:2:7: is not UTF-8 here"),
        (b"\xef\xbb\xbfa = \xff", "t.toml:1:5: is not UTF-8 here"),
        (b"a = 1\na = 2", "t.toml:2:1: a: is set twice, first on line 1"),
        (b"[a]\nb = 1\n[a]", "t.toml:3:2: a: is set twice, first on line 1"),
        (b"a = 1\nb = " + b"9" * 5000, "t.toml:2:5: is no number that can be read"),
        (b"a = 1\nb = " + b"[" * 100_000, "t.toml:2:37: is nested more than 32 levels deep"),
        (b"a." * 50_000 + b"b = 1", "t.toml:1:65: is nested more than 32 levels deep"),
        (b"#" * (MAX_BYTES + 1), "t.toml: is larger than"),
    ],
)
def test_places_of_syntax_errors(data: bytes, start: str) -> None:
    [problem] = _problems(data)
    assert problem.startswith(start)


def test_every_key_that_is_set_twice_is_named() -> None:
    found = _problems(b"a = 1\n[s]\nx = 1\nx = 2\n[t]\ny = 1\ny = 2\n")
    assert [one.split(": ")[:2] for one in found] == [
        ["t.toml:4:1", "s.x"],
        ["t.toml:7:1", "t.y"],
    ]


def test_an_empty_document_and_one_with_a_byte_order_mark() -> None:
    assert parse_document(b"", "t", Path("/")).tree == {}
    assert parse_document(b"\xef\xbb\xbfa=1", "t", Path("/")).tree == {"a": 1}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", "a\0b"):
        with pytest.raises(DeploymentError, match="cannot be read"):
            read_document(path)
