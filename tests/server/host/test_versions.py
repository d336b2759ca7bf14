"""Requests of a name go to its versions as its traffic says, and are measured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from helpers.live_server import add_model, fake_context
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.base.errors import TidemillError
from tidemill.generation.caller import Caller
from tidemill.server.context import ServerContext
from tidemill.server.errors import Rejection
from tidemill.server.host.rollout.traffic import Canary, Single, Step, Traffic, Weights
from tidemill.server.host.source import NameOptions


def _engine(name: str) -> ScriptedEngine:
    return ScriptedEngine(info=fake_info(model=name))


def _server(*models: str, folder: Path | None = None, rule: Traffic | None = None) -> ServerContext:
    context = fake_context(_engine(models[0]))
    context.state_folder = folder
    for name in models[1:]:
        add_model(context, _engine(name))
    if rule is None:
        context.versions().group()
    else:
        context.versions().declare("chat", ("1", "2"), aliases=("talk",), rule=rule)
    return context


def _run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def test_the_highest_version_answers_where_no_rule_says_another() -> None:
    context = _server("chat@2", "chat@10", "other")
    host = context.host
    assert host.find("chat").name == "chat@10" and host.find("chat@2").name == "chat@2"
    assert host.called("chat") == "chat" and host.called("chat@2") == "chat@2"
    assert host.route(None).slot.name == "chat@10" and host.names[0] == "chat"
    assert host.route("other").watch is None and host.route("chat").watch is None
    with pytest.raises(Rejection):
        host.find("chat@3")


def test_a_name_without_its_version_is_found_as_soon_as_there_is_one() -> None:
    context = _server("other")
    host, looks = context.host, 0
    host.on_added = lambda name: context.versions().added(name) if "@" in name else None

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            add_model(context, _engine("chat@1"))

    host.look = look
    routed = host.route("chat:latest")
    assert (routed.slot.name, routed.called, looks) == ("chat@1", "chat", 1)
    assert host.called("chat:latest") == "chat" and host.find("chat").name == "chat@1"
    assert host.find("other:latest").name == "other" == host.route("other:latest").slot.name
    assert host.find("chat:latest@1").name == "chat@1"
    with pytest.raises(Rejection, match="'third:latest' does not exist"):
        host.route("third:latest")


def test_a_version_that_comes_later_gets_no_traffic_by_itself() -> None:
    context = _server("chat@1", "other")
    context.host.on_added = context.versions().added
    add_model(context, _engine("chat@2"))
    assert context.host.find("chat").name == "chat@1"
    traffic = context.versions().find("chat")
    assert traffic is not None and traffic.versions == ["1", "2"]
    add_model(context, _engine("code@1"))
    assert context.host.find("code").name == "code@1"
    # As in the library, a model of exactly that name is what the name means.
    add_model(context, _engine("code"))
    assert context.host.find("code").name == "code"

    async def drop() -> None:
        context.host.drop(context.host.find("code"))
        assert context.host.find("code").name == "code@1"
        await context.host.close()

    _run(drop)


def test_a_declared_name_cannot_be_a_models() -> None:
    context = _server("chat@1", "chat@2", rule=Single(version="1"))
    for name in ("chat", "talk"):
        with pytest.raises(TidemillError, match="rename"):
            add_model(context, _engine(name))


def test_users_keep_their_version_and_both_versions_answer() -> None:
    context = _server("chat@1", "chat@2", rule=Weights(weights={"1": 1.0, "2": 1.0}))
    users = [Caller(client="key:a", user=str(i)) for i in range(60)]

    def went() -> list[str]:
        return [context.host.route("talk", user).slot.name for user in users]

    assert went() == went() and {*went()} == {"chat@1", "chat@2"}
    # A user of another key is another user.
    others = [Caller(client="key:b", user=str(i)) for i in range(60)]
    assert [context.host.route("talk", user).slot.name for user in others] != went()


async def _ask(context: ServerContext, name: str, error: Exception | None = None) -> str:
    try:
        async with context.host.lease(name) as model:
            if error is not None:
                raise error
            observer = model.observe()
            for _ in range(3):
                observer.tokens(0, 1)
            observer.finish("stop", 8, 2)
            return model.name
    except RuntimeError:
        return ""


CANARY = Canary(stable="1", canary="2", steps=(Step(percent=50, observations=5, seconds=0),))


def test_a_canary_counts_answers_and_failures_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        context = _server("chat@1", "chat@2", folder=tmp_path, rule=CANARY)
        assert {await _ask(context, "chat") for _ in range(40)} == {"chat"}
        for _ in range(10):
            await _ask(context, "talk", RuntimeError("a bug"))
        traffic = context.versions().find("chat")
        assert traffic is not None and traffic.rollout is not None
        arms = traffic.rollout.state.comparison.arms
        assert sum(arm.requests for arm in arms) == 50 and sum(arm.failures for arm in arms) == 10
        await context.host.close()
        context.versions().refresh()
        text = context.metrics.render()[0].decode()
        assert 'tidemill_version_traffic_ratio{model="chat",version="2"} 0.5' in text

        again = _server("chat@1", "chat@2", folder=tmp_path, rule=CANARY)
        restored = again.versions().find("chat")
        assert restored is not None and restored.rollout is not None and restored.running
        assert sum(arm.requests for arm in restored.rollout.state.comparison.arms) == 50
        again.versions().promote(restored)
        assert again.host.find("chat").name == "chat@2" and not restored.running
        await again.host.close()

        # What the rollout led to counts until the deployment says another rule.
        third = _server("chat@1", "chat@2", folder=tmp_path, rule=CANARY)
        assert third.host.find("chat").name == "chat@2"
        fourth = _server("chat@1", "chat@2", folder=tmp_path, rule=Single(version="1"))
        assert fourth.host.find("chat").name == "chat@1"

    _run(main)


def test_damaged_state_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_bytes(b"{")
    context = _server("chat@1", "chat@2", folder=tmp_path, rule=Single(version="1"))
    assert context.host.find("chat").name == "chat@1"


def test_a_version_that_is_gone_ends_its_rollout() -> None:
    async def main() -> None:
        context = _server("chat@1", "chat@2", rule=CANARY)
        await context.host.remove("chat@2")
        traffic = context.versions().find("chat")
        assert traffic is not None and not traffic.running and traffic.rule == Single(version="1")
        await context.host.remove("chat@1")
        assert context.versions().find("chat") is None

    _run(main)


def test_time_alone_ends_a_rollout_and_no_task_is_left() -> None:
    async def main() -> None:
        context = _server("chat@1", "chat@2", "other")
        versions = context.versions()
        versions.tick_seconds = 0.01
        traffic = versions.find("chat")
        assert traffic is not None and not versions.attending
        rule = Canary(stable="2", canary="1", max_seconds=0.02)
        versions.set_rule(traffic, rule)
        while traffic.running:
            await asyncio.sleep(0.005)
        assert (
            traffic.rollout is not None and "undecided" in traffic.rollout.state.events[-1].reason
        )
        while versions.attending:
            await asyncio.sleep(0.005)
        assert await _ask(context, "other") == "other" and not versions.attending

    _run(main)


def test_a_reload_changes_names_and_rules_and_touches_no_other_rollout() -> None:
    async def main() -> None:
        context = _server("chat@1", "chat@2", "code@1", "code@2", rule=CANARY)
        versions, host = context.versions(), context.host
        traffic = versions.find("chat")
        assert traffic is not None and traffic.running
        await _ask(context, "chat")
        both = NameOptions("chat", ("1", "2"), CANARY, ("speak",))
        versions.follow((both, NameOptions("code", ("1", "2"), Single(version="2"))))
        assert versions.find("chat") is traffic is versions.find("speak")
        assert versions.find("talk") is None and host.find("code").name == "code@2"

        versions.follow((NameOptions("chat", ("1", "2"), Single(version="2")),))
        assert host.find("chat").name == "chat@2" and versions.find("code") is None
        chat = versions.find("chat")
        assert chat is not None and not chat.running
        await host.close()

    _run(main)


def test_a_pattern_may_mean_a_name_with_versions() -> None:
    context = fake_context(_engine("chat@1"))
    for name, aliases in (("chat@2", ()), ("other", ("claude-haiku-*",))):
        add_model(context, _engine(name), aliases=aliases)
    rule = Weights(weights={"1": 1.0, "2": 0.0})
    context.versions().declare("chat", ("1", "2"), aliases=("claude-*",), rule=rule)
    host = context.host
    routed = host.route("claude-opus-4-8")
    assert (routed.slot.name, routed.called) == ("chat@1", "chat")
    assert host.called("claude-opus-4-8") == "chat" and host.find("claude-opus").name == "chat@1"
    assert host.route("claude-haiku-5").slot.name == "other", "the longest pattern"
    assert host.names == ("chat", "chat@1", "chat@2", "other")
    with pytest.raises(Rejection, match="'gpt-5' does not exist"):
        host.route("gpt-5")
