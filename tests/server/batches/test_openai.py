"""Files and batches through OpenAI's own client, against a scripted engine."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from openai.types import Batch
from prometheus_client import CollectorRegistry

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.batches.openai import files as routes
from tidemill.server.storage import Storage
from tidemill.store.location import location_of

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    context = fake_context(ScriptedEngine())
    place = location_of(None, tmp_path_factory.mktemp("home"))
    assert place is not None
    context.storage = Storage(place, DatabaseMetrics(CollectorRegistry()))
    with serving(context) as url:
        yield url


@pytest.fixture(scope="module")
def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0)


def line(i: int, **changes: Any) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": f"Say {i}"}],
        "max_tokens": 5,
        "seed": 1,
        **changes,
    }
    return {"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": body}


def upload(client: openai.OpenAI, lines: list[dict[str, Any]]) -> str:
    text = "\n".join(json.dumps(one) for one in lines).encode()
    return client.files.create(file=("in.jsonl", io.BytesIO(text)), purpose="batch").id


def finished(client: openai.OpenAI, batch: Batch) -> Batch:
    for _ in range(600):
        batch = client.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed", "cancelled", "expired"):
            return batch
        time.sleep(0.05)
    raise AssertionError(batch)


def create(client: openai.OpenAI, file: str, endpoint: Any = CHAT, **more: Any) -> Batch:
    return client.batches.create(
        input_file_id=file, endpoint=endpoint, completion_window="24h", **more
    )


def rows(client: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    content = client.files.content(file).read()
    assert len(content) == client.files.retrieve(file).bytes
    return [json.loads(text) for text in content.splitlines()]


def test_a_batch_from_file_to_file(client: openai.OpenAI) -> None:
    lines = [line(i) for i in range(40)]
    lines[7]["body"]["temperature"] = "hot"
    batch = create(client, upload(client, lines), metadata={"job": "night"})
    assert batch.metadata == {"job": "night"}
    done = finished(client, batch)
    assert done.status == "completed" and done.completed_at and done.request_counts
    assert (done.request_counts.total, done.request_counts.completed) == (40, 39)
    answers = rows(client, done.output_file_id)
    assert [row["custom_id"] for row in answers] == [f"c{i}" for i in range(40) if i != 7]
    direct = client.chat.completions.create(
        model="", messages=[{"role": "user", "content": "Say 3"}], max_tokens=5, seed=1
    )
    body = answers[3]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == direct.choices[0].message.content
    assert body["usage"] == direct.usage.model_dump(exclude_unset=True)  # type: ignore[union-attr]
    assert answers[3]["response"]["status_code"] == 200 and answers[3]["error"] is None
    assert answers[3]["response"]["request_id"]
    [wrong] = rows(client, done.error_file_id)
    assert wrong["custom_id"] == "c7" and wrong["response"]["status_code"] == 400
    assert wrong["response"]["body"]["error"]["param"] == "temperature"


def test_other_endpoints(client: openai.OpenAI) -> None:
    for endpoint, body in (
        ("/v1/completions", {"prompt": "a", "max_tokens": 3}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 3}),
    ):
        one = {"custom_id": "x", "method": "POST", "url": endpoint, "body": body}
        done = finished(client, create(client, upload(client, [one]), endpoint))
        [row] = rows(client, done.output_file_id)
        assert row["response"]["status_code"] == 200, row


def test_a_file_that_is_wrong_fails_with_its_lines(client: openai.OpenAI) -> None:
    lines = [line(0), line(0), {**line(2), "url": "/v1/embeddings"}]
    done = finished(client, create(client, upload(client, lines)))
    assert done.status == "failed" and done.errors and done.errors.data
    assert [(e.code, e.line) for e in done.errors.data] == [
        ("duplicate_custom_id", 2),
        ("invalid_url", 3),
    ]


def test_files_are_listed_read_and_removed(client: openai.OpenAI) -> None:
    content = b"\xef\xbb\xbfline\r\n" * 100_000  # several chunks
    made = [
        client.files.create(file=(f"f{i}", io.BytesIO(content)), purpose="user_data", extra_body={})
        for i in range(3)
    ]
    assert client.files.content(made[0].id).read() == content
    assert made[0].bytes == len(content) and made[0].filename == "f0"
    first = client.files.list(purpose="user_data", limit=2, order="asc")
    ids = [file.id for file in first]  # follows the pages
    assert set(ids) >= {file.id for file in made} and len(ids) == len(set(ids))
    client.files.delete(made[1].id)
    with pytest.raises(openai.NotFoundError, match=made[1].id):
        client.files.retrieve(made[1].id)
    with pytest.raises(openai.BadRequestError, match="uploaded for user_data"):
        create(client, made[0].id)


def test_bad_requests_name_the_field(
    client: openai.OpenAI, base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = upload(client, [line(0)])
    for changes, match in (
        ({"endpoint": "/v1/rerank"}, "endpoint"),
        ({"completion_window": "2d"}, "completion_window"),
        ({"metadata": {"a": "x" * 600}}, "metadata"),
    ):
        asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **changes}
        with pytest.raises(openai.BadRequestError, match=match):
            client.batches.create(**asked)  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError, match="input_file_id"):
        create(client, "file-nothing")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", io.BytesIO(b"x")), purpose="vision")
    http = httpx.Client(base_url=base_url)
    assert http.post("/v1/files", json={}).status_code == 415
    assert "file" in http.post("/v1/files", files={"other": b"x"}).text
    kind = {"content-type": "multipart/form-data; boundary=b"}
    for body in (b"", b"--b", b"--b\r\n\r\n--b--\r\n", b"nonsense", b"--b\r\nContent-Dis"):
        answer = http.post("/v1/files", content=body, headers=kind)
        assert answer.status_code == 400 and answer.json()["error"]["message"]
    monkeypatch.setattr(routes, "MAX_FILE_BYTES", 10)
    with pytest.raises(openai.APIStatusError) as caught:
        upload(client, [line(0)])
    assert caught.value.status_code == 413


def test_cancelling(client: openai.OpenAI) -> None:
    batch = create(client, upload(client, [line(i) for i in range(2000)]))
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    done = finished(client, batch)
    assert done.status == "cancelled" and done.cancelled_at
    assert batch.id in [b.id for b in client.batches.list(limit=3)]
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_nothing")


def test_without_a_database_it_is_said() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        answer = httpx.get(f"{url}/v1/batches")
        assert answer.status_code == 501 and "--database" in answer.json()["error"]["message"]
