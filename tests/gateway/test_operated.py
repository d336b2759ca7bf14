"""What administrators ask targets through a gateway, and the commands that do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_loader import FakeLoaded
from helpers.fake_source import FakeSource, managed, option
from helpers.gateway import Door
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import TidemillError
from tidemill.cli.profile import profile
from tidemill.cli.ps import ps
from tidemill.contract.profile import EngineProfile
from tidemill.server.access.security import Security
from tidemill.server.host.source import ModelChanges

_SILENT = {"name": "b", "url": "http://127.0.0.1:9", "models": ["other"]}
_OTHER = {"name": "c", "url": "http://127.0.0.1:9", "kind": "vllm", "models": ["far"]}


async def _profiled(seconds: float, events: int, rates: bool) -> EngineProfile:
    return EngineProfile(
        seconds=seconds,
        steps=0,
        counters=None,
        idle_seconds=seconds,
        waiting_seconds=0.0,
        submitting_seconds=0.0,
        thread_cpu_seconds=0.0,
        process_cpu_seconds=0.0,
    )


@pytest.fixture
def gateway() -> Iterator[Door]:
    """In front of a server with two models, one that does not answer, and one of another kind."""
    context = fake_context(ScriptedEngine())
    loaded = context.host.default.loaded
    assert isinstance(loaded, FakeLoaded)
    loaded.profiled = _profiled
    managed(context, FakeSource(ModelChanges(added=(option("second"),))))
    with serving(context) as url:
        rows = [{"name": "a", "url": url, "models": {"mine": "tiny"}}, _SILENT, _OTHER]
        routing = {"probe_seconds": 3600.0}
        opened = Door({"targets": rows, "routing": routing}, Security(), records=False)
        try:
            yield opened
        finally:
            opened.close()


def test_ps_shows_the_models_of_all_targets(
    gateway: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    ps(every=False, as_json=False, url=gateway.url, api_key=None)
    shown = capsys.readouterr()
    head, row = shown.out.splitlines()
    assert head.split()[-1] == "target"
    assert row.split()[0] == "tiny" and row.split()[-1] == "a"
    assert "target b does not say: no connection" in shown.err
    assert "target c" not in shown.err  # it is asked nothing
    ps(every=True, as_json=True, url=gateway.url, api_key=None)
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["target"]) for one in found["models"]] == [
        *(("tiny", "a"), ("second", "a"))
    ]


def _profile(gateway: Door, **more: Any) -> None:
    given = {"model": None, "target": None, "seconds": 1.0, "trace": None, "roofline": False}
    profile(**{**given, **more}, as_json=True, url=gateway.url, api_key=None)


def test_a_profile_is_the_named_target_s(gateway: Door, capsys: pytest.CaptureFixture[str]) -> None:
    _profile(gateway, target="a", model="mine")
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["seconds"]) == ("tiny", 1.0)
    with pytest.raises(TidemillError, match="elsewhere"):
        _profile(gateway, target="a", model="elsewhere")
    with pytest.raises(TidemillError, match="target b: no connection"):
        _profile(gateway, target="b")
    for target, said in ((None, "name the target; there are a, b"), ("c", "no Tidemill target")):
        with pytest.raises(TidemillError, match=said) as wrong:
            _profile(gateway, target=target)
        assert wrong.value.param == "target"
