"""`tidemill explain` against a running server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import TidemillError
from tidemill.cli.explain import explain
from tidemill.contract.prices import Prices


def run(url: str, id: str | None = None, **given: object) -> None:
    flags = {"as_json": False, "svg": None, "model": None, "slower": None, "limit": 20}
    explain(id, url=url, api_key=None, **{**flags, **given})  # type: ignore[arg-type]


def test_a_request_as_text_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = fake_context(ScriptedEngine(), explain=True)
    context.keep_recent(9, Prices())
    with serving(context) as url:
        run(url)
        assert capsys.readouterr().out == "no requests\n"
        body = {"model": "tiny", "prompt": "a", "max_tokens": 3}
        httpx.post(f"{url}/v1/completions", json=body, headers={"x-request-id": "req/1"})
        run(url, model="tiny")
        [head, line] = capsys.readouterr().out.splitlines()
        assert head.split()[0] == "id" and line.split()[:3] == ["req/1", "tiny", "200"]
        run(url, "req/1")
        shown = capsys.readouterr().out
        assert shown.startswith("req/1  tiny  200 finished") and "prepare" in shown
        run(url, "req")
        assert capsys.readouterr().out == shown
        run(url, "req/1", as_json=True)
        assert json.loads(capsys.readouterr().out)["id"] == "req/1"
        run(url, "req/1", svg=tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text().startswith("<svg ")
        with pytest.raises(TidemillError, match="no request 'other'"):
            run(url, "other")
        with pytest.raises(TidemillError, match="give its id"):
            run(url, svg=tmp_path / "b.svg")
        with pytest.raises(TidemillError, match="give no id"):
            run(url, "req/1", slower=1.0)
