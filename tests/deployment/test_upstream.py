"""`[upstream]` of a deployment file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.cli.deployments import check_upstream
from tidemill.deployment.deployment import Deployment
from tidemill.deployment.difference import difference
from tidemill.deployment.show import as_toml, rows

FILE = """
[[upstream.targets]]
name = "a"
url = "http://10.0.0.1:8000"
key_env = "A_KEY"
cache_tokens = 5
[upstream.fallbacks]
large = ["brook"]
"""
Deploy = Callable[..., Deployment]


def test_tables_are_a_gateway_s(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k")
    found = deploy(FILE, checks=(check_upstream,))
    assert found.upstream["targets"][0]["url"] == "http://10.0.0.1:8000"
    assert found.upstream["fallbacks"] == {"large": ["brook"]} and len(found.upstream) == 2
    assert not deploy("").upstream
    shown = as_toml(rows(found), found)
    assert deploy(shown).upstream == found.upstream


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("[upstream.fallbacks]\nlarge = [1]", "t.toml:", "upstream"),
        ("[[upstream.targets]]\nname = 'here'\nurl = 'http://a'", "upstream.targets", "'here'"),
        ("[[upstream.targets]]\nname = 'a'\nurl = 'http://u:p@a'", "upstream.targets", "key_env"),
        (FILE, "upstream.targets", "the variable A_KEY is not set"),
        (
            FILE.replace('key_env = "A_KEY"', "") + "[upstream.routing]\npolicy = 'best'",
            "upstream.routing",
            "'best'",
        ),
        ("[gateway]\nx = 1", "gateway", "did you mean upstream?"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(
    problems: Callable[..., list[str]], text: str, place: str, said: str
) -> None:
    [line] = problems(text, checks=(check_upstream,))
    assert place in line and said in line and "t.toml:" in line and "u:p" not in line


def test_a_change_is_applied_in_place(deploy: Deploy) -> None:
    found = difference(deploy(FILE), deploy(FILE.replace("8000", "9000")))
    [change] = found.server
    assert (change.table, change.key) == ("upstream", "targets") and not found.rejected


def test_a_first_one_and_the_last_one_s_end_take_another_start(deploy: Deploy) -> None:
    for before, after in (("", FILE), (FILE, "")):
        found = difference(deploy(before), deploy(after))
        assert {change.key for change in found.rejected} == {"targets", "fallbacks"}
        assert not found.server
