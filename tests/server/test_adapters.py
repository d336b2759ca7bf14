"""Adapters over HTTP: their names in every dialect, what may be asked and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.access.keys import Key, NoKeys, Role, digest_of
from tidemill.server.access.policy import Policy
from tidemill.server.access.security import Security

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
KEYS = {
    "admin": (Role.ADMIN, Policy()),
    "all": (Role.USER, Policy()),
    "base": (Role.USER, Policy(models=("tiny",))),
    "verse": (Role.USER, Policy(models=("verse",))),
    "pattern": (Role.USER, Policy(models=("tiny:*",))),
}


class Keys(NoKeys):
    """Keys by their secrets."""

    closed = True

    async def find(self, token: str) -> Key | None:
        """The key that is called as its secret."""
        role, policy = KEYS[token]
        return Key(token, digest_of(token), role, policy=policy)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(fake_context(engine), Security(keys=Keys())) as url:
        yield url


def http(url: str, key: str = "admin") -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)


def load(url: str, name: str = "verse", path: str = "/adapters/one", **more: Any) -> httpx.Response:
    with http(url) as client:
        body = {"lora_name": name, "lora_path": path, **more}
        return client.post("/v1/load_lora_adapter", json=body)


def asked(engine: ScriptedEngine) -> list[tuple[str, float]]:
    """Adapters of the latest request, and their scales."""
    return [(use.name, use.scale) for use in engine.requests[-1].adapters]


def test_an_adapter_has_a_name_until_it_is_unloaded(url: str, engine: ScriptedEngine) -> None:
    with http(url) as client:
        base = client.get("/v1/models").json()["data"][0]["id"]
        assert client.post("/v1/chat/completions", json={**CHAT, "model": "verse"}).is_error
        loaded = load(url)
        assert loaded.text == "Success: LoRA adapter 'verse' added successfully."
        listed = client.get("/v1/models").json()["data"]
        assert [(m["id"], m.get("parent")) for m in listed] == [(base, None), ("verse", base)]
        assert client.get("/v1/models/verse").json()["parent"] == base
        for name in ("verse", f"{base}:verse"):
            answer = client.post("/v1/chat/completions", json={**CHAT, "model": name})
            assert answer.json()["model"] == name and asked(engine) == [("verse", 1.0)]
        client.post("/v1/chat/completions", json={**CHAT, "model": base})
        assert asked(engine) == []
        gone = client.post("/v1/unload_lora_adapter", json={"lora_name": "verse"})
        assert gone.status_code == 200 and engine.dropped
        again = client.post("/v1/unload_lora_adapter", json={"lora_name": "verse"})
        assert again.status_code == 404 and again.json()["error"]["param"] == "lora_name"
        assert client.post("/v1/chat/completions", json={**CHAT, "model": "verse"}).is_error


def test_a_replaced_adapter_is_another_for_new_requests(url: str, engine: ScriptedEngine) -> None:
    load(url)
    with http(url) as client:
        prints, digests = [], []
        for _ in range(2):
            answer = client.post("/v1/chat/completions", json={**CHAT, "model": "verse"}).json()
            prints.append(answer["system_fingerprint"])
            digests.append(engine.requests[-1].adapters[0].digest)
            load(url, path="/adapters/two")
        assert len(set(prints)) == len(set(digests)) == 2
        assert engine.dropped == [digests[0]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"lora_name": "a:b", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "a\n", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "x" * 129, "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "tiny", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "a", "lora_path": " "}, "lora_path"),
        ({"lora_name": "a", "lora_path": "/x\0"}, "lora_path"),
        ({"lora_name": "a", "lora_path": "/bad"}, "lora_path"),
        ({"lora_name": "a", "lora_path": "/x", "base_model_name": "none"}, "model"),
        ({"lora_name": "a"}, "lora_path"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_loaded(
    url: str, body: dict[str, Any], field: str
) -> None:
    with http(url) as client:
        if body["lora_name"] == "tiny":
            body = {**body, "lora_name": client.get("/v1/models").json()["data"][0]["id"]}
        answer = client.post("/v1/load_lora_adapter", json=body)
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]["param"] == field, answer.text
        assert len(client.get("/v1/models").json()["data"]) == 1


def test_every_servers_way_to_ask(url: str, engine: ScriptedEngine) -> None:
    load(url)
    load(url, "ripple", "/adapters/two")
    with http(url) as client:
        for path, body, wanted in (
            ("/v1/completions", {"prompt": "a", "model": "ripple"}, [("ripple", 1.0)]),
            ("/v1/completions", {"prompt": "a", "lora_path": "ripple"}, [("ripple", 1.0)]),
            ("/v1/responses", {"input": "a", "model": "verse"}, [("verse", 1.0)]),
            ("/v1/messages", {**CHAT, "model": "verse"}, [("verse", 1.0)]),
            ("/api/chat", {"messages": CHAT["messages"], "model": "verse"}, [("verse", 1.0)]),
            ("/v1/embeddings", {"input": "a", "model": "verse"}, [("verse", 1.0)]),
            (
                "/completion",
                {"prompt": "a", "lora": [{"id": 1, "scale": 0.5}, {"id": 0, "scale": -2}]},
                [("ripple", 0.5), ("verse", -2.0)],
            ),
            ("/completion", {"prompt": "a", "lora": [{"id": 0, "scale": 0}]}, []),
            ("/v1/chat/completions", {**CHAT, "lora": [{"id": "verse"}]}, [("verse", 1.0)]),
            ("/generate", {"inputs": "a", "parameters": {"adapter_id": "verse"}}, [("verse", 1.0)]),
            (
                "/v2/models/ripple/generate",
                {"text_input": "a", "parameters": {"max_tokens": 2}},
                [("ripple", 1.0)],
            ),
        ):
            answer = client.post(path, json={"max_tokens": 2, **body} if "v1/c" in path else body)
            assert answer.status_code == 200, (path, answer.text)
            assert asked(engine) == wanted, path


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"lora": [{"id": 9}]}, "lora"),
        ({"lora": [{"id": "none"}]}, "lora"),
        ({"lora": [{"id": 0}, {"id": 0}]}, "lora"),
        ({"lora": [{"id": 0, "scale": 1e9}]}, "lora"),
        ({"lora": [{"id": 0}], "lora_path": "verse"}, "lora"),
        ({"lora": [{"id": 0}], "model": "verse"}, "model"),
        ({"lora_path": "none"}, "lora_path"),
        ({"model": "verse:verse"}, "model"),  # an adapter has none of its own
    ],
)
def test_wrong_ways_to_ask(url: str, body: dict[str, Any], field: str) -> None:
    load(url)
    with http(url) as client:
        answer = client.post("/v1/chat/completions", json={**CHAT, **body})
        assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == field, (
            answer.text
        )


def test_scales_for_requests_that_name_none(url: str, engine: ScriptedEngine) -> None:
    load(url)
    load(url, "ripple", "/adapters/two")
    with http(url) as client:
        listed = client.get("/lora-adapters").json()
        assert [(one["id"], one["path"], one["scale"]) for one in listed] == [
            (0, "verse", 0.0),
            (1, "ripple", 0.0),
        ]
        assert client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}]).status_code == 200
        client.post("/v1/chat/completions", json=CHAT)
        assert asked(engine) == [("ripple", 0.5)]
        client.post("/completion", json={"prompt": "a", "lora": []})
        assert asked(engine) == []
        client.post("/v1/chat/completions", json={**CHAT, "model": "verse"})
        assert asked(engine) == [("verse", 1.0)]
        for wrong in ({}, [{"scale": 1}], [{"id": 0, "more": 1}], [{"id": 7}]):
            assert client.post("/lora-adapters", json=wrong).status_code == 400
        assert client.post("/lora-adapters", json=[]).status_code == 200
        client.post("/v1/chat/completions", json=CHAT)
        assert asked(engine) == []


def test_keys_are_allowed_adapters_by_their_names(url: str) -> None:
    load(url)
    load(url, "ripple", "/adapters/two")
    allowed = {
        "all": {"tiny", "verse", "ripple", "tiny:verse", "lora"},
        "base": {"tiny"},
        "verse": {"verse", "tiny:verse"},
        "pattern": {"verse", "ripple", "tiny:verse"},
    }
    with http(url) as client:
        base = client.get("/v1/models").json()["data"][0]["id"]
    assert base == "tiny"
    for key, names in allowed.items():
        with http(url, key) as client:
            found = set()
            for model in ("tiny", "verse", "ripple", "tiny:verse"):
                answer = client.post("/v1/chat/completions", json={**CHAT, "model": model})
                assert answer.status_code in (200, 403)
                found |= {model} if answer.status_code == 200 else set()
            body = {**CHAT, "model": "tiny", "lora": [{"id": 0}]}
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code in (200, 403)
            found |= {"lora"} if answer.status_code == 200 else set()
            assert found == names, key
            listed = {one["id"] for one in client.get("/v1/models").json()["data"]}
            assert listed == {n for n in names if n in ("tiny", "verse", "ripple")}, key
            body = {"lora_name": "x", "lora_path": "/x"}
            assert client.post("/v1/load_lora_adapter", json=body).status_code == 403
            assert client.post("/lora-adapters", json=[]).status_code == 403
