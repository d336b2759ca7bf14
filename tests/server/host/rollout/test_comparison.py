"""Which observations count for which metric, and what the metrics say."""

from __future__ import annotations

import random

import msgspec
import pytest

from tidemill.base.errors import ErrorKind
from tidemill.server.host.rollout.comparison import Comparison, Verdict, limits_of
from tidemill.server.host.rollout.experiment import Experiment
from tidemill.server.host.rollout.matching import BASELINE, VARIANT
from tidemill.server.host.rollout.observation import METRICS, Observation, prompt_stratum
from tidemill.server.host.rollout.traffic import Bounds, Shadow, Weights

TTFT_ALONE = Bounds(errors="off", itl="off", shorter="off", longer="off")


def start(bounds: Bounds | None) -> Comparison:
    return Comparison.start("1", "2", share=0.5, alpha=0.05, bounds=bounds)


def values(observation: Observation) -> dict[str, float | None]:
    return {name: metric.value(observation) for name, metric in METRICS.items()}


@pytest.mark.parametrize("kind", ErrorKind)
def test_only_failures_of_the_version_count_as_its_errors(kind: ErrorKind) -> None:
    its_own = {
        ErrorKind.INTERNAL,
        ErrorKind.NOT_FINITE,
        ErrorKind.UNAVAILABLE,
        ErrorKind.RESOURCE,
        ErrorKind.MODEL_FILE,
        ErrorKind.TIMEOUT,
    }
    found = values(Observation(version="2", error=kind, output_tokens=9, ttft_s=1.0))
    assert found["errors"] == (1.0 if kind in its_own else None)
    assert found["length"] is None, "an answer that broke off has no length"
    assert found["ttft"] == 1.0, "a first token that came has come"


def test_an_answer_has_all_metrics() -> None:
    answered = Observation(
        version="2", ttft_s=0.5, itl_mean_s=0.01, itl_p95_s=0.03, output_tokens=0
    )
    assert values(answered) == {
        "errors": 0.0,
        "ttft": 0.5,
        "itl": 0.01,
        "itl_p95": 0.03,
        "length": 1.0,
    }


def test_prompts_are_grouped_by_powers_of_four() -> None:
    sizes = (None, 0, 15, 16, 63, 64, 255, 256, 10**9)
    strata = [prompt_stratum(Observation(version="1", computed_prompt_tokens=n)) for n in sizes]
    assert strata == [0, 0, 0, 1, 1, 2, 2, 3, 8]


def test_a_version_with_an_empty_prefix_cache_is_not_taken_for_a_slow_one() -> None:
    # The stable version has most prefixes cached, the canary none; both compute 1 ms per token.
    rng, found = random.Random(1), start(TTFT_ALONE)
    sums, counts = [0.0, 0.0], [0, 0]
    for _ in range(8000):
        arm = rng.randrange(2)
        tokens = rng.choice((10, 1000) if arm == VARIANT else (10, 10, 10, 10, 1000))
        seconds = 0.001 * tokens * rng.lognormvariate(0, 0.3)
        sums[arm] += seconds
        counts[arm] += 1
        found.observe(
            arm, Observation(version="12"[arm], ttft_s=seconds, computed_prompt_tokens=tokens)
        )
    assert sums[VARIANT] / counts[VARIANT] > 2 * sums[BASELINE] / counts[BASELINE]
    view = found.view("ttft")
    assert view.verdict is Verdict.WITHIN
    assert view.effect == pytest.approx(0, abs=0.05)


def test_limits_share_the_probability_of_a_wrong_decision() -> None:
    assert start(Bounds()).view("ttft").needed == pytest.approx(5 / 0.05)
    assert start(TTFT_ALONE).view("ttft").needed == pytest.approx(1 / 0.05)
    assert [(name, sign) for name, _, sign in limits_of(Bounds())] == [
        ("errors", 1),
        ("ttft", 1),
        ("itl", 1),
        ("length", 1),
        ("length", -1),
    ]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.5, Verdict.BEYOND), (1.0, Verdict.WITHIN), (2.0, Verdict.BEYOND)],
)
def test_answers_may_be_neither_much_shorter_nor_much_longer(
    factor: float, verdict: Verdict
) -> None:
    rng = random.Random(2)
    found = start(Bounds(errors="off", ttft="off", itl="off"))
    for _ in range(6000):
        arm = rng.randrange(2)
        tokens = int(rng.lognormvariate(5, 0.5) * (factor if arm == VARIANT else 1))
        found.observe(arm, Observation(version="12"[arm], output_tokens=tokens))
    assert found.verdict("length") is verdict
    view = found.view("length")
    assert view.effect == pytest.approx(factor - 1, abs=0.15)
    assert (view.limit_low, view.limit_high) == (pytest.approx(-0.2), pytest.approx(0.3))
    assert found.verdict("errors") is Verdict.UNLIMITED
    assert found.view("errors").blocks > 0, "a metric without a limit is measured all the same"


def test_what_neither_version_reports_is_no_data_and_what_one_reports_is_not_enough() -> None:
    found = start(Bounds())
    found.observe(BASELINE, Observation(version="1", itl_mean_s=0.1))
    assert found.verdict("ttft") is Verdict.NO_DATA
    assert found.verdict("itl") is Verdict.NOT_ENOUGH
    assert found.verdict("errors") is Verdict.NOT_ENOUGH


def test_what_was_shown_once_counts_only_while_the_estimate_agrees() -> None:
    rng = random.Random(4)
    found = start(Bounds(errors=0.02, ttft="off", itl="off", shorter="off", longer="off"))

    def send(count: int, failing: float) -> None:
        for _ in range(count):
            arm = rng.randrange(2)
            failed = arm == VARIANT and rng.random() < failing
            error = ErrorKind.INTERNAL if failed else None
            found.observe(arm, Observation(version="12"[arm], error=error))

    send(2000, 0.0)
    assert found.verdict("errors") is Verdict.WITHIN
    while found.estimate_within("errors"):
        send(100, 0.15)
    assert found.verdict("errors") is not Verdict.WITHIN


def test_blocks_are_as_long_as_the_share_needs() -> None:
    found = Comparison.start("1", "2", share=0.05, alpha=0.05, bounds=Bounds())
    assert found.length == 40
    found.observe(BASELINE, Observation(version="1"))
    found.observe(VARIANT, Observation(version="2"))
    assert found.view("errors").blocks == 0
    found.change_share(0.5)
    assert found.length == 4
    assert found.view("errors").blocks == 1, "the open block had both versions"


def test_values_that_are_no_numbers_are_left_out() -> None:
    found = start(Bounds())
    for value in (float("nan"), float("inf")):
        found.observe(BASELINE, Observation(version="1", ttft_s=value))
    assert "ttft" not in found.arms[BASELINE].values


def test_an_observation_that_is_not_compared_is_still_counted() -> None:
    found = start(Bounds())
    for _ in range(20):
        for arm in (BASELINE, VARIANT):
            assert not found.observe(arm, Observation(version="12"[arm]), compare=False)
    assert found.arms[VARIANT].requests == 20
    assert found.view("errors").blocks == 0


def test_each_version_of_an_experiment_is_compared_with_the_first() -> None:
    experiment = Experiment.start("chat", Weights(weights={"a": 2, "b": 1, "c": 1, "d": 0}))
    rng = random.Random(3)
    for _ in range(4000):
        version = rng.choice("aabc")
        slow = 2.0 if version == "c" else 1.0
        experiment.observe(Observation(version=version, ttft_s=slow * rng.lognormvariate(0, 0.3)))
    assert experiment.percents == {"a": 50, "b": 25, "c": 25}
    same, slower = (experiment.comparisons[v].view("ttft") for v in "bc")
    assert same.low is not None and same.high is not None and same.low < 0 < same.high
    assert slower.low is not None and slower.low > 0.5
    assert slower.verdict is Verdict.UNLIMITED
    again = msgspec.json.decode(msgspec.json.encode(experiment), type=Experiment)
    assert again == experiment


def test_a_shadow_is_compared_with_the_version_that_answers() -> None:
    experiment = Experiment.start("chat", Shadow(version="1", shadow="2", fraction=0.25))
    assert experiment.percents == {"1": 100, "2": 25}
    assert experiment.comparisons["2"].length == 10  # one request of five is a copy
    experiment.observe(Observation(version="2", error=ErrorKind.INTERNAL))
    experiment.observe(Observation(version="3"))
    assert experiment.arms()["2"].failures == 1 and experiment.arms()["1"].requests == 0


def test_a_single_weight_is_no_comparison() -> None:
    experiment = Experiment.start("chat", Weights(weights={"1": 1}))
    experiment.observe(Observation(version="1"))
    assert experiment.arms() == {}
