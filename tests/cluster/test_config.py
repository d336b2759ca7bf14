"""The cluster's file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cluster import gateways
from tidemill.cluster.config import (
    ClusterConfig,
    GatewaysConfig,
    ModelConfig,
    checked,
    deployment,
    read,
)
from tidemill.cluster.placement import ENGINE, Phase, Placed
from tidemill.gateway.config import checked as checked_gateway

ONE = {"name": "m", "min": 0, "max": 4}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "models"),
        ({"models": [{**ONE, "mni": 1}]}, "mni"),
        ({"models": [{"name": "a/b"}]}, "models.name"),
        ({"models": [ONE, ONE]}, "two tables"),
        ({"models": [{**ONE, "min": 5}]}, "models['m'].min: must be 0 or more, and at most max"),
        ({"models": [{**ONE, "idle": "soon"}]}, "models['m'].idle"),
        ({"models": [{**ONE, "drain": "forever"}]}, "models['m'].drain"),
        ({"models": [{**ONE, "target_wait": 0}]}, "models['m'].target_wait"),
        ({"models": [{**ONE, "role": "draft"}]}, "models['m'].role"),
        ({"models": [{**ONE, "args": ["--port=1"]}]}, "models['m'].args"),
        ({"models": [ONE], "name": "a b"}, "name"),
        ({"models": [ONE], "routing": {"policy": "best"}}, "policy"),
        ({"models": [ONE], "targets": [{"name": "x", "url": "ftp://x"}]}, "url"),
        ({"models": [ONE], "gateway": {"count": 0}}, "count"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(TidemillError) as caught:
        checked(table)
    assert caught.value.kind is ErrorKind.CONFIG and words in caught.value.message


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for text, words in (("[", "no TOML"), (None, "cannot be read")):
        (file := tmp_path / "c.toml").unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        with pytest.raises(TidemillError, match=words):
            read(file)


def test_durations_roles_and_bounds() -> None:
    config = checked(
        {
            "models": [
                {"name": "m", "role": "prefill", "idle": "5m", "target_wait": "500ms"},
                {"name": "m", "role": "decode", "min": 2},
            ]
        }
    )
    prefill, decode = config.models
    assert (prefill.pool, decode.pool) == ("m.prefill", "m.decode")
    assert (prefill.objectives.idle, prefill.objectives.target_wait) == (300.0, 0.5)
    assert prefill.objectives.signals != decode.objectives.signals
    assert (decode.objectives.min_engines, decode.objectives.max_engines) == (2, 2)


def test_scaled_by_hand() -> None:
    config = checked({"models": [ONE, {"name": "n"}]})
    after = config.scaled("n", 0, 3)
    assert (after.models[1].min, after.models[1].max, after.models[0]) == (0, 3, config.models[0])
    for pool, least, most in (("x", 0, 1), ("n", 3, 1)):
        with pytest.raises(TidemillError):
            config.scaled(pool, least, most)


def test_what_an_engine_is_started_with_decides_whether_it_is_replaced() -> None:
    base = ModelConfig(**ONE)
    replace = msgspec.structs.replace
    same = (replace(base, max=9), replace(base, idle=1.0), replace(base, model="m"))
    assert {one.digest for one in same} == {base.digest}
    other = (replace(base, args=["--x"]), replace(base, revision="2"), replace(base, cpus=2.0))
    assert len({base.digest, *(one.digest for one in other)}) == 4


def test_secrets_come_from_the_environment() -> None:
    table = {
        "models": [{**ONE, "pass_env": ["HF_TOKEN"]}],
        "targets": [{"name": "p", "url": "http://p", "kind": "vllm"}],
    }
    config = checked(table)
    with pytest.raises(TidemillError, match="HF_TOKEN"):
        deployment(config, {}, "drawn")
    made = deployment(config, {"HF_TOKEN": "t", "TIDEMILL_API_KEY": "mine"}, "drawn")
    assert (made.engine_key, made.client_key, made.passed) == ("drawn", "mine", {"HF_TOKEN": "t"})
    assert deployment(config, {"HF_TOKEN": "t"}, "drawn").client_key == "drawn"
    open_ = checked({"models": [ONE], "gateway": {"insecure": True}})
    made = deployment(open_, {"TIDEMILL_API_KEY": "mine"}, "drawn")
    spec = gateways.spec(made, "g", None, "")
    assert made.client_key == "" and "--insecure" in spec.arguments
    assert "TIDEMILL_API_KEY" not in spec.env and spec.env["ENGINE_KEY"] == "drawn"


def test_the_gateways_file_is_one_of_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "k")
    config = checked(
        {
            "models": [{**ONE, "hold": "1m"}],
            "routing": {"retries": 1},
            "privacy": {"patterns": {"a": "\\bx\"y'\\d+"}},
            "fallbacks": {"m": ["n"]},
            "targets": [{"name": "p", "url": "http://p", "kind": "vllm", "models": {"n": "N"}}],
        }
    )
    engine = Placed(
        name="m-1", kind=ENGINE, pool="m", digest="", phase=Phase.READY, url="http://10.0.0.1:7"
    )
    text = gateways.text(config.gateway_file([gateways.target(engine, config.models[0])]))
    found = checked_gateway(tomllib.loads(text))
    assert [(one.name, list(one.names), one.url) for one in found.targets] == [
        ("m-1", ["m"], "http://10.0.0.1:7"),
        ("p", ["n"], "http://p"),
    ]
    assert found.scaled["m"].hold_seconds == 60 and found.privacy.patterns["a"] == "\\bx\"y'\\d+"
    assert found.fallbacks == {"m": ["n"]} and found.targets[0].where == {"local"}


def test_the_documentation_has_its_examples_and_all_keys() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    assert checked(tomllib.loads(text.split("```toml\n")[1].split("```")[0])).models
    for struct in (ClusterConfig, ModelConfig, GatewaysConfig):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.name}`" in text or f"{field.name} =" in text, field.name
