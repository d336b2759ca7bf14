"""/admin/requests: what is listed, who sees which, and that there is no content in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import ANONYMOUS
from tidemill.metrics.quotas import QuotaMetrics
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Owner, Role
from tidemill.server.admin.requests import completed, may_see
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.errors import Rejection
from tidemill.server.quotas.gate import Gate
from tidemill.server.quotas.quotas import Quotas
from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Recent, Story
from tidemill.telemetry.record import RequestRecord

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "secret words"}]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    context = fake_context(ScriptedEngine(cached_tokens=2), explain=True)
    context.keep_recent(50, Prices.parse({"tiny": {"output": 1_000_000}}, currency="EUR"))
    with serving(context) as found:
        yield found


def post(url: str, path: str, body: dict[str, Any], name: str = "") -> httpx.Response:
    return httpx.post(url + path, json=body, headers={"x-request-id": name} if name else {})


def get(url: str, path: str, **params: Any) -> Any:
    response = httpx.get(url + path, params=params)
    return response.json() if response.status_code == 200 else response


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"], "n": 2}),
        ("/v1/messages", CHAT | {"max_tokens": 4}),
        ("/generate", {"inputs": "secret words"}),
        ("/api/chat", CHAT | {"stream": True}),
        ("/v1/responses", {"model": "tiny", "input": "secret words"}),
        ("/completion", {"prompt": "secret words", "n_predict": 4}),
        ("/v1/embeddings", {"model": "tiny", "input": ["secret words"]}),
    ],
)
def test_every_dialect_is_explained_without_content(
    url: str, path: str, body: dict[str, Any]
) -> None:
    answer = post(url, path, body, f"of {path}".replace(" ", ":"))
    assert answer.status_code == 200, answer.text
    found = get(url, f"/admin/requests/{answer.headers['x-request-id']}")
    assert found["route"] == path and found["state"] == "ended" and found["model"] == "tiny"
    seconds = [phase["seconds"] for phase in found["phases"]]
    assert round(sum(seconds), 6) == found["total_seconds"] and all(s >= 0 for s in seconds)
    assert {"read", "prepare"} <= {phase["name"] for phase in found["phases"]}
    assert found["admission"]["decision"] == "admitted"
    text = json.dumps(found)
    assert "secret" not in text and "127.0.0.1" in text
    timing = answer.headers["server-timing"]
    assert timing.startswith("read;dur=") and ", total;dur=" in timing


def test_an_answer_s_id_finds_its_request(url: str) -> None:
    answer = post(url, "/v1/chat/completions", CHAT, "mine").json()
    assert get(url, f"/admin/requests/{answer['id']}")["id"] == "mine"


def test_the_beginning_of_an_id_is_enough_if_no_other_has_it(url: str) -> None:
    answer = post(url, "/v1/chat/completions", CHAT, "begun-1").json()
    assert get(url, "/admin/requests/beg")["id"] == "begun-1"
    assert get(url, f"/admin/requests/{answer['id'][:20]}")["id"] == "begun-1"
    short = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    for i in (12, 2, 2):
        post(url, "/v1/completions", short, f"begun-{i}")
    assert get(url, "/admin/requests/begun-1")["id"] == "begun-1"  # another goes on
    assert get(url, "/admin/requests/begun-1")["generated_tokens"] > 1
    assert get(url, "/admin/requests/begun-12")["id"] == "begun-12"
    several = get(url, "/admin/requests/begun")
    assert several.status_code == 400 and several.json()["error"]["code"] == "ambiguous_id"
    assert "'begun': begun-1, begun-12, begun-2" in several.json()["error"]["message"]
    assert get(url, "/admin/requests/Begun").status_code == 404
    for i in range(12):
        post(url, "/v1/completions", short, f"many-{i:02}")
    assert "many-09 and more" in get(url, "/admin/requests/many").text


def test_what_it_cost_is_said_and_energy_is_not_made_up(url: str) -> None:
    post(url, "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 3}, "priced")
    found = get(url, "/admin/requests/priced")
    assert found["currency"] == "EUR" and float(found["cost"]) == found["generated_tokens"]
    assert found["energy_joules"] is None


def test_a_request_that_is_refused_early(url: str) -> None:
    post(url, "/v1/chat/completions", CHAT | {"temperature": -1}, "wrong")
    found = get(url, "/admin/requests/wrong")
    assert (found["status"], found["code"], found["prompts"]) == (400, "invalid_value", [])
    # What is wrong may be content; of an overload the message is kept.
    assert found["refusal"] is None and found["outcome"] == "refused"


def test_the_list_chooses(url: str) -> None:
    post(url, "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}, "listed")
    found = get(url, "/admin/requests", limit=1)
    assert [one["id"] for one in found["requests"]] == ["listed"] and found["kept"] == 50
    wrong = get(url, "/admin/requests", code="invalid_value")["requests"]
    assert {one["id"] for one in wrong} <= {"wrong"}
    routes = get(url, "/admin/requests", route=["/v1/completions", "/generate"])["requests"]
    assert {one["route"] for one in routes} <= {"/v1/completions", "/generate"} and routes
    assert get(url, "/admin/requests", slower=1000)["requests"] == []
    assert get(url, "/admin/requests", state="running")["requests"] == []
    for wrong_query in ({"colour": "red"}, {"limit": 0}, {"slower": "x"}, {"slower": "nan"}):
        assert get(url, "/admin/requests", **wrong_query).status_code == 400


def test_an_unknown_id(url: str) -> None:
    response = get(url, "/admin/requests/nothing")
    assert response.status_code == 404 and "--recent-requests" in response.text


def test_timings_have_the_phases(url: str) -> None:
    body = CHAT | {"include_timings": True}
    timings = post(url, "/v1/chat/completions", body).json()["timings"]
    assert round(sum(p["seconds"] for p in timings["phases"]), 6) == timings["total_seconds"]
    streamed = post(url, "/v1/chat/completions", body | {"stream": True}).text
    assert streamed.count('"phases"') == 1


def test_a_server_that_keeps_none_says_so() -> None:
    context = fake_context(ScriptedEngine())
    with serving(context) as url:
        answer = post(url, "/v1/chat/completions", CHAT)
        assert "server-timing" not in answer.headers
        response = get(url, "/admin/requests")
        assert response.status_code == 501 and "--recent-requests" in response.text


def story(**fields: Any) -> Story:
    return Story(RequestRecord("r", 0, **fields), Milestones(0.0), None)


def test_who_sees_which() -> None:
    def principal(role: Role, team: str = "") -> Principal:
        return Principal("key:me", "me", role, owner=Owner(team=team))

    mine, teams, others = story(client="key:me"), story(team="t"), story(client="key:other")
    for role in (Role.ADMIN, Role.AUDITOR):
        assert all(may_see(principal(role), one) for one in (mine, teams, others))
    assert [may_see(principal(Role.USER), one) for one in (mine, teams, others)] == [1, 0, 0]
    manager = principal(Role.MANAGER, "t")
    assert [may_see(manager, one) for one in (mine, teams, others)] == [0, 1, 0]
    assert not may_see(principal(Role.MANAGER), story())  # of no team


def test_ids_of_others_do_not_make_a_beginning_ambiguous() -> None:
    """Nor are they told."""
    recent = Recent(5)
    for name, client in (("req-1", "key:me"), ("req-2", "key:other")):
        recent.end(
            0, Story(RequestRecord(name, 0, client=client), Milestones(0.0, ended=1.0), None)
        )
    context = fake_context(ScriptedEngine())
    context.recent = recent
    me = Principal("key:me", "me", Role.USER, owner=Owner())
    assert asyncio.run(completed(context, me, "req")) == "req-1"
    with pytest.raises(Rejection, match="req-1, req-2"):
        asyncio.run(completed(context, Principal("key:a", "a", Role.ADMIN, owner=Owner()), "req"))


def test_a_full_queue_is_explained() -> None:
    engine = ScriptedEngine(info=fake_info(num_blocks=4))
    options = AdmissionOptions(max_queue_tokens=50)
    context = fake_context(engine, admission_options=options, explain=True)
    context.keep_recent(5, Prices())
    with serving(context) as url:
        ticket = context.host.models[0].admission.admit(
            ANONYMOUS, [(1,) * 200], [SamplingParams(max_tokens=50)]
        )
        body = {"prompt": "x" * 90, "max_tokens": 60}
        assert post(url, "/v1/completions", body, "full").status_code == 429
        ticket.close()
        found = get(url, "/admin/requests/full")
    admission = found["admission"]
    assert (admission["decision"], admission["bound"], admission["waiting"]) == ("queue", 50, 250)
    assert (admission["prompt"], admission["expected"]) == (91, 60)
    assert "250 tokens wait and the queue is full" in found["refusal"]
    assert found["reasons"][0].startswith("It was refused: the server is busy")


def test_what_was_taken_of_limits_and_which_refused() -> None:
    context = fake_context(ScriptedEngine(), explain=True)
    context.keep_recent(5, Prices())
    limits = parse_limits({"tokens_per_day": 100, "soft_requests_per_minute": 1})
    defaults = Defaults({Level.KEY: limits})
    quotas = Quotas(defaults, None, QuotaMetrics(context.metrics.registry))
    context.quotas = Gate(lambda: quotas)
    context.quotas.open()
    with serving(context) as url:
        body = {"model": "tiny", "prompt": "x" * 9, "max_tokens": 50, "ignore_eos": True}
        assert post(url, "/v1/completions", body, "taken").status_code == 200
        assert post(url, "/v1/completions", body, "refused").status_code == 429
        taken, refused = get(url, "/admin/requests/taken"), get(url, "/admin/requests/refused")
    views = {view["measure"]: view for view in taken["quota"]}
    view = views["tokens_per_day"]
    assert (view["level"], view["amount"], view["reserved"], view["remaining"]) == (
        *("key", 100, 60, 40),
    )
    assert views["requests_per_minute"]["soft"]
    assert "tokens per day" in refused["refusal"] and refused["quota"] == []
    assert [phase["name"] for phase in refused["phases"]][-1] == "quota"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("state", "runing", "state is one of running, ended, not 'runing'"),
        ("outcome", "ok", "finished, cancelled, refused, failed"),
        ("operation", "chat", "generate, embed"),
        ("status", "two", "HTTP status"),
        ("status", "99", "HTTP status"),
    ],
)
def test_values_that_no_request_has_are_refused(url: str, name: str, value: str, told: str) -> None:
    answer = get(url, "/admin/requests", **{name: ["", value] if name == "operation" else value})
    assert answer.status_code == 400 and told in answer.text
    assert answer.json()["error"]["param"] == name
    for good in (
        {"state": ["running", "ended"]},
        {"outcome": "failed"},
        {"status": ["529", "499"]},
    ):
        assert "requests" in get(url, "/admin/requests", **good)
