"""Recurrent states: who reads and writes which, and that a failed step costs nothing."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.drive import request
from helpers.random_model import make_spec, make_tensors, with_recurrence
from helpers.real_engine import VOCAB, real_engine

from tidemill.backends import native
from tidemill.backends.base import Backend, StepHandle, StepInputs, StepOutputs
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.engine.offline import InprocEngine
from tidemill.worker.states import StateTable

SPEC = with_recurrence(make_spec(hidden=64, heads=4, kv_heads=2, head_dim=16, layers=1))


def test_steps_read_what_the_one_before_wrote() -> None:
    table = StateTable(2)
    assert table.advance(7, 0, 5) == (-1, 0)
    assert table.advance(9, 0, 3) == (-1, 2)
    assert table.advance(7, 5, 6) == (0, 1)
    assert table.advance(7, 6, 9) == (1, 0)
    # That step failed: it comes again, in parts.
    assert table.advance(7, 6, 7) == (1, 0)
    assert table.advance(7, 7, 9) == (0, 1)
    with pytest.raises(RuntimeError, match="covers 6 tokens"):
        table.advance(7, 6, 7)
    with pytest.raises(RuntimeError, match="more sequences"):
        table.advance(8, 0, 1)
    table.release(7)
    table.release(7)
    assert len(table) == 1 and table.advance(8, 0, 1) == (-1, 0)


def test_a_fork_reads_the_state_of_the_other_sequence() -> None:
    table = StateTable(3)
    table.advance(7, 0, 5)
    assert table.advance(8, 5, 6, fork_of=7) == (0, 2)  # before its row,
    assert table.advance(7, 5, 6) == (0, 1)
    assert table.advance(9, 5, 6, fork_of=7) == (0, 4)  # and after it
    assert table.advance(9, 6, 7, fork_of=7) == (4, 5)  # then it has its own


def test_a_state_behind_each_draft() -> None:
    table = StateTable(2, snapshots=3, drafts=4)
    assert table.advance(7, 0, 5) == (-1, 0) and table.snapshot(2) == 6
    assert table.advance(7, 5, 6) == (0, 1)
    drafted = table.draft(7, 6, 3)
    assert len(drafted) == 3 and {*drafted} < {7, 8, 9, 10}
    with pytest.raises(RuntimeError, match="more drafts"):
        table.draft(7, 9, 2)
    table.settle(7, 8)  # two of them came true
    read, to = table.advance(7, 8, 9)
    assert read == drafted[1] and to in (0, 1)
    # Each state is one sequence's, or free for drafts.
    again = table.draft(7, 9, 4)
    assert len({read, to, *again}) == 6
    # The step failed: it comes again, without drafts.
    table.settle(7, 8)
    assert table.advance(7, 8, 9)[0] == read
    table.advance(9, 0, 3)
    assert len(table.draft(9, 3, 4)) == 4
    table.release(9)
    table.release(7)
    pairs = [table.advance(n, 0, 1)[1] for n in (1, 2)]
    assert len({*pairs, *table.draft(1, 1, 2), *table.draft(2, 1, 2)}) == 6


def _driver() -> BackendDriver:
    return BackendDriver(native.load(SPEC, make_tensors(SPEC), options()))


def test_a_step_run_twice_gives_the_same() -> None:
    """What a step that failed has written does not matter to the one that comes in its place."""
    driver = _driver()
    text = np.random.default_rng(2).integers(0, SPEC.vocab_size, 60).tolist()
    expected = driver.all_logits(text)
    sequence = driver.sequence(text)
    parts = []
    for count in (20, 1, 9, 30):
        driver.inputs([(sequence, count)])  # planned, and taken back
        for tried in (count, max(1, count // 2), count):
            sequence.computed = sum(map(len, parts))
            logits = driver.run([(sequence, tried)], logits=2).logits
            assert logits is not None
        parts.append(logits)
    assert np.array_equal(np.concatenate(parts).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("states", "start", "what"),
    [
        ([[0, 0]], 4, "reads 0 and writes 0"),
        ([[-1, 1]], 4, "reads -1 and writes 1"),
        ([[0, 999]], 4, "writes 999"),
        ([[0, 1]], 0, "reads 0"),
        ([[1, 0]], 4, "covers -1 tokens, not 4"),
        ([[0, 1]], 5, "covers 4 tokens, not 5"),
        ([], 4, "each row"),
    ],
)
def test_a_wrong_state_is_refused(states: list[list[int]], start: int, what: str) -> None:
    driver = _driver()
    sequence = driver.sequence(list(range(9)))
    driver.run([(sequence, 4)])
    inputs = driver.inputs([(sequence, 1)])
    inputs.states = np.array(states, np.int32).reshape(-1, 2)
    inputs.context_len = np.array([start], np.int32)
    with pytest.raises(TidemillError, match=what):
        driver.backend.submit(inputs).result()


class _Unreliable:
    """A step that is computed, and then fails."""

    def __init__(self, handle: StepHandle) -> None:
        self._handle = handle

    def done(self, seconds: float = 0.0) -> bool:
        return self._handle.done(seconds)

    def set_mask(self, row: int, draft: int, bits: np.ndarray) -> None:
        self._handle.set_mask(row, draft, bits)

    def result(self) -> StepOutputs:
        self._handle.result()
        raise TidemillError(ErrorKind.RESOURCE, "no memory for the last of it")


def _answers(engine: InprocEngine) -> dict[tuple[str, int], list[int]]:
    rng = np.random.default_rng(4)
    prompts = [rng.integers(0, VOCAB, rng.integers(1, 60)).tolist() for _ in range(12)]
    batch = [request(f"r{i}", p, 20, seed=i, n=1 + i % 2) for i, p in enumerate(prompts)]
    found: dict[tuple[str, int], list[int]] = {}
    for output in engine.run(batch):
        assert output.error is None, output.error
        found.setdefault((output.request_id, output.choice), []).extend(output.token_ids)
    return found


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_steps_that_fail_do_not_advance_states(backend: str) -> None:
    plain = real_engine(backend, model="recurrent")
    want = _answers(plain)
    plain.close()
    failures = 0

    def unreliable(real: Backend) -> None:
        submit = real.submit

        def failing(inputs: StepInputs) -> StepHandle:
            nonlocal failures
            handle = submit(inputs)
            large = len(inputs.context_len) > 3 or len(inputs.token_ids) > 11
            if large and inputs.step_id % 5 == 0:
                failures += 1
                return _Unreliable(handle)
            return handle

        real.submit = failing  # type: ignore[method-assign]

    engine = real_engine(backend, model="recurrent", max_step_tokens=64, change=unreliable)
    got = _answers(engine)
    engine.close()
    assert failures > 10 and got == want
