"""Keys of the database over HTTP: which models, how much, and from where."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.access.keys import Key, NoKeys, Role, digest_of
from tidemill.server.access.policy import Policy
from tidemill.server.access.security import Security

DIALECTS = Path(__file__).parents[2] / "src/tidemill/server/dialects"


class Keys(NoKeys):
    """Keys by their secrets."""

    closed = True

    def __init__(self, **policies: Policy) -> None:
        self._policies = policies

    async def find(self, token: str) -> Key | None:
        """The key that is called as its secret."""
        policy = self._policies.get(token)
        return policy and Key(token, digest_of(token), Role.USER, policy=policy)


POLICIES = {
    "all": Policy(),
    "some": Policy(models=("other-*",)),
    "few": Policy(max_tokens=3),
    "far": Policy(networks=(ipaddress.ip_network("10.0.0.0/8"),)),
    "near": Policy(networks=(ipaddress.ip_network("127.0.0.0/8"),)),
    "chat": Policy(routes=("/v1/chat/*",)),
    "eu": Policy(residency="eu"),
    "us": Policy(residency="us"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    security = Security(keys=Keys(**POLICIES), region="eu")
    with serving(fake_context(ScriptedEngine()), security) as url:
        yield url


def _http(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)


def _chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **more}


INFERENCE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", _chat()),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/embeddings", {"input": "a"}),
    ("/v1/messages", _chat(max_tokens=5)),
    ("/v1/messages/count_tokens", _chat()),
    ("/api/chat", _chat()),
    ("/api/generate", {"prompt": "a"}),
    ("/api/generate", {}),
    ("/api/show", {}),
    ("/api/embed", {"input": "a"}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ("/tokenize", {"prompt": "a"}),
]


@pytest.mark.parametrize(("path", "body"), INFERENCE)
def test_a_model_that_a_key_may_not_use_is_refused_by_name(
    url: str, path: str, body: dict[str, Any]
) -> None:
    with _http(url, "all") as http:
        name = http.get("/v1/models").json()["data"][0]["id"]
    with _http(url, "some") as http:
        for model in (name, "unknown"):  # nothing tells which exist
            answer = http.post(path, json={**body, "model": model})
            assert answer.status_code == 403, answer.text
            assert "other-*" in answer.text
        if path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"):
            assert http.post(path, json=body).status_code == 403  # nor the default one


def test_lists_have_what_a_key_may_use(url: str) -> None:
    with _http(url, "all") as all_, _http(url, "some") as some:
        for path, member in (("/v1/models", "data"), ("/api/tags", "models")):
            assert all_.get(path).json()[member]
            assert some.get(path).json()[member] == []
        name = all_.get("/v1/models").json()["data"][0]["id"]
        assert all_.get(f"/v1/models/{name}").status_code == 200
        assert some.get(f"/v1/models/{name}").status_code == 403
        assert some.post("/v2/repository/index", json={}).json() == []
        assert some.get(f"/v2/models/{name}").status_code == 403


def test_no_dialect_finds_models_past_the_rules() -> None:
    """`find_model` alone, whoever writes the next dialect."""
    allowed = {"permitted.py": 4, "kserve/models.py": 5, "openai/responses/create.py": 1}
    found: dict[str, int] = {}
    for file in DIALECTS.rglob("*.py"):
        uses = len(re.findall(r"host\.(?:find|names|slots|called)\b", file.read_text()))
        if uses:
            found[str(file.relative_to(DIALECTS))] = uses
    assert found == allowed


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", _chat(max_tokens=4), "max_tokens"),
        ("/v1/chat/completions", _chat(max_completion_tokens=4), "max_completion_tokens"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 4}, "max_output_tokens"),
        ("/v1/completions", {"prompt": "a", "min_tokens": 4}, "min_tokens"),
    ],
)
def test_more_tokens_than_a_key_may_have_are_refused_by_name(
    url: str, path: str, body: dict[str, Any], field: str
) -> None:
    with _http(url, "all") as http:
        name = http.get("/v1/models").json()["data"][0]["id"]
        assert http.post(path, json={**body, "model": name}).status_code == 200
    with _http(url, "few") as http:
        answer = http.post(path, json={**body, "model": name})
        assert answer.status_code == 400
        assert field in answer.text and "3" in answer.text


def test_without_a_bound_the_keys_is_the_bound(url: str) -> None:
    with _http(url, "few") as http:
        choice = http.post("/v1/chat/completions", json=_chat()).json()["choices"][0]
        usage = http.post("/v1/chat/completions", json=_chat()).json()["usage"]
        assert choice["finish_reason"] == "length"
        assert usage["completion_tokens"] == 3
        # Of an API where the bound is required it is only an upper one.
        message = http.post("/v1/messages", json=_chat(max_tokens=9, model="")).json()
        assert message["usage"]["output_tokens"] == 3


def test_where_a_key_may_be_used_from_and_for_what(url: str) -> None:
    expected = {"far": 403, "near": 200, "chat": 403, "eu": 200, "us": 403}
    for key, status in expected.items():
        with _http(url, key) as http:
            assert http.get("/v1/models").status_code == status, key
            assert http.get("/healthz").status_code == 200
    with _http(url, "chat") as http:
        assert http.post("/v1/chat/completions", json=_chat(max_tokens=1)).status_code == 200
        answer = http.get("/v1/models")
        assert "/v1/chat/*" in answer.text
