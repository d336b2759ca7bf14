"""Steps that fail: the row that makes them fail is found, the others never notice."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from helpers.drive import request
from helpers.fake_backend import FakeBackend, computed_tokens, expected_tokens
from helpers.fake_engine import VOCAB, fake_core

from tidemill.backends.base import StepInputs
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.history import PreemptionCause
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.engine.offline import InprocEngine

CURSED = 666_000


@pytest.fixture(params=[(1, 0), (2, 0), (1, 7)], ids=["one", "two", "layers"])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[InprocEngine, FakeBackend]]:
    """With one and with two steps in flight, and with prompts computed a few layers a step."""
    depth, layers = request.param
    core, backend = fake_core(depth=depth, max_step_tokens=64, max_num_seqs=24, layers=layers)
    if layers:
        backend.cost = lambda x: 0.05 + 0.01 * computed_tokens(x, layers)
    engine = InprocEngine(core)
    yield engine, backend
    core.close()


def _batch(cursed: set[int], count: int = 20) -> list[EngineRequest]:
    rng = random.Random(4)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    batch = []
    for i in range(count):
        own = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 70))]
        seed = CURSED + i if i in cursed else i
        prompt = shared + own if i % 2 else own
        batch.append(request(f"r{i}", prompt, 20, temperature=1.0, seed=seed, n=1 + i % 3))
    return batch


def _run(engine: InprocEngine, batch: list[EngineRequest]) -> dict[str, list[ChoiceOutput]]:
    outputs: dict[str, list[ChoiceOutput]] = {one.request_id: [] for one in batch}
    for output in engine.run(batch):
        outputs[output.request_id].append(output)
    return outputs


def _assert_right(one: EngineRequest, outputs: list[ChoiceOutput]) -> None:
    for choice in range(one.sampling.n):
        mine = [o for o in outputs if o.choice == choice]
        tokens = [t for o in mine for t in o.token_ids]
        prompt, seed = one.prompt_token_ids, one.sampling.seed
        assert tokens == expected_tokens(prompt, 20, VOCAB, seed=seed, choice=choice)
        assert mine[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("cursed", [{7}, {0, 19}, {1, 4, 5, 13}])
def test_the_culprits_end_and_the_others_go_on(
    made: tuple[InprocEngine, FakeBackend], cursed: set[int]
) -> None:
    engine, backend = made

    def fails(x: StepInputs) -> Exception | None:
        # After some tokens, so that it happens while decoding as well as at prompts.
        bad = (x.sampling.seed >= CURSED) & (x.sampling.position % 3 == 0)
        return RuntimeError("a kernel gave up") if bad.any() else None

    backend.fail_if = fails
    batch = _batch(cursed)
    outputs = _run(engine, batch)
    for i, one in enumerate(batch):
        if i in cursed:
            for choice in range(one.sampling.n):
                end = [o for o in outputs[one.request_id] if o.choice == choice][-1]
                assert end.error is not None and "a kernel gave up" in end.error.message
        else:
            _assert_right(one, outputs[one.request_id])
    assert bool(backend.slices) == bool(backend.layers)
    backend.fail_if = lambda inputs: None
    again = _run(engine, _batch(set()))
    for one in _batch(set()):
        _assert_right(one, again[one.request_id])


@pytest.mark.parametrize("fits", [1, 7, 31])
@pytest.mark.parametrize("kind", [MemoryError, TidemillError])
def test_a_step_without_memory_is_computed_in_parts(
    made: tuple[InprocEngine, FakeBackend], fits: int, kind: type[Exception]
) -> None:
    engine, backend = made
    largest = 0

    def fails(x: StepInputs) -> Exception | None:
        nonlocal largest
        if len(x.token_ids) > fits:
            return (
                MemoryError()
                if kind is MemoryError
                else TidemillError(ErrorKind.RESOURCE, "out of memory")
            )
        largest = max(largest, len(x.token_ids))
        return None

    backend.fail_if = fails
    batch = _batch(set())
    outputs = _run(engine, batch)
    for one in batch:
        _assert_right(one, outputs[one.request_id])
    assert largest <= fits


def test_a_squeeze_preempts_and_is_lifted(made: tuple[InprocEngine, FakeBackend]) -> None:
    engine, backend = made
    failures = 0

    def fails(x: StepInputs) -> Exception | None:
        nonlocal failures
        if len(x.context_len) == 20 and failures == 0:
            failures += 1
            return MemoryError()
        return None

    backend.fail_if = fails
    sizes: list[int] = []
    backend.on_step = lambda x: sizes.append(len(x.context_len))
    batch = [request(f"r{i}", [i + 1], 400, seed=i, explain=True) for i in range(20)]
    outputs = _run(engine, batch)
    assert failures == 1
    histories = [one.history for made in outputs.values() for one in made if one.history]
    causes = [one.cause for history in histories for one in history.preemptions]
    assert len(histories) == 20 and causes.count(PreemptionCause.OUT_OF_MEMORY) == 10
    after = sizes[sizes.index(20) + 3 :]
    assert max(after[:60]) <= 10 and max(after) == 20
    assert engine.stats.preemptions >= 10


def test_too_little_memory_for_a_single_token_ends_the_request(
    made: tuple[InprocEngine, FakeBackend],
) -> None:
    engine, backend = made
    backend.fail_if = lambda x: MemoryError() if (x.sampling.seed >= CURSED).any() else None
    batch = _batch({3}, 6)
    outputs = _run(engine, batch)
    end = outputs["r3"][-1]
    assert end.error is not None and end.error.kind == ErrorKind.RESOURCE
    assert "memory" in end.error.message
    for i in (0, 1, 2, 4, 5):
        _assert_right(batch[i], outputs[f"r{i}"])


def test_a_failure_at_the_submission_is_divided_too(
    made: tuple[InprocEngine, FakeBackend],
) -> None:
    engine, backend = made
    submit = backend.submit

    def refuses(x: StepInputs):  # type: ignore[no-untyped-def]
        if (x.sampling.seed >= CURSED).any():
            raise RuntimeError("inputs that make no sense")
        return submit(x)

    backend.submit = refuses  # type: ignore[method-assign]
    batch = _batch({2, 9})
    outputs = _run(engine, batch)
    for i, one in enumerate(batch):
        if i in (2, 9):
            assert outputs[one.request_id][-1].error is not None
        else:
            _assert_right(one, outputs[one.request_id])


def test_prompt_logprobs_survive_the_parts(made: tuple[InprocEngine, FakeBackend]) -> None:
    engine, backend = made
    one = request("a", list(range(1, 60)), 3, prompt_logprobs=1)
    want = _run(engine, [one])["a"][0].prompt_logprobs
    backend.fail_if = lambda x: MemoryError() if len(x.token_ids) > 5 else None
    got = _run(engine, [request("b", list(range(1, 60)), 3, prompt_logprobs=1)])["b"][0]
    assert got.prompt_logprobs == want and want is not None and len(want) == 59
