"""Rollouts end to end: real sockets, two versions of one name, and the command line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from helpers.live_server import add_model, fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info, hashed_letters

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cli.rollout import rollout
from tidemill.contract.request import EngineRequest
from tidemill.server.context import ServerContext

ADMIN = "/admin/rollouts"
# What noise of the machine could decide is off.
BOUNDS = {"errors": 0.1, "shorter": 0.4, "longer": 0.6, "ttft": "off", "itl": "off"}
RULE = {
    "name": "chat",
    "to": "2",
    "steps": [40, {"percent": 60, "seconds": 0.01}],
    "observations": 10,
    "seconds": 0,
}


def _engine(name: str, **changes: Any) -> ScriptedEngine:
    return ScriptedEngine(info=fake_info(model=name), **changes)


class _Server:
    """chat@1 and chat@2 on a loopback port."""

    def __init__(self, context: ServerContext, url: str) -> None:
        self.context, self.url = context, url
        self.http = httpx.Client(base_url=url, timeout=30)
        self.tokens = 12
        self._numbers = itertools.count()

    def ask(self, **more: Any) -> httpx.Response:
        prompt = f"request {next(self._numbers)}"
        body = {"model": "chat", "prompt": prompt, "max_tokens": self.tokens, **more}
        return self.http.post("/v1/completions", json=body)

    def ask_until(self, ended: Callable[[dict[str, Any]], bool], most: int = 3000) -> Any:
        for _ in range(most // 20):
            for _ in range(20):
                self.ask()
            found = self.http.get(f"{ADMIN}/chat").json()
            if ended(found):
                return found
        raise AssertionError(f"nothing after {most} requests: {found}")

    def command(self, *words: str) -> str:
        result = CliRunner().invoke(rollout, [*words, "--url", self.url])
        if result.exception is not None:
            raise result.exception
        return result.output


@contextmanager
def _serving(second: ScriptedEngine, first: ScriptedEngine | None = None) -> Iterator[_Server]:
    context = fake_context(first or _engine("chat@1"))
    add_model(context, second)
    add_model(context, _engine("other"))
    context.versions().declare("chat", ("1", "2"), aliases=("talk",))
    with serving(context) as url:
        server = _Server(context, url)
        yield server
        server.http.close()


def _ended(found: dict[str, Any]) -> bool:
    return not found["running"]


def _fails(share: int) -> Callable[[EngineRequest, int], list[int]]:
    """One request in `share` fails."""
    count = itertools.count()

    def script(request: EngineRequest, choice: int) -> list[int]:
        if next(count) % share == 0:
            raise TidemillError(ErrorKind.INTERNAL, "a bug of the new version")
        return hashed_letters(request, choice)

    return script


def test_a_version_with_failures_is_rolled_back_and_answers_no_more() -> None:
    with _serving(_engine("chat@2", script=_fails(4))) as server:
        started = server.http.post(ADMIN, json={**RULE, "bounds": BOUNDS}).json()
        assert started["running"] and started["percents"] == {"1": 60, "2": 40}
        found = server.ask_until(_ended)
        last = found["rollout"]["events"][-1]
        assert last["kind"] == "rolled back" and "errors is worse" in last["reason"]
        assert found["traffic"] == {"kind": "single", "version": "1"}
        answers = [server.ask() for _ in range(10)]
        assert {answer.headers["x-tidemill-model"] for answer in answers} == {"chat@1"}
        metrics = server.http.get("/metrics").text
        assert 'tidemill_rollout_events_total{event="rolled_back",model="chat"} 1.0' in metrics


def test_a_slow_version_is_rolled_back() -> None:
    slow, quick = _engine("chat@2", step_seconds=0.008), _engine("chat@1", step_seconds=0.001)
    with _serving(slow, quick) as server:
        server.tokens = 3
        bounds = {**BOUNDS, "itl": 0.5}
        server.http.post(ADMIN, json={**RULE, "bounds": bounds}).raise_for_status()
        found = server.ask_until(_ended)
        assert "itl is worse" in found["rollout"]["events"][-1]["reason"]


def test_a_good_version_is_promoted_by_itself_and_the_command_line_shows_it() -> None:
    with _serving(_engine("chat@2")) as server:
        shown = server.command(
            *("start", "chat", "--to", "2", "--steps", "40,60", "--observations", "10"),
            *("--seconds", "0", "--max-errors", "10%", "--max-shorter", "0.4"),
            *("--max-longer", "0.6", "--max-ttft", "off", "--max-itl", "off"),
        )
        assert "2 against 1, running, 40 %" in shown
        assert server.ask().json()["model"] == "chat"
        found = server.ask_until(_ended)
        assert [e["kind"] for e in found["rollout"]["events"]] == [
            "started",
            "advanced",
            "promoted",
        ]
        answer = server.ask(model="talk")
        assert answer.headers["x-tidemill-model"] == "chat@2" and answer.json()["model"] == "chat"
        assert (
            answer.json()["system_fingerprint"]
            != server.ask(model="chat@1").json()["system_fingerprint"]
        )
        assert "chat: 2 100 % (versions: 1, 2)" in server.command("status")
        assert json.loads(server.command("status", "chat", "--json")) == found


def test_a_person_promotes_and_aborts() -> None:
    with _serving(_engine("chat@2")) as server:
        for word, version in (("abort", "1"), ("promote", "2")):
            server.command("start", "chat", "--to", "2")
            with pytest.raises(TidemillError, match="promote or abort"):
                server.command("start", "chat", "--to", "2")
            server.command(word, "chat")
            assert server.ask().headers["x-tidemill-model"] == f"chat@{version}"
            with pytest.raises(TidemillError, match="no rollout of chat runs"):
                server.command(word, "chat")


def test_users_keep_their_version_of_an_a_b_test_whatever_the_route() -> None:
    with _serving(_engine("chat@2")) as server:
        shown = server.command("start", "chat", "--to", "2", "--share", "50")
        assert "compared with 1" in shown
        users = [f"user {i}" for i in range(40)]

        def went(**more: Any) -> list[str]:
            return [server.ask(user=u, **more).headers["x-tidemill-model"] for u in users]

        first = went()
        assert {*first} == {"chat@1", "chat@2"} and went(stream=True) == first
        message = [{"role": "user", "content": "hello"}]
        for route, body in (
            ("/v1/chat/completions", {"messages": message, "max_tokens": 2}),
            ("/v1/embeddings", {"input": "hello"}),
            ("/v1/responses", {"input": "hello"}),
        ):
            answers = [
                server.http.post(route, json={"model": "chat", "user": u, **body}) for u in users
            ]
            assert [a.headers["x-tidemill-model"] for a in answers] == first, route
            assert {a.json()["model"] for a in answers} == {"chat"}
        assert "tidemill_version_effect{" in server.http.get("/metrics").text
        server.command("abort", "chat")
        assert {*went()} == {"chat@1"}


def test_a_shadow_gets_copies_and_clients_see_nothing_of_it() -> None:
    shadow = _engine("chat@2", script=_fails(1))
    with _serving(shadow) as server:
        server.command("start", "chat", "--to", "2", "--shadow", "--fraction", "1", "--while-busy")
        answers = [server.ask() for _ in range(30)]
        assert {a.status_code for a in answers} == {200}
        assert {a.headers["x-tidemill-model"] for a in answers} == {"chat@1"}

        def compared(found: dict[str, Any]) -> bool:
            arms = found["experiment"]["arms"]
            return bool(arms[1]["failures"] >= 20)

        found = server.ask_until(compared)
        assert found["experiment"]["arms"][0]["failures"] == 0
        assert "2 against 1" in server.command("status", "chat")


def test_errors_name_the_field_and_the_remedy() -> None:
    with _serving(_engine("chat@2")) as server:
        for body, field, part in (
            ({"name": "chat"}, "to", "new version"),
            ({"name": "chat", "to": "3"}, "to", "it has 1, 2"),
            ({"name": "chat", "to": "1"}, "to", "another version"),
            ({"name": "chat", "to": "2", "steps": [5, 1]}, "steps[1]", "rise"),
            ({"name": "chat", "to": "2", "bounds": {"speed": 1}}, "bounds", "speed"),
            ({"name": "chat", "traffic": {"kind": "weights"}}, "traffic", "weights"),
            ({"name": "chat", "traffic": "1", "to": "2"}, "to", "left out"),
            ({"name": "other", "to": "2"}, "name", "other@1"),
        ):
            answer = server.http.post(ADMIN, json=body)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == field, error
            assert part in error["message"]
        assert server.http.get(f"{ADMIN}/nobody").status_code == 404
        page = {"origin": "https://evil.example", "content-type": "text/plain"}
        assert server.http.post(f"{ADMIN}/chat/promote", headers=page).status_code == 415
        listed = server.http.get("/v1/models").json()["data"]
        assert [card["id"] for card in listed][:4] == ["chat", "talk", "chat@1", "chat@2"]


def test_a_server_without_versions_makes_nothing_for_them() -> None:
    context = fake_context(_engine("other"))
    with serving(context) as url:
        server = _Server(context, url)
        assert "no name of this server has versions" in server.command("status")
        with pytest.raises(TidemillError, match="other@1"):
            server.command("start", "other", "--to", "2")
        with pytest.raises(TidemillError, match="has none"):
            server.command("status", "chat")
        assert server.ask(model="other").headers["x-tidemill-model"] == "other"
        assert context.host.versions is None
        server.http.close()
