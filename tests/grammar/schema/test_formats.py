"""Formats: leap seconds, formats expressed as patterns, ignored formats."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.schema_language import allowed, allows, rejection

SECONDS = [
    ("23:59:60Z", True),
    ("23:59:60.5z", True),
    ("15:59:60-08:00", True),
    ("00:59:60+01:00", True),
    ("23:59:60+00:00", True),
    ("22:59:60Z", False),
    ("23:58:60Z", False),
    ("23:59:60+01:00", False),
    ("23:59:60-08:00", False),
    ("12:30:60Z", False),
    ("12:30:59Z", True),
    ("00:00:00.25+05:30", True),
]


@pytest.mark.parametrize(("text", "valid"), SECONDS)
def test_second_60(text: str, valid: bool) -> None:
    """RFC 3339, 5.7: a leap second is the last of a UTC day."""
    assert allows({"type": "string", "format": "time"}, f'"{text}"') is valid
    assert allows({"type": "string", "format": "date-time"}, f'"1998-12-31T{text}"') is valid


NAMES: list[tuple[str, list[str], list[str]]] = [
    ("uuid4", ["123e4567-e89b-42d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-426614174000"]),
    ("ipvanyaddress", ["10.0.0.1", "::1"], ["10.0.0", "x"]),
    ("base64", ["", "YWI=", "YQ==", "YWJj"], ["YWI", "Y", "YW-_"]),
    ("byte", ["YWJj"], ["a b"]),
    ("base64url", ["YW-_", "YWI", "YWI=", "YQ"], ["YW+/", "Y"]),
    ("json-pointer", ["", "/a/b~0~1"], ["a", "/~2"]),
    ("relative-json-pointer", ["0", "1/a", "2#"], ["", "01", "/a"]),
    ("path", ["/tmp/x", ""], []),
    ("password", ["x"], []),
]


@pytest.mark.parametrize(("name", "good", "bad"), NAMES, ids=[n[0] for n in NAMES])
def test_names(name: str, good: list[str], bad: list[str]) -> None:
    texts = [f'"{text}"' for text in (*good, *bad)]
    assert allowed({"type": "string", "format": name}, texts) == texts[: len(good)]


@pytest.mark.parametrize("name", ["phone", "regex", "ipv4network", 5])
def test_what_is_not_known_is_rejected(name: Any) -> None:
    assert rejection({"properties": {"a": {"format": name}}})[0] == "s.properties.a.format"


def test_what_a_pattern_says_already() -> None:
    """zod writes both."""
    assert rejection({"type": "string", "format": "ulid"})[0] == "s.format"
    assert allows({"type": "string", "format": "ulid", "pattern": "^[0-9A-Z]{3}$"}, '"01A"')
