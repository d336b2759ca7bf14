"""What is private is not seen outside."""

from __future__ import annotations

from random import Random

from helpers.gateway import ASK, door
from helpers.scripted_target import ScriptedTarget, chat, refuses, running

CHAT = "/v1/chat/completions"
RULES = {
    "detectors": ["email", "phone", "card"],
    "patterns": {"project": r"\bFALCON-\d+"},
}


def _secrets(random: Random) -> tuple[str, str]:
    """A private text, and the bytes of it that must not go out."""
    digits = "".join(random.choices("0123456789", k=8))
    card = "411111" + digits + "0"
    card += str(next(d for d in range(10) if _luhn(card + str(d))))
    found = random.choice(
        [f"anna{digits}@example.org", f"+49 30 {digits}", card, f"FALCON-{digits}"]
    )
    return found, found


def _luhn(digits: str) -> bool:
    from tidemill.gateway.routing.privacy import luhn

    return luhn(digits)


def test_no_byte_of_what_is_private_goes_outside() -> None:
    random = Random(3)
    inside, outside = ScriptedTarget(chat("in")), ScriptedTarget(chat("out"))
    rows = [{"at": inside, "tags": ["local"]}, {"at": outside, "tags": ["outside"]}]
    secrets: list[str] = []
    answered = {"a": 0, "b": 0}
    routing = {"policy": "round-robin"}  # by speed, a slow moment would leave one of them unused
    with running(inside, outside), door(rows, privacy=RULES, routing=routing) as gateway:
        for number in range(400):
            text, headers = f"hello {number}", {}
            kind = random.randrange(3)
            if kind == 1:
                text, secret = _secrets(random)
                text = f"tell me about {text}, please"
                secrets.append(secret)
            elif kind == 2:
                secrets.append(f"marked{number}x")
                text, headers = f"this is marked{number}x", {"x-tidemill-private": "true"}
            body = {**ASK, "messages": [{"role": "user", "content": text}]}
            answer = gateway.http.post(CHAT, json=body, headers=headers)
            assert answer.status_code == 200
            answered[answer.headers["x-tidemill-target"]] += 1
            assert not kind or answer.headers["x-tidemill-target"] == "a"
    seen = bytes(outside.bytes_in).decode()
    assert not [secret for secret in secrets if secret in seen]
    assert len(secrets) > 200 and answered["b"] > 20
    assert all(secret in bytes(inside.bytes_in).decode() for secret in secrets)


def test_a_member_that_stands_twice_hides_nothing() -> None:
    outside = ScriptedTarget(chat("out"))
    with running(outside), door([{"at": outside, "tags": ["outside"]}], privacy=RULES) as gateway:
        body = b'{"model":"m","messages":"ann@example.org","messages":[{"role":"user"}]}'
        headers = {"content-type": "application/json"}
        assert gateway.http.post(CHAT, content=body, headers=headers).status_code == 200
    assert b"ann@example.org" not in outside.bytes_in


def test_a_private_request_is_refused_rather_than_sent_when_its_targets_are_down() -> None:
    inside, outside = ScriptedTarget(refuses(503)), ScriptedTarget(chat("out"))
    rows = [
        {"at": inside, "tags": ["local"]},
        {"at": outside, "tags": ["outside"]},
        {"at": outside, "tags": ["outside"], "models": ["other"]},
    ]
    with (
        running(inside, outside),
        door(rows, privacy=RULES, fallbacks={"m": ["other"]}, records=True) as gateway,
    ):
        body = {**ASK, "messages": [{"role": "user", "content": "ann@example.org"}]}
        answer = gateway.http.post(CHAT, json=body)
        assert answer.status_code in (403, 429, 503)
        answer = gateway.http.post(CHAT, json={**body, "model": "other"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "private_request")
        assert "ann@" not in answer.text
        assert [r.subject for r in gateway.records] == ["private:email"] * 2
    assert not outside.got


def test_one_mark_of_several_suffices() -> None:
    outside = ScriptedTarget(chat("out"))
    with running(outside), door([{"at": outside, "tags": ["outside"]}]) as gateway:
        for marks, status in ((["0", "1"], 403), (["true", ""], 403), (["0", "false"], 200)):
            headers = [("x-tidemill-private", mark) for mark in marks]
            assert gateway.http.post(CHAT, json=ASK, headers=headers).status_code == status
    assert len(outside.got) == 1
