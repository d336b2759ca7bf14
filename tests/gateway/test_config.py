"""The gateway's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.gateway.config import (
    GatewayConfig,
    PrivacyConfig,
    RoutingConfig,
    ScaledConfig,
    TargetConfig,
    checked,
    read,
)

ONE = {"name": "a", "url": "http://127.0.0.1:8001/v1/"}


def test_defaults_and_names() -> None:
    config = checked({"targets": [{**ONE, "models": ["x"]}]})
    [target] = config.targets
    assert target.kind == "tidemill" and target.names == {"x": "x"}
    assert (target.address.authority, target.address.path) == ("127.0.0.1:8001", "")


@pytest.mark.parametrize(
    ("url", "kind", "where"),
    [
        ("http://127.0.0.1:1", "tidemill", "local"),
        ("http://10.1.2.3", "vllm", "local"),
        ("http://engine-3:8000", "vllm", "local"),
        ("http://[fd00::1]:8000", "vllm", "local"),
        ("https://api.example.com", "vllm", "outside"),
        ("http://8.8.8.8", "tidemill", "outside"),
        ("http://127.0.0.1:1", "openai", "outside"),
    ],
)
def test_where_targets_are(url: str, kind: str, where: str) -> None:
    target = TargetConfig(name="a", url=url, kind=kind)
    assert target.where == {where}
    assert TargetConfig(name="a", url=url, kind=kind, tags=["eu"]).where == {"eu"}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "targets"),
        ({"targets": []}, "targets"),
        ({"targets": [ONE, ONE]}, "two targets"),
        ({"scaled": {"m": {"max_held": 0}}}, "max_held"),
        ({"targets": [{**ONE, "url": "ftp://x"}]}, "url"),
        ({"targets": [{**ONE, "url": "http://me:secret@x"}]}, "credentials"),
        ({"targets": [{**ONE, "kind": "llama"}]}, "kind"),
        ({"targets": [{**ONE, "kind": "anthropic"}]}, "models"),
        ({"targets": [{**ONE, "key_env": "NO_SUCH_VARIABLE"}]}, "NO_SUCH_VARIABLE"),
        ({"targets": [{**ONE, "nam": 1}]}, "targets[0]: nam is no key here; did you mean name?"),
        ({"targets": [{"url": "http://x"}]}, "targets[0]: name is missing"),
        ({"targets": [{**ONE, "models": "m"}]}, "expected a table or a list, got a string"),
        (
            {"targets": [{**ONE, "max_active": 0}]},
            "max_active: expected a whole number >= 1",
        ),
        ({"target": [ONE]}, "target is no key here; did you mean targets?"),
        ({"targets": [ONE], "routing": {"retry": 1}}, "routing: retry is no key here"),
        ({"targets": [{**ONE, "price": {"in": 1}}]}, "targets[0].price: in is no key here"),
        ({"targets": [ONE], "routing": {"policy": "best"}}, "policy"),
        ({"targets": [ONE], "routing": {"retries": -1}}, "retries"),
        ({"targets": [ONE], "privacy": {"detectors": ["iban"]}}, "iban"),
        ({"targets": [ONE], "privacy": {"patterns": {"x": "("}}}, "patterns.x"),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(TidemillError, match=re.escape(words)) as caught:
        checked(table)
    assert caught.value.kind is ErrorKind.CONFIG and "secret" not in caught.value.message


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('[[targets]]\nname = "a"\nurl = "http://x"\n[fallbacks]\nbig = ["small"]\n')
    assert read(path).fallbacks == {"big": ["small"]}
    path.write_text("targets = [")
    with pytest.raises(TidemillError, match="no TOML"):
        read(path)
    with pytest.raises(TidemillError, match="cannot be read"):
        read(tmp_path / "none.toml")


def test_the_example_of_the_documentation_and_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    text = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    for name in ("A_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")
    assert checked(tomllib.loads(text.split("```toml\n")[1].split("```")[0])).fallbacks
    for struct in (GatewayConfig, TargetConfig, RoutingConfig, PrivacyConfig, ScaledConfig):
        for field in msgspec.structs.fields(struct):
            assert field.name in text, field.name
