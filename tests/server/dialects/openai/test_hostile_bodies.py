"""Prompts far beyond the context are refused by a beginning of them, and at a bounded cost."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest

from tidemill.generation.encoding import HEAD_CHARS
from tidemill.server.dialects.openai.tokens import MAX_TOKENIZE_CHARS
from tidemill.text import library_vocabulary
from tidemill.text.merged_vocabulary import MergedVocabulary
from tidemill.text.tokenizer import Tokenizer

TEXT = "x " * (4 * 2**20)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": TEXT}, "prompt"),
        ("/v1/completions", {"prompt": ["a", TEXT]}, "prompt[1]"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}, "messages"),
    ],
)
def test_a_huge_prompt_is_not_tokenized_whole(
    base_url: str, monkeypatch: pytest.MonkeyPatch, path: str, body: dict, param: str
) -> None:
    lengths: list[int] = []
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, **options: bool) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    answer = httpx.post(base_url + path, json=body, timeout=30)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert str(HEAD_CHARS) in error["message"] and "the context holds" in error["message"]
    assert max(lengths) <= HEAD_CHARS


def test_tokenize_is_bounded(base_url: str) -> None:
    answer = httpx.post(base_url + "/tokenize", json={"prompt": "x" * (MAX_TOKENIZE_CHARS + 1)})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


def test_a_panic_of_the_tokenizer_is_a_bad_request(
    base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    class Panicking:
        def encode_batch_fast(self, texts: list[str], **options: bool) -> None:
            raise PanicException("retry-limit-in-match over")

    with monkeypatch.context() as patch:
        patch.setattr(MergedVocabulary, "encode", _with_backend(Panicking()))
        started = time.monotonic()
        answer = httpx.post(base_url + "/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 400 and "smaller parts" in answer.json()["error"]["message"]
    assert time.monotonic() - started < 5


def _with_backend(backend: object) -> Callable[..., list[int]]:
    def encode(vocabulary: MergedVocabulary, text: str, *, literally: bool) -> list[int]:
        return library_vocabulary._encoding(backend, text, literally).ids

    return encode


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"prompt":"x","max_tokens":1,"max_tokens":2}', "max_tokens"),
        (b'{"prompt":"x","logit_bias":{"1":1,"1":2}}', "1"),
        (b'{"prompt":"x","user":null,"user":"a"}', "user"),
    ],
)
def test_a_key_sent_twice_is_refused(base_url: str, body: bytes, name: str) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(base_url + "/v1/completions", content=body, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "duplicate_parameter"
    assert error["param"] == name and name in error["message"]


def test_an_encoded_body_is_refused(base_url: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = httpx.post(base_url + "/v1/completions", content=b"x", headers=headers)
    assert answer.status_code == 415 and "gzip" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ("GET /v1/completions", 405, "/v1/completions takes POST"),
        ("DELETE /v1/models", 405, "/v1/models takes GET"),
        ("OPTIONS /v1/models", 405, "--cors-origin"),
        ("POST /chat/completions", 404, "Did you mean POST /v1/chat/completions?"),
        ("POST /v1/v1/chat/completions", 404, "Did you mean POST /v1/chat/completions?"),
        ("POST /v1/chat/completion", 404, "Did you mean POST /v1/chat/completions?"),
        ("POST /openai/deployments/x/embeddings", 404, "Did you mean POST /v1/embeddings?"),
        ("GET /models", 404, "Did you mean GET /v1/models?"),
        ("POST /responses", 404, "Did you mean POST /v1/responses?"),
        ("POST /v1beta/models", 404, "Did you mean POST /v1/chat/completions?"),
        ("POST /v1/chat", 404, "Did you mean POST /v1/chat/completions?"),
        ("GET /heathz", 404, "Did you mean GET /healthz?"),
        ("GET /favicon.ico", 404, "GET /openapi.json lists all routes."),
    ],
)
def test_a_wrong_route_names_the_nearest(base_url: str, asked: str, status: int, told: str) -> None:
    method, path = asked.split()
    answer = httpx.request(method, base_url + path)
    message = answer.json()["error"]["message"]
    assert answer.status_code == status
    assert asked in message and told in message and message.count("/v1/") <= 3
    assert "favicon" not in path or "Did you mean" not in message
