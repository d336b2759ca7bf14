"""Responses and conversations outlive a server, encrypted, where the database keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from prometheus_client import CollectorRegistry

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access.limits import Limits
from tidemill.server.context import ServerContext
from tidemill.server.dialects.openai.responses.service import service_of
from tidemill.server.storage import Storage
from tidemill.store.cipher import Cipher, Undecipherable
from tidemill.store.location import Location, location_of

SECRET = b"0123456789abcdef"
WORD = "periwinkle"


@contextmanager
def server(location: Location, secret: bytes = SECRET, **limits: int) -> Iterator[openai.OpenAI]:
    context = fake_context(ScriptedEngine(), limits=Limits(**limits))
    context.storage = Storage(location, DatabaseMetrics(CollectorRegistry()))
    context.cipher = Cipher(secret)
    with serving(context) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        yield client
        written(context)


def written(context: ServerContext) -> None:
    """Wait until what is written behind is written."""
    archive = service_of(context).archive
    assert archive is not None
    ends = time.monotonic() + 30
    while archive.behind:
        assert time.monotonic() < ends
        time.sleep(0.02)


def place(tmp_path: Path) -> Location:
    found = location_of(None, tmp_path)
    assert found is not None
    return found


def test_the_next_server_goes_on(tmp_path: Path) -> None:
    where = place(tmp_path)
    with server(where) as client:
        first = client.responses.create(model="", input=f"Say {WORD}", max_output_tokens=4)
        second = client.responses.create(
            model="", input="Again", max_output_tokens=4, previous_response_id=first.id
        )
        other = client.responses.create(model="", input="x", max_output_tokens=4, store=False)
        talk = client.conversations.create(
            metadata={"for": WORD},
            items=[{"type": "message", "role": "user", "content": f"{WORD} {i}"} for i in range(3)],
        )
        kept = client.conversations.items.list(talk.id, order="asc").data
        client.conversations.items.delete(kept[1].id or "", conversation_id=talk.id)
    files = [path.read_bytes() for path in where.path.parent.glob("tidemill.db*")]  # type: ignore[union-attr]
    assert files and not any(WORD.encode() in data for data in files)
    with server(where) as client:
        again = client.responses.retrieve(second.id)
        assert again.output_text == second.output_text
        items = client.responses.input_items.list(second.id, order="asc").data
        assert len(items) == 3 and WORD in str(items[0])
        third = client.responses.create(
            model="", input="More", max_output_tokens=4, previous_response_id=second.id
        )
        asked = client.responses.input_items.list(third.id, order="asc").data
        assert [item.id for item in asked[:3]] == [item.id for item in items]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(other.id)
        found = client.conversations.retrieve(talk.id)
        assert found.metadata == {"for": WORD}
        listed = client.conversations.items.list(talk.id, order="asc").data
        assert [item.id for item in listed] == [kept[0].id, kept[2].id]
        client.responses.delete(first.id)
        client.conversations.delete(talk.id)
    with server(where) as client:
        for identity in (first.id,):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(identity)
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(talk.id)
        # What continues a response that was deleted has its items all the same.
        items = client.responses.input_items.list(third.id, order="asc").data
        assert WORD in str(items[0])


def test_what_memory_forgets_is_read_again(tmp_path: Path) -> None:
    with server(place(tmp_path), max_stored_bytes=8_000) as client:
        made = []
        for i in range(12):
            made.append(
                client.responses.create(model="", input=f"{i} " + "x" * 100, max_output_tokens=4)
            )
            time.sleep(0.1)
        time.sleep(1.0)
        for one in made:
            assert client.responses.retrieve(one.id).output_text == one.output_text


def test_another_secret_reads_nothing(tmp_path: Path) -> None:
    where = place(tmp_path)
    with server(where) as client:
        one = client.responses.create(model="", input=WORD, max_output_tokens=4)
    with server(where, b"another secret!!") as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.retrieve(one.id)
        assert caught.value.status_code == 503 and "another secret" in str(caught.value)


def test_texts_are_bound_to_their_place() -> None:
    cipher = Cipher(SECRET)
    data = cipher.encrypt(b"text", "response\0key:a\0resp_1")
    assert cipher.decrypt(data, "response\0key:a\0resp_1") == b"text"
    for changed, where in (
        (data, "response\0key:b\0resp_1"),
        (data[:-1] + bytes([data[-1] ^ 1]), "response\0key:a\0resp_1"),
        (data[:10], "response\0key:a\0resp_1"),
        (b"", "response\0key:a\0resp_1"),
    ):
        with pytest.raises(Undecipherable):
            cipher.decrypt(changed, where)
    assert cipher.encrypt(b"text", "a") != cipher.encrypt(b"text", "a")
