"""E-mail addresses and phone numbers stay with the client, in streams as well."""

from __future__ import annotations

import random

import pytest

from tidemill.pipelines.examples.redact import Redactor, Restorer

LETTER = "Write to ann@example.org or +49 (30) 1234-5678; ann@example.org prefers 030/9876543."


def test_equal_ones_have_one_placeholder_and_all_come_back() -> None:
    redactor = Redactor()
    sent = redactor.redact(LETTER)
    assert sent == "Write to [EMAIL_1] or [PHONE_1]; [EMAIL_1] prefers [PHONE_2]."
    restorer = Restorer(redactor.originals)
    assert restorer.push(sent) + restorer.finish() == LETTER


@pytest.mark.parametrize(
    "text", ["2026-11-26", "26.11.2026", "192.168.100.200", "room 123456", "a1"]
)
def test_dates_addresses_and_short_numbers_stay(text: str) -> None:
    assert Redactor().redact(text) == text


def test_a_placeholder_of_the_clients_own_is_left_alone() -> None:
    redactor = Redactor(["what is [EMAIL_1]?"])
    assert redactor.redact("a@b.org [EMAIL_1]") == "[EMAIL_2] [EMAIL_1]"


def test_contents_parts_and_tool_calls_are_redacted() -> None:
    redactor = Redactor()
    call = {"id": "1", "function": {"name": "mail", "arguments": '{"to": "a@b.org"}'}}
    found = redactor.messages(
        [
            {"role": "user", "content": [{"type": "text", "text": "mail a@b.org"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    )
    assert found[0]["content"][0]["text"] == "mail [EMAIL_1]"
    assert "a@b.org" not in str(found) and found[1]["tool_calls"][0]["id"] == "1"


def test_any_cut_of_a_stream_restores_the_same_and_holds_back_no_more_than_a_placeholder() -> None:
    redactor = Redactor()
    for number in range(12):
        redactor.redact(f"user{number}@example.org")
    sent = "[[EMAIL_1] [EMAIL_12], [EMAIL_1, [EMAIL_99] [PHONE_1] [x] [EMAIL_10][EMAIL_2]["
    whole = Restorer(redactor.originals)
    expected = whole.push(sent) + whole.finish()
    assert expected.startswith("[user0@example.org user11@example.org, [EMAIL_1, [EMAIL_99]")
    draw = random.Random(1)
    for _ in range(300):
        restorer, found, start = Restorer(redactor.originals), "", 0
        while start < len(sent):
            end = start + draw.randint(1, 7)
            found += restorer.push(sent[start:end])
            start = end
            assert len(restorer.held) < len("[EMAIL_12]")
        assert found + restorer.finish() == expected
