"""Traffic rules: read, written back, and errors that name field and remedy."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.server.host.rollout.traffic import (
    Bounds,
    Canary,
    Shadow,
    Single,
    Step,
    Traffic,
    Weights,
    parse_traffic,
    to_builtins,
    versions_of,
)

RULES: list[Traffic] = [
    Single(version="2"),
    Weights(weights={"1": 90.0, "2": 10.0}, sticky="key"),
    Canary(
        stable="1",
        canary="2024-11.rc_1",
        steps=(1.0, Step(percent=10.0, seconds=5.0), 50.0, 100.0),
        bounds=Bounds(errors="off", shorter=0.5),
        max_seconds=3600.0,
    ),
    Shadow(version="1", shadow="2", fraction=1.0),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_that_is_written_back_is_read_again(rule: Traffic) -> None:
    plain = to_builtins(rule)
    assert parse_traffic(plain) == rule
    assert parse_traffic(msgspec.json.decode(msgspec.json.encode(plain))) == rule
    assert "None" not in repr(plain)  # TOML has no null


def test_a_rule_is_read_from_toml() -> None:
    raw = tomllib.loads(
        """
        [traffic.chat]
        kind = "canary"
        stable = "1"
        canary = "2"
        steps = [5, { percent = 50, seconds = 60 }]
        bounds = { errors = 0.02, itl = "off" }
        """
    )
    assert parse_traffic(raw["traffic"]["chat"]) == Canary(
        stable="1",
        canary="2",
        steps=(5.0, Step(percent=50.0, seconds=60.0)),
        bounds=Bounds(errors=0.02, itl="off"),
    )


def test_a_string_is_the_one_version() -> None:
    assert parse_traffic("2") == Single(version="2")


def test_versions_come_with_the_stable_one_first() -> None:
    assert [versions_of(rule) for rule in RULES] == [
        ("2",),
        ("1", "2"),
        ("1", "2024-11.rc_1"),
        ("1", "2"),
    ]


def test_steps_take_what_they_lack_from_the_canary_and_leave_out_the_promotion() -> None:
    rule = Canary(
        stable="1", canary="2", steps=(1, Step(percent=50, seconds=7), 100), observations=9
    )
    assert rule.plan() == (
        Step(percent=1.0, observations=9, seconds=300.0),
        Step(percent=50.0, observations=9, seconds=7.0),
    )


CANARY = {"kind": "canary", "stable": "1", "canary": "2"}
FAULTS: list[tuple[Any, str, str]] = [
    ({"kind": "canari"}, "traffic.chat.kind", "single, weights, canary or shadow"),
    ({"kind": "single"}, "traffic.chat", "version"),
    ({"version": "2"}, "traffic.chat", "kind"),
    (7, "traffic.chat", "int"),
    ({"kind": "single", "version": "2", "wieght": 1}, "traffic.chat", "wieght"),
    ("a b", "traffic.chat.version", "letters"),
    ({"kind": "weights", "weights": {}}, "traffic.chat.weights", "1 to 32"),
    ({"kind": "weights", "weights": {"1": 0}}, "traffic.chat.weights", "above 0"),
    ({"kind": "weights", "weights": {"1": -1, "2": 2}}, "traffic.chat.weights.1", "at least 0"),
    ({"kind": "weights", "weights": {"1": float("inf")}}, "traffic.chat.weights.1", "inf"),
    ({"kind": "weights", "weights": {"/": 1}}, "traffic.chat.weights", "letters"),
    ({"kind": "weights", "weights": {"1": 1}, "sticky": "ip"}, "traffic.chat.sticky", "ip"),
    ({**CANARY, "canary": "1"}, "traffic.chat.canary", "another version"),
    ({**CANARY, "steps": []}, "traffic.chat.steps", "1 to 20"),
    ({**CANARY, "steps": [5, 5]}, "traffic.chat.steps[1]", "rise"),
    ({**CANARY, "steps": [101]}, "traffic.chat.steps[0]", "at most 100"),
    ({**CANARY, "steps": [100]}, "traffic.chat.steps", "below 100"),
    ({**CANARY, "steps": [{"percent": "1"}]}, "traffic.chat.steps[0].percent", "str"),
    ({**CANARY, "observations": 0}, "traffic.chat.steps[0].observations", "1 to"),
    ({**CANARY, "seconds": -1}, "traffic.chat.steps[0].seconds", "0 to"),
    ({**CANARY, "seconds": float("nan")}, "traffic.chat.steps[0].seconds", "nan"),
    ({**CANARY, "bounds": {"ttft": 0}}, "traffic.chat.bounds.ttft", "above 0"),
    ({**CANARY, "bounds": {"shorter": 1}}, "traffic.chat.bounds.shorter", "below 1"),
    ({**CANARY, "bounds": {"errors": "no"}}, "traffic.chat.bounds.errors", "no"),
    (
        {**CANARY, "bounds": dict.fromkeys(Bounds.__struct_fields__, "off")},
        "traffic.chat.bounds",
        "needs a bound",
    ),
    ({**CANARY, "alpha": 0.5}, "traffic.chat.alpha", "0.2"),
    ({**CANARY, "min_units": 0}, "traffic.chat.min_units", "1 to"),
    ({**CANARY, "max_seconds": 0}, "traffic.chat.max_seconds", "off"),
    ({"kind": "shadow", "version": "1", "shadow": "1"}, "traffic.chat.shadow", "another"),
    (
        {"kind": "shadow", "version": "1", "shadow": "2", "fraction": 0},
        "traffic.chat.fraction",
        "at most 1",
    ),
]


@pytest.mark.parametrize(("raw", "field", "word"), FAULTS, ids=lambda x: str(x)[:40])
def test_a_wrong_rule_names_field_and_remedy(raw: Any, field: str, word: str) -> None:
    with pytest.raises(TidemillError) as caught:
        parse_traffic(raw, "traffic.chat")
    assert caught.value.kind is ErrorKind.CONFIG
    assert caught.value.param == field
    assert word in caught.value.message and field in caught.value.message


def test_over_http_a_wrong_rule_is_the_clients_mistake() -> None:
    with pytest.raises(TidemillError) as caught:
        parse_traffic({"kind": "single"}, "traffic", error=bad_request)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
