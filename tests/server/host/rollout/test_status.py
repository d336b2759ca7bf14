"""Status of rollouts and experiments as rows and as text."""

from __future__ import annotations

from typing import Any

import msgspec
from rollouts.simulation import Clock, Version, observations

from tidemill.server.host.rollout.experiment import Experiment
from tidemill.server.host.rollout.machine import EventKind, Rollout
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.status import (
    experiment_status,
    experiment_text,
    rollout_status,
    status_text,
)
from tidemill.server.host.rollout.traffic import Canary, Weights


def rollout_of(version: Version, requests: int) -> Rollout:
    clock = Clock()
    rule = Canary(stable="1", canary="2", steps=(50,), observations=10, seconds=0)
    rollout = Rollout.start("chat", rule, monotonic=clock, wall=clock)
    for _, observation in zip(
        range(requests), observations(rollout, version, 1, clock), strict=False
    ):
        rollout.observe(observation)
    return rollout


def test_a_new_rollout_says_that_it_knows_nothing_yet() -> None:
    text = status_text(rollout_status(rollout_of(Version(), 0)))
    assert text.splitlines()[0] == (
        "chat: 2 against 1, running, 50 % of the traffic (step 1 of 1, 0 s)"
    )
    assert "waits: not yet enough: 0 of 10 requests" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["ttft", "-", "-", "-", "+15", "%", "no", "data"] in rows


def test_a_rollback_is_told_with_its_numbers() -> None:
    status = rollout_status(rollout_of(Version(slower=3.0), 3000))
    [started, rolled_back] = status.events
    assert started.kind is EventKind.STARTED and rolled_back.kind is EventKind.ROLLED_BACK
    by_name = {view.metric: view for view in status.metrics}
    itl = by_name["itl"]
    assert itl.low is not None and itl.effect is not None
    assert 0.15 <= itl.low < itl.effect and itl.beyond >= itl.needed
    text = status_text(status)
    assert "rolled back, 0 % of the traffic" in text
    assert text.splitlines()[-1].startswith("last: rolled back, 0 %: ")
    assert any(row.startswith("itl ") and row.endswith("beyond") for row in text.splitlines())


def test_rows_are_json_with_the_versions_and_their_quantiles() -> None:
    status: Any = msgspec.json.decode(
        msgspec.json.encode(rollout_status(rollout_of(Version(), 400)))
    )
    stable, canary = status["arms"]
    assert (stable["version"], canary["version"]) == ("1", "2")
    assert stable["percent"] == canary["percent"] == 50
    assert (
        stable["requests"] + stable["not_counted"] + canary["requests"] + canary["not_counted"]
        == 400
    )
    assert 0 < stable["p50"]["ttft"] < stable["p95"]["ttft"]
    assert [row["metric"] for row in status["metrics"]] == [
        "errors",
        "ttft",
        "itl",
        "itl_p95",
        "length",
    ]


def test_an_experiment_lists_all_versions_and_one_table_for_each_variant() -> None:
    experiment = Experiment.start("chat", Weights(weights={"a": 50, "b": 25, "c": 25}))
    for i in range(300):
        experiment.observe(Observation(version="aabc"[i % 4], output_tokens=100))
    status = experiment_status(experiment)
    assert [arm.version for arm in status.arms] == ["a", "b", "c"]
    text = experiment_text(status)
    assert "b against a" in text and "c against a" in text
    assert any(
        line.startswith("a ") and "50 %" in line and "150" in line for line in text.splitlines()
    )
