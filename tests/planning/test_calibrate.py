"""Calibration on the bundled model, what is kept of it, and the machine's rates."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from helpers.sparse_model import LLAMA_7B

from tidemill.base.errors import TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.loading.checkpoint import open_model
from tidemill.loading.locate import bundled_models
from tidemill.planning.calibrate import calibrate
from tidemill.planning.calibrated import CalibratedTiming
from tidemill.planning.kept import (
    MachineRates,
    TypeRates,
    find_costs,
    find_rates,
    keep_costs,
    keep_rates,
    this_machine,
)
from tidemill.planning.plan import Load, Where, make_plan
from tidemill.planning.rates import fit_rates, write_random
from tidemill.planning.work import AttentionWork, Rows, Weights, Work
from tidemill.simulate.costs import Costs
from tidemill.simulate.costs import Work as StepWork
from tidemill.simulate.fit import Step
from tidemill.worker.needs import memory_needs


def config(**changes: object) -> EngineConfig:
    settings: dict[str, object] = {"threads": 1, "max_model_len": 1024, **changes}
    return EngineConfig(
        model=str(bundled_models()["brook"]), served_name="brook", packed_cache="off", **settings
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measured() -> Costs:
    costs, steps = calibrate(config(kv_memory=2**25), seconds=3.0)
    assert len(steps) == costs.residuals.steps >= 30
    return costs


def test_what_was_measured(measured: Costs) -> None:
    assert measured.machine == this_machine() and measured.created.endswith("Z")
    engine = measured.engine
    assert (engine.model, engine.family, engine.threads) == ("brook", "qwen3", 1)
    assert engine.parameters > 4e6 and engine.max_model_len == 1024 and engine.identity
    assert measured.measured.tokens >= 100 and measured.measured.samples >= 8
    # More tokens, longer contexts and more streams never take less time.
    timing = CalibratedTiming(measured)
    for small, large in (
        (Rows(1, 1, 16), Rows(8, 1, 16)),
        (Rows(1, 1, 16), Rows(1, 1, 900)),
        (Rows(1, 16, 0), Rows(1, 512, 0)),
    ):
        assert 0 < timing.step(small).value <= timing.step(large).value
    assert timing.step(Rows(1, 512, 0)).value > timing.step(Rows(1, 1, 0)).value
    assert timing.max_step_tokens == 512 and "steps measured" in timing.basis
    far = timing.step(Rows(200, 1, 1000))
    assert far.beyond and far.high / far.value > 1.5


def test_costs_are_found_for_the_same_shape_and_types(measured: Costs, tmp_path: Path) -> None:
    older = msgspec.structs.replace(measured, created="2020-01-01T00:00:00Z")
    keep_costs(tmp_path, older)
    path = keep_costs(tmp_path, measured)
    (tmp_path / "broken.json").write_text("{")
    needs = memory_needs(config())
    found = find_costs(tmp_path, needs, threads=1)
    assert found is not None and found.created == measured.created
    assert find_costs(tmp_path, needs, threads=2) is None
    for other in ({"kv_dtype": "int8"}, {"quantize": "q8_0"}, {"dtype": "float32"}):
        assert find_costs(tmp_path, memory_needs(config(**other)), threads=1) is None
    path.write_bytes(path.read_bytes().replace(b'"cores": ', b'"cores": 9'))
    assert find_costs(tmp_path, needs, threads=1) is None
    assert find_costs(tmp_path / "absent", needs, threads=1) is None


def test_a_plan_rests_on_them(measured: Costs, tmp_path: Path) -> None:
    keep_costs(tmp_path, measured)
    asked = config()
    where = Where(2**31, "as given", measured=tmp_path, watts=100.0)
    made = make_plan(asked, open_model(asked.model), where, Load(prompt=64, output=16))
    assert made.predicted is not None and "measured on this machine" in made.predicted.basis
    assert made.predicted.points[0].joules_per_token is not None
    assert made.predicted.points[0].usd_per_million_tokens is None


def test_a_vector_model_and_too_little_time_are_refused() -> None:
    with pytest.raises(TidemillError, match="--seconds must be at least"):
        calibrate(config(), seconds=0.1)


WORK = Work(
    layers=4, dense=Weights(10**8, 2 * 10**8), experts=None, output=Weights(10**7, 2 * 10**7),
    attention=(AttentionWork(None, 10**5, 10**4),), state_bytes=0, weight_type="bfloat16",
)  # fmt: skip


def test_rates_that_made_the_steps_are_found() -> None:
    steps = []
    for rows in (Rows(n, 1, context) for n in (1, 4, 16) for context in (16, 900)):
        seconds = WORK.nbytes(rows) / 2e10 + WORK.flops(rows) / 1e12 + 4 * 1e-5
        size = StepWork(rows.count, rows.count * (rows.start + 1), rows.count * (rows.start + 1),
                        rows.count, rows.count)  # fmt: skip
        steps += [Step(size, seconds), Step(size, seconds), Step(size, 5 * seconds)]
        steps += [Step(size, seconds)]
    rows = Rows(1, 512, 0)
    seconds = WORK.nbytes(rows) / 2e10 + WORK.flops(rows) / 1e12 + 4 * 1e-5
    steps += [Step(StepWork(512, 512 * 513 / 2, 512, 1, 1), seconds)] * 3
    steps += [Step(StepWork(64, 64 * 65 / 2, 64, 1, 1), 9.0)]  # once, and delayed
    found, error = fit_rates(steps, WORK, 1e-5)
    assert found.read == pytest.approx(2e10, rel=1e-3)
    assert found.flops == pytest.approx(1e12, rel=1e-3)
    assert error < 1e-3


def test_rates_are_kept_for_this_machine_alone(tmp_path: Path) -> None:
    rates = MachineRates(
        machine=this_machine(), created="2026-01-01T00:00:00Z", layer_seconds=1e-5, spread=0.3,
        types={"bfloat16": TypeRates(2e10, 1e12), "q8_0": TypeRates(3e10, 2e12),
               "q4_0": TypeRates(1.5e10, 9e11)},
    )  # fmt: skip
    assert find_rates(tmp_path) is None
    keep_rates(tmp_path, rates)
    assert find_rates(tmp_path) == rates
    q8, q4k = rates.device("q8_0"), rates.device("q4_k")
    assert (q8.bandwidth, q8.rate("q8_0"), q8.attainment.spread) == (3e10, 2e12, 0.3)
    # Not measured: as the type that is most alike, with less certainty.
    assert (q4k.bandwidth, q4k.rate("q4_k"), q4k.attainment.spread) == (1.5e10, 9e11, 0.6)
    assert rates.device("float32").bandwidth == 2e10
    # brook is too small for them, and the plan says so.
    where = Where(2**31, "as given", measured=tmp_path)
    made = make_plan(config(), open_model(config().model), where, Load(prompt=64, output=16))
    assert made.predicted is not None
    assert all("0.12 to inf GB" in point.beyond[0] for point in made.predicted.points)
    other = msgspec.structs.replace(rates.machine, cores=99)
    keep_rates(tmp_path, msgspec.structs.replace(rates, machine=other))
    assert find_rates(tmp_path) is None


def test_random_weights_open_as_a_model(tmp_path: Path) -> None:
    shape = {**LLAMA_7B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}  # fmt: skip
    files = open_model(write_random(tmp_path, shape))
    assert len(files.spec.layers) == 2 and files.tensors.prevailing_dtype() == "BF16"
    values = files.tensors.places["layers.1.mlp.down.weight"].values()
    assert 0.01 < values.std() < 0.03
