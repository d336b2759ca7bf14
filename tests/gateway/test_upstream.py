"""A server with models of its own and an `[upstream]`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.gateway import ASK, streamed, words_of
from helpers.live_server import fake_context, serving
from helpers.real_server import RealServer
from helpers.scripted_engine import ScriptedEngine
from helpers.scripted_target import ScriptedTarget, chat, refuses, running

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.contract.request import EngineRequest
from tidemill.gateway.upstream import Upstream
from tidemill.server.admission.control import Admission
from tidemill.server.app import DIALECTS

CHAT = "/v1/chat/completions"
MINE, THEIRS = {**ASK, "model": "tiny"}, {**ASK, "model": "far"}


class Full(ScriptedEngine):
    """An engine that has no room."""

    def submit(self, request: EngineRequest) -> Any:
        raise TidemillError(ErrorKind.OVERLOADED, "the queue is full")


@contextmanager
def server(
    target: ScriptedTarget,
    models: Any = ("far",),
    *,
    engine: ScriptedEngine | None = None,
    quotas: Defaults | None = None,
    **table: Any,
) -> Iterator[tuple[httpx.Client, ScriptedEngine]]:
    """A client of a server with the model ``tiny``, and its engine."""
    engine = engine or ScriptedEngine()
    context = fake_context(engine, explain=True)
    context.keep_recent(9, Prices())
    if quotas is not None:
        context.limit(quotas, Prices(), 0.0)
    models = dict(models) if isinstance(models, dict) else list(models)
    row = {"name": "a", "url": target.url, "kind": "vllm", "models": models, "tags": ["outside"]}
    routing = {"wake_seconds": 0.0, **table.pop("routing", {})}
    upstream = Upstream({"targets": [row], "routing": routing, **table}, context)
    with (
        serving(context, dialects=upstream.dialects(DIALECTS)) as url,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        yield client, engine


@pytest.fixture
def target() -> Iterator[ScriptedTarget]:
    with running(found := ScriptedTarget(chat("far ", "away"))):
        yield found


def test_a_server_answers_what_it_has_and_others_the_rest(target: ScriptedTarget) -> None:
    with server(target) as (client, engine):
        mine = client.post(CHAT, json=MINE)
        assert mine.json()["model"] == "tiny" and "x-tidemill-target" not in mine.headers
        assert len(engine.requests) == 1 and not target.got
        nameless = client.post(CHAT, json={"messages": ASK["messages"]})
        assert nameless.json()["model"] == "tiny"
        theirs = client.post(CHAT, json=THEIRS)
        assert theirs.json()["choices"][0]["message"]["content"] == "far away"
        assert theirs.headers["x-tidemill-target"] == "a" and len(engine.requests) == 2
        assert words_of(streamed(client, CHAT, {**THEIRS, "stream": True})[1]) == "far away"
        # Anthropic's dialect, translated for the target.
        answer = client.post("/v1/messages", json={**THEIRS, "max_tokens": 5})
        assert answer.json()["content"][0]["text"] == "far away"


def test_errors_are_the_server_s_own(target: ScriptedTarget) -> None:
    with server(target) as (client, _):
        missing = client.post(CHAT, json={**ASK, "model": "none"})
        assert missing.status_code == 404 and "tiny" in missing.json()["error"]["message"]
        wrong = client.post(CHAT, json={**MINE, "velvet": 1})
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "velvet"
        assert client.post(CHAT, content=b"{").status_code == 415
        assert client.post(CHAT, json=[1]).status_code == 400


def test_models_are_listed_once_whoever_has_them(target: ScriptedTarget) -> None:
    with server(target, ("far", "tiny")) as (client, _):
        data = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in data] == ["tiny", "far"]
        assert client.get("/v1/models/tiny").json()["owned_by"] == "tidemill"
        assert client.get("/v1/models/far").json()["owned_by"] == "tidemill-gateway"
        tags = client.get("/api/tags").json()["models"]
        assert [one["name"].partition(":")[0] for one in tags] == ["tiny", "far"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_has_no_room_here_goes_elsewhere(target: ScriptedTarget, stream: bool) -> None:
    body = {**MINE, "stream": stream}
    with server(target, {"tiny": "big"}, engine=Full()) as (client, engine):
        answer = client.post(CHAT, json=body)
        assert answer.status_code == 200 and "away" in answer.text
        assert answer.headers["x-tidemill-target"] == "a" and not engine.requests
        assert target.got[0].json["model"] == "big"
        target.script = refuses(429, retry_after=20)
        refused = client.post(CHAT, json=body)  # as the server says it, not the target
        assert refused.status_code == 429 and "queue" in refused.json()["error"]["message"]


def test_a_queue_that_is_long_overflows_before_it_refuses(target: ScriptedTarget) -> None:
    routing = {"overflow_seconds": 0.0, "policy": "least-connections"}
    with server(target, ("tiny",), routing=routing) as (client, engine):
        for _ in range(4):
            assert client.post(CHAT, json=MINE).status_code == 200
        assert len(engine.requests) == 4  # nobody waits: this server is preferred
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Admission, "predicted_wait", 5.0)
            answers = [client.post(CHAT, json=MINE) for _ in range(4)]
        assert {answer.headers["x-tidemill-target"] for answer in answers} == {"a"}


def test_private_requests_stay(target: ScriptedTarget) -> None:
    private = {"x-tidemill-private": "1"}
    detectors = {"detectors": ["email"]}
    with server(target, ("far", "tiny"), engine=Full(), privacy=detectors) as (client, _):
        mail = {**MINE, "messages": [{"role": "user", "content": "to a.b@example.org"}]}
        assert client.post(CHAT, json=MINE, headers=private).status_code == 429
        assert client.post(CHAT, json=mail).status_code == 429
        refused = client.post(CHAT, json=THEIRS, headers=private)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "private_request"
        assert not target.got
        assert client.post(CHAT, json=MINE).status_code == 200 and len(target.got) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_here_answers_where_the_far_one_cannot(stream: bool) -> None:
    with running(target := ScriptedTarget(refuses(503))):
        fallbacks = {"far": ["tiny"]}
        with server(target, fallbacks=fallbacks) as (client, engine):
            answer = client.post(CHAT, json={**THEIRS, "stream": stream})
            assert answer.status_code == 200 and len(engine.requests) == 1
            assert answer.headers["x-tidemill-fallback"] == "far -> tiny"
            said = '"tidemill_fallback":{"asked":"far","answered":"tiny"}'
            assert answer.text.count(said) == 1 and '"model":"tiny"' in answer.text
            assert stream or answer.json()["model"] == "tiny"


def test_a_request_counts_once_however_many_were_asked(target: ScriptedTarget) -> None:
    quotas = Defaults({Level.SERVER: parse_limits({"rpm": 2})})
    with server(target, ("tiny",), engine=Full(), quotas=quotas) as (client, _):
        codes = [client.post(CHAT, json=MINE).status_code for _ in range(3)]
        assert codes == [200, 200, 429] and len(target.got) == 2


def test_the_deployment_file_of_a_real_server(target: ScriptedTarget, tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(
        f"""[server]\ndatabase = "none"\n[[models]]\nname = "brook"\n
        [[upstream.targets]]\nname = "a"\nurl = "{target.url}"\nkind = "vllm"\n"""
    )
    with RealServer("--config", str(file), "--threads", "1") as real:
        assert real.http.post(CHAT, json={**ASK, "model": "brook"}).json()["model"] == "brook"
        answer = real.http.post(CHAT, json={**ASK, "model": "m"})  # which the target lists
        assert answer.json()["choices"][0]["message"]["content"] == "far away"
        assert [one["name"] for one in real.http.get("/admin/targets").json()["targets"]] == [
            *("here", "a")
        ]
        assert 'target="a"' in real.http.get("/metrics").text
        _check_reload(real, file, target)


def _check_reload(real: RealServer, file: Path, target: ScriptedTarget) -> None:
    """Other targets, none that are wrong, and not none at all."""
    text = file.read_text()

    def reloaded(new: str) -> tuple[int, str]:
        file.write_text(new)
        answer = real.http.post("/admin/reload")
        return answer.status_code, answer.text

    def names() -> list[str]:
        found = real.http.get("/admin/targets").json()["targets"]
        return [one["name"] for one in found]

    given = real.http.get("/admin/targets").json()["targets"][1]["given"]
    more = f"""[[upstream.targets]]\nname = "b"\nurl = "{target.url}"\nmodels = ["late"]
        kind = "vllm"\n[upstream.routing]\noverflow_seconds = 9.0\n"""
    status, said = reloaded(text + more)
    assert status == 200 and "upstream.targets" in said
    targets = real.http.get("/admin/targets").json()["targets"]
    assert [one["name"] for one in targets] == ["here", "a", "b"]
    assert targets[1]["given"] == given > 0  # it is the same one
    answer = real.http.post(CHAT, json={**ASK, "model": "late"})
    assert answer.headers["x-tidemill-target"] == "b"
    assert reloaded(text + more.replace("kind", "kin"))[0] == 400 and names()[2:] == ["b"]
    status, said = reloaded(text[: text.index("[[upstream")])
    assert status == 400 and "restart the server" in said and names()[2:] == ["b"]
    file.write_text(text)
    real.process.send_signal(signal.SIGHUP)
    ends = time.monotonic() + 20
    while len(names()) > 2:
        assert time.monotonic() < ends
        time.sleep(0.02)
    assert real.http.post(CHAT, json={**ASK, "model": "late"}).status_code == 404


def test_its_own_answers_are_explained_as_ever_and_others_by_their_targets(
    target: ScriptedTarget,
) -> None:
    engine = ScriptedEngine(lambda request, choice: [97] * 5)
    with server(target, models=["tiny", "far"], engine=engine) as (client, _):
        for name, body in (("mine", MINE), ("theirs", THEIRS)):
            headers = {"x-request-id": name}
            assert client.post(CHAT, json=body, headers=headers).status_code == 200
        mine, theirs = (client.get(f"/admin/requests/{n}").json() for n in ("mine", "theirs"))
    assert mine["targets"] == []
    assert [way["target"] for way in theirs["targets"]] == ["a"]
    names = [[phase["name"] for phase in one["phases"]] for one in (mine, theirs)]
    assert "admission" in names[0] and "target" not in names[0]
    assert names[1][-2:] == ["target", "relay"]
