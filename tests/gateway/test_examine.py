"""`tidemill doctor --cluster`."""

from __future__ import annotations

import json
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.addresses import free_port
from helpers.scripted_target import ScriptedTarget, chat, running

from tidemill.cli.main import app_of
from tidemill.contract.gateway import PROTOCOL, interoperate
from tidemill.gateway import examine
from tidemill.gateway.probe import Probes


def _doctor(file: Path, *flags: str) -> tuple[int, str]:
    found = CliRunner().invoke(app_of(["doctor"]), ["doctor", "--cluster", str(file), *flags])
    return found.exit_code, found.output


def _load(identity: str = "i", protocol: int = PROTOCOL) -> dict[str, Any]:
    return {"protocol": protocol, "models": {"m": {"wait": 1.5, "identity": identity}}}


def _file(tmp_path: Path, *targets: ScriptedTarget, more: str = "", row: str = "") -> Path:
    text = "".join(
        f'[[targets]]\nname = "{name}"\nurl = "{one.url}"\n{row}\n'
        for name, one in zip("abc", targets, strict=False)
    )
    (file := tmp_path / "g.toml").write_text(text + more)
    return file


def test_targets_that_are_well(tmp_path: Path) -> None:
    one = ScriptedTarget(chat("x"), load=_load())
    two = ScriptedTarget(chat("x"), load=_load(protocol=PROTOCOL + 1))
    with running(one, two):
        file = _file(tmp_path, one, two)
        code, text = _doctor(file)
        assert code == 0 and text.count("well") == 2 and "1.5 s" in text
        code, text = _doctor(file, "--json")
    found = json.loads(text)
    assert code == 0 and not found["problems"]
    assert [t["protocol"] for t in found["targets"]] == [PROTOCOL, PROTOCOL + 1]
    assert all(t["models"] == ["m"] and t["round_trip_ms"] > 0 for t in found["targets"])


def test_engines_that_come_later(tmp_path: Path) -> None:
    code, text = _doctor(_file(tmp_path, more="[scaled.m]\n"))
    assert code == 0 and "no targets" in text


@pytest.mark.parametrize(
    ("changes", "row", "more", "said"),
    [
        ({"load": _load(protocol=PROTOCOL + 2)}, "", "", "update this gateway first"),
        ({"load": None}, "", "", "no Tidemill server"),
        ({"load": _load(), "date": formatdate(1e9, usegmt=True)}, "", "", "behind this machine's"),
        ({"well": False, "load": _load()}, "", "", "503"),
        ({"load": _load()}, 'models = ["m", "x"]', "", "it does not list x"),
        ({"load": _load()}, "", '[fallbacks]\nm = ["small"]', "no target has small"),
        (
            {"load": _load()},
            'tags = ["outside"]',
            "[privacy]\nalways = true",
            "private requests for m are refused",
        ),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, changes: dict[str, Any], row: str, more: str, said: str
) -> None:
    with running(target := ScriptedTarget(chat("x"), **changes)):
        code, text = _doctor(_file(tmp_path, target, row=row, more=more))
    assert code == 1 and said in text


@pytest.mark.parametrize(("ahead", "shown"), [(0, 0), (-1.9, 0), (-7, -5), (30, 30)])
def test_dates_of_whole_seconds_are_no_difference_of_clocks(
    monkeypatch: pytest.MonkeyPatch, ahead: float, shown: float
) -> None:
    monkeypatch.setattr(examine, "wall", lambda: 1e9 - ahead)
    assert examine.clock_ahead(formatdate(1e9, usegmt=True)) == shown


def test_a_target_that_is_not_there_and_engines_that_differ(tmp_path: Path) -> None:
    one = ScriptedTarget(chat("x"), load=_load("i"))
    two = ScriptedTarget(chat("x"), load=_load("j"))
    gone = ScriptedTarget(chat("x"), url=f"http://127.0.0.1:{free_port()}")
    with running(one, two):
        code, text = _doctor(_file(tmp_path, one, two, gone))
    assert code == 1 and "c: no connection" in text
    assert "m: the engines of a and b differ" in text


def test_a_deployment_file_with_upstream(tmp_path: Path) -> None:
    with running(target := ScriptedTarget(chat("x"))):
        (file := tmp_path / "d.toml").write_text(
            f'[[upstream.targets]]\nname = "a"\nurl = "{target.url}"\nkind = "vllm"\n'
        )
        assert _doctor(file)[0] == 0


def test_versions_one_apart_talk() -> None:
    assert interoperate(2, 1) and interoperate(1, 2) and interoperate(0, 1)
    assert not interoperate(0, 2)


async def test_a_gateway_takes_a_target_of_another_time_out(tmp_path: Path) -> None:
    from tidemill.gateway.config import read
    from tidemill.gateway.fleet import Fleet

    with running(target := ScriptedTarget(chat("x"), load=_load(protocol=PROTOCOL + 2))):
        fleet = Fleet(read(_file(tmp_path, target)))
        await Probes(fleet).look(fleet.targets[0])
        assert "update this gateway first" in fleet.targets[0].health.reason
        assert fleet.targets[0].health.opened is not None
        fleet.targets[0].pool.close()
