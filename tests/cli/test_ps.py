"""`tidemill ps`, `load` and `stop` against a running server, and without one."""

from __future__ import annotations

import json
import socket

import pytest
from helpers.fake_source import FakeSource, managed, option
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cli.ps import load, ps, stop
from tidemill.server.host.source import ModelChanges


def test_a_model_is_loaded_shown_and_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    context = fake_context(ScriptedEngine())
    first = context.host.default.name
    source = FakeSource(ModelChanges(added=(option("b"), option("c"))))
    managed(context, source)
    with serving(context) as url:
        load("b", keep_alive="90m", as_json=False, url=url, api_key=None)
        ps(every=False, as_json=False, url=url, api_key=None)
        shown = capsys.readouterr()
        assert shown.out.splitlines()[0] == "b is loaded"
        rows = {line.split()[0]: line for line in shown.out.splitlines()[2:]}
        assert rows.keys() == {first, "b"} and "memory is needed" in rows[first]
        assert "89 min" in rows["b"] or "90 min" in rows["b"]
        assert "1 more not loaded" in shown.err
        stop("b", as_json=False, url=url, api_key=None)
        assert capsys.readouterr().out == "b is unloaded\n"
        stop("b", as_json=True, url=url, api_key=None)
        assert json.loads(capsys.readouterr().out)["state"] == "unloaded"
        ps(every=False, as_json=True, url=f"{url}/v1", api_key=None)
        states = {m["name"]: m["state"] for m in json.loads(capsys.readouterr().out)["models"]}
        assert states == {first: "loaded", "b": "unloaded", "c": "unloaded"}
        with pytest.raises(TidemillError, match="does not exist") as unknown:
            stop("nowhere", as_json=False, url=url, api_key=None)
        assert unknown.value.kind is ErrorKind.NOT_FOUND


def test_without_a_server_the_error_says_how_to_start_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(TidemillError, match="tidemill serve"):
            ps(every=False, as_json=False, url=url, api_key=None)
