"""What makes a request private, and who may see it then."""

from __future__ import annotations

import pytest

from tidemill.gateway.routing.privacy import DETECTORS, OPEN, Rules, custom, found, judge

LOCAL, EU, OUT = frozenset({"local"}), frozenset({"eu"}), frozenset({"outside"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("write to ann.b+c@mail.example.org, please", ["email"]),
        ("call +49 (30) 1234-5678", ["phone"]),
        ("my card: 4111 1111 1111 1111.", ["card"]),
        ("4111-1111-1111-1112", []),
        ("4111\u20101111\u20101111\u20101111", ["card"]),
        ("ann\uff20example.org", ["email"]),
        ("ann\u200b@exam\u00adple.org", ["email"]),
        ("caf\u00e9 @ home", []),
        ("user@ host", []),
        ("2026-11-27 12:30:45 and 123456", []),
    ],
)
def test_detectors(text: str, names: list[str]) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}
    assert found(body, DETECTORS.items()) == names


def test_names_of_members_numbers_and_custom_patterns() -> None:
    rules = [("project", custom(r"\bFALCON-\d+"))]
    assert found({"metadata": {"FALCON-7": 1}}, rules) == ["project"]
    assert found({"metadata": {"FALCON": 1}}, rules) == []
    for number in (4111111111111111, 4111111111111111.0):
        assert found({"metadata": {"number": number}}, DETECTORS.items()) == ["card"]


def test_a_text_that_is_cut_in_parts() -> None:
    parts = [{"type": "text", "text": "ann@exam"}, {"type": "text", "text": "ple.org"}]
    assert found({"content": parts}, DETECTORS.items()) == ["email"]


def test_an_open_request_may_go_anywhere() -> None:
    assert judge({"prompt": "hi"}, Rules(DETECTORS)) is OPEN
    assert OPEN.permits(OUT)


def test_each_mark_confines_a_request() -> None:
    body = {"prompt": "ann@example.org"}
    for verdict, why in (
        (judge(body, Rules(DETECTORS)), ("email",)),
        (judge({}, Rules(), marked=True), ("marked",)),
        (judge({}, Rules(always=True)), ("rule",)),
        (judge(body, Rules(DETECTORS), marked=True), ("marked", "email")),
    ):
        assert verdict.because == why
        assert verdict.permits(LOCAL) and not verdict.permits(OUT) and not verdict.permits(EU)


def test_a_key_is_confined_to_its_residencies_and_a_private_request_to_both() -> None:
    verdict = judge({}, Rules(), residencies=["eu"])
    assert verdict.permits(EU) and not verdict.permits(LOCAL)
    verdict = judge({}, Rules(), marked=True, residencies=["eu"])
    assert not any(verdict.permits(tags) for tags in (EU, LOCAL, OUT))
