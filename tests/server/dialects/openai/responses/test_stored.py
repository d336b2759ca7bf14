"""What is kept: responses, conversations, and who may see them."""

from __future__ import annotations

from typing import Any

import httpx
import openai
from helpers.live_server import fake_context, serving
from helpers.marked_model import Model
from helpers.responses_api import create, refused
from helpers.scripted_engine import ScriptedEngine
from openai.types.conversations import ConversationItemList
from openai.types.responses import ResponseItemList

from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security

KEYS = ["first-key-0123456789", "second-key-0123456789"]


def _items(http: httpx.Client, path: str, **query: Any) -> list[str]:
    answer = http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["data"]]


def test_a_response_is_retrieved_as_it_was_answered(model: Model) -> None:
    model.text = "Hello."
    response = create(model.http, input="Hi")
    path = f"/v1/responses/{response['id']}"
    assert model.http.get(path).json() == response
    listed = model.http.get(f"{path}/input_items")
    ResponseItemList.model_validate_json(listed.content)
    (item,) = listed.json()["data"]
    assert item["content"] == [{"type": "input_text", "text": "Hi"}]
    deleted = model.http.delete(path).json()
    assert deleted == {"id": response["id"], "object": "response", "deleted": True}
    for method, where in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
    ):
        gone = model.http.request(method, path + where)
        assert gone.status_code == 404, where
        assert gone.json()["error"]["param"] == "response_id"


def test_store_false_keeps_nothing(model: Model) -> None:
    response = create(model.http, input="Hi", store=False)
    assert response["store"] is False
    assert model.http.get(f"/v1/responses/{response['id']}").status_code == 404
    error = refused(model.http, 404, input="Hi", previous_response_id=response["id"])
    assert error["param"] == "previous_response_id"
    assert error["code"] == "previous_response_not_found"


def test_responses_continue_each_other(model: Model) -> None:
    model.text = "Hello."
    first = create(model.http, input="One", instructions="Be kind.")
    second = create(model.http, input="Two", previous_response_id=first["id"])
    assert "Be kind." not in model.prompt()  # instructions are not inherited
    third = create(model.http, input="Three", previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    prompt = model.prompt()
    assert prompt.index("One") < prompt.index("Hello.") < prompt.index("Two")
    # Two different continuations of one response.
    create(model.http, input="Other", previous_response_id=first["id"])
    assert "Two" not in model.prompt()
    listed = _items(model.http, f"/v1/responses/{third['id']}/input_items", order="asc")
    assert len(listed) == 5 and listed[1] == first["output"][0]["id"]
    # What was deleted is not found, and what continues it still knows it.
    model.http.delete(f"/v1/responses/{first['id']}")
    create(model.http, input="Four", previous_response_id=third["id"])
    assert "One" in model.prompt()


def test_lists_come_in_pages(model: Model) -> None:
    items = [{"role": "user", "content": str(i)} for i in range(7)]
    response = create(model.http, input=items)
    path = f"/v1/responses/{response['id']}/input_items"
    forward = _items(model.http, path, order="asc")
    assert len(forward) == 7 and _items(model.http, path) == forward[::-1]
    first = model.http.get(path, params={"limit": 3, "order": "asc"}).json()
    assert first["has_more"] and first["last_id"] == forward[2]
    rest = _items(model.http, path, limit=100, order="asc", after=first["last_id"])
    assert rest == forward[3:]
    for query, param in (
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_none"}, "after"),
        ({"page": "2"}, "page"),
    ):
        answer = model.http.get(path, params=query)
        assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param


def test_a_conversation_grows_with_its_responses(model: Model) -> None:
    model.text = "Hello."
    client = openai.OpenAI(base_url=f"{model.http.base_url}/v1", api_key="none", max_retries=0)
    message: Any = {"type": "message", "role": "user", "content": "Zero"}
    conversation = client.conversations.create(items=[message], metadata={"a": "b"})
    assert conversation.metadata == {"a": "b"}
    response = create(model.http, input="One", conversation=conversation.id)
    assert response["conversation"] == {"id": conversation.id}
    assert "Zero" in model.prompt() and "One" in model.prompt()
    create(model.http, input="Two", conversation={"id": conversation.id}, stream=False)
    assert model.prompt().count("Hello.") == 1
    path = f"/v1/conversations/{conversation.id}/items"
    listed = model.http.get(path, params={"order": "asc"})
    ConversationItemList.model_validate_json(listed.content)
    texts = [item["content"][0]["text"] for item in listed.json()["data"]]
    assert texts == ["Zero", "One", "Hello.", "Two", "Hello."]
    added = client.conversations.items.create(conversation.id, items=[message]).data[0]
    assert added.id is not None
    assert client.conversations.items.retrieve(added.id, conversation_id=conversation.id) == added
    client.conversations.items.delete(added.id, conversation_id=conversation.id)
    assert model.http.get(f"{path}/{added.id}").status_code == 404
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.delete(conversation.id).deleted
    assert model.http.get(path).status_code == 404
    error = refused(model.http, 404, input="Hi", conversation=conversation.id)
    assert error["param"] == "conversation"


def test_conversations_refuse_by_name(model: Model) -> None:
    for body, param in (
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ({"items": "x"}, "items"),
        ({"items": [{"type": "computer_call"}]}, "items[0].type"),
        ({"items": [{"type": "item_reference", "id": "x"}]}, "items[0]"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"title": "x"}, "title"),
    ):
        answer = model.http.post("/v1/conversations", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_what_is_kept_belongs_to_its_principal() -> None:
    context = fake_context(ScriptedEngine())
    with serving(context, Security(keys=StaticKeys(KEYS))) as url:
        mine, other = (
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}) for key in KEYS
        )
        response = create(mine, input="Hi")
        conversation = mine.post("/v1/conversations", json={}).json()["id"]
        said = response["output"][0]["id"]
        assert mine.get(f"/v1/responses/{response['id']}").status_code == 200
        for path in (
            f"/v1/responses/{response['id']}",
            f"/v1/responses/{response['id']}/input_items",
            f"/v1/conversations/{conversation}",
            f"/v1/conversations/{conversation}/items",
        ):
            assert mine.get(path).status_code == 200
            assert other.get(path).status_code == 404
            assert httpx.get(url + path).status_code == 401
        for body in (
            {"previous_response_id": response["id"]},
            {"conversation": conversation},
            {"input": [{"id": said}]},
        ):
            refused(other, 404, **{"input": "Hi", **body})
        assert other.delete(f"/v1/responses/{response['id']}").status_code == 404
        assert mine.get(f"/v1/responses/{response['id']}").status_code == 200


def test_memory_is_bounded() -> None:
    context = fake_context(ScriptedEngine(), limits=Limits(max_stored_bytes=20_000))
    with serving(context) as url, httpx.Client(base_url=url) as http:
        made = [create(http, input=f"{i} " + "x" * 50)["id"] for i in range(40)]
        kept = [i for i in made if http.get(f"/v1/responses/{i}").status_code == 200]
        assert 2 <= len(kept) < 40 and kept == made[-len(kept) :]
