"""Hidden states that rows return by name: those of the tokens computed and of accepted drafts."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.backend_driver import options
from helpers.random_model import make_spec, make_tensors

from tidemill.backends import native
from tidemill.contract.plan import LogitsWanted, NewSequence, Row, StepPlan
from tidemill.contract.sampling import SamplingParams
from tidemill.worker.hidden import layer_of
from tidemill.worker.runner import Runner

SPEC = make_spec(layers=3)
PROMPT = (5, 9, 20, 33, 7, 2)
NAMES = ("layer.1", "final", "layer.3")


@pytest.fixture
def runner() -> Runner:
    backend = native.load(SPEC, make_tensors(SPEC), options(block_size=16, max_positions=64))
    backend.allocate_cache((8,))
    return Runner(backend, 64)


def new(seq_id: int) -> NewSequence:
    return NewSequence(
        seq_id=seq_id, request_id="r", choice=0, token_ids=PROMPT, prompt_len=len(PROMPT),
        sampling=SamplingParams(temperature=0.0, seed=1),
    )  # fmt: skip


def row(seq_id: int, start: int, count: int, **more: object) -> Row:
    return Row(
        seq_id=seq_id, start=start, count=count,
        new_blocks=((seq_id,),) if start == 0 else (),
        logits=LogitsWanted.LAST, sample=True, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def states(data: dict[str, bytes]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(d, np.float32).reshape(-1, 64) for name, d in data.items()}


def test_states_of_accepted_drafts_are_those_of_single_steps(runner: Runner) -> None:
    plain = StepPlan(step_id=0, new=(new(0),), rows=(row(0, 0, 6, hidden_states=NAMES),))
    found = runner.submit(plain).result().rows[0]
    alone = states(found.hidden_states)
    assert {name: a.shape for name, a in alone.items()} == dict.fromkeys(NAMES, (6, 64))
    tokens, singles = [*found.token_ids], [alone]
    for i in range(3):
        step = StepPlan(step_id=1 + i, rows=(row(0, 6 + i, 1, hidden_states=NAMES),))
        found = runner.submit(step).result().rows[0]
        tokens += found.token_ids
        singles.append(states(found.hidden_states))
    want = {name: np.concatenate([one[name] for one in singles]) for name in NAMES}
    wrong = (tokens[2] + 1) % 131
    drafts = StepPlan(
        step_id=9,
        new=(new(1), new(2)),
        rows=(
            row(1, 0, 6, draft_token_ids=(*tokens[:2], wrong, 4), hidden_states=NAMES),
            row(2, 0, 6),
        ),
    )
    verified, without = runner.submit(drafts).result().rows
    assert verified.token_ids == tuple(tokens[:3]) and without.hidden_states == {}
    for name, got in states(verified.hidden_states).items():
        assert np.array_equal(got, want[name][:8]), name


def test_unknown_names_are_rejected_alone(runner: Runner) -> None:
    plan = StepPlan(
        step_id=0, new=(new(0), new(1)), rows=(row(0, 0, 6, hidden_states=("last",)), row(1, 0, 6))
    )
    bad, good = runner.submit(plan).result().rows
    assert bad.error_param == "hidden_states" and good.error is None and good.token_ids


@pytest.mark.parametrize(
    ("name", "layer"),
    [("final", -1), ("layer.0", 0), ("layer.3", 3), ("layer.4", None), ("layer.03", None),
     ("layer.-1", None), ("layer", None), ("", None)],
)  # fmt: skip
def test_names(name: str, layer: int | None) -> None:
    assert layer_of(name, 3) == layer
