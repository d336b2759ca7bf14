"""Rows with drafts: every position gets what a step of its own gives, bit for bit (promise 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, DrivenSequence, options, sampling_inputs
from helpers.random_model import make_spec, make_tensors, with_recurrence, with_windows

from tidemill.backends import native
from tidemill.backends import torch as torch_backend
from tidemill.backends.base import HIDDEN_LAST, NOT_REACHED, SamplingInputs, StepInputs, StepOutputs
from tidemill.base.errors import TidemillError
from tidemill.models.spec import DecoderSpec, Mlp, Moe, QkNorm

VOCAB = 131
SPEC = with_windows(make_spec(qk_norm=QkNorm(), layers=3), [None, 20, None])
MOE = make_spec(hidden=64, layers=2)
MOE = MOE.__class__(
    **{
        **{name: getattr(MOE, name) for name in MOE.__dataclass_fields__},
        "layers": tuple(
            layer.__class__(layer.mixer, Moe(6, 2, Mlp(32), shared=Mlp(32))) for layer in MOE.layers
        ),
    }
)
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, 9 + 17 * i).tolist() for i in range(3)]
STATES = with_recurrence(make_spec(hidden=128, heads=4, head_dim=32, intermediate=128, layers=3))
COUNT = 12  # tokens generated of each prompt

KINDS: dict[str, tuple[Callable[..., object], DecoderSpec, str, dict[str, object]]] = {
    "float32": (native.load, SPEC, "F32", {"threads": 2}),
    "q8": (native.load, make_spec(hidden=128, head_dim=32, heads=4, intermediate=128, layers=2),
           "Q8_0", {"dtype": "bfloat16", "kv_dtype": "int8", "threads": 2}),
    "bfloat16": (native.load, SPEC, "BF16", {"dtype": "bfloat16", "kv_dtype": "bfloat16"}),
    "experts": (native.load, MOE, "F32", {}),
    "torch": (torch_backend.load, SPEC, "F32", {}),
    "recurrent": (native.load, STATES, "F32", {"threads": 2}),
    "recurrent q8": (native.load, STATES, "Q8_0", {"dtype": "bfloat16", "kv_dtype": "int8"}),
    "recurrent torch": (torch_backend.load, STATES, "F32", {}),
}  # fmt: skip


@dataclass
class Kind:
    """A driver, and whether its logits must be equal bit for bit."""

    driver: BackendDriver
    exact: bool


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    load, spec, stored, changes = KINDS[request.param]
    driver = BackendDriver(load(spec, make_tensors(spec, stored), options(**changes)), 64)  # type: ignore[arg-type]
    yield Kind(driver, load is native.load)
    driver.backend.close()


def sampling_of(
    sequences: Sequence[tuple[DrivenSequence, int]], drafts: Sequence[int], first: int = 0
) -> SamplingInputs:
    """Sampling of every position of rows that end with so many drafts: seeds (of prompts from
    `first` on), a bias that depends on the position, and penalties over the history."""
    positions, history, starts, biased, which = [], [], [0], [0], []
    for r, ((sequence, _), count) in enumerate(zip(sequences, drafts, strict=True), first):
        for at in range(sequence.computed - count, sequence.computed + 1):
            positions.append(at)
            which.append(r)
            history += sequence.tokens[:at]
            starts.append(len(history))
            biased.append(biased[-1] + 1)
    total = len(positions)
    return sampling_inputs(
        total,
        temperature=np.array([0.0, 0.9, 1.3])[np.array(which) % 3],
        seed=np.array(which) + 5,
        position=np.array(positions),
        top_k=40,
        frequency=0.4,
        repetition=1.2,
        bias_start=np.array(biased, np.int32),
        bias_id=np.array([p % VOCAB for p in positions], np.int32),
        bias_value=np.full(total, 1.5, np.float32),
        history_start=np.array(starts, np.int32),
        history=np.array(history, np.int32),
        history_prompt=np.full(total, 4, np.int32),
    )


def step(
    driver: BackendDriver,
    rows: Sequence[tuple[DrivenSequence, int]],
    drafts: Sequence[int],
    first: int = 0,
) -> StepInputs:
    """Rows of so many tokens, of which the last `drafts` are drafts."""
    given = drafts if any(drafts) else None
    inputs = driver.inputs(rows, sample=True, sampling=sampling_inputs(0), drafts=given)
    inputs.sampling = sampling_of(rows, drafts, first)
    return inputs


def run(driver: BackendDriver, inputs: StepInputs) -> StepOutputs:
    return driver.backend.submit(inputs).result()


def generated(driver: BackendDriver) -> tuple[list[list[int]], list[np.ndarray]]:
    """Tokens and logits of every prompt, alone and one by one."""
    tokens, logits = [], []
    for prompt in PROMPTS:
        sequence = driver.sequence(prompt)
        of_prompt = []
        for n in range(COUNT):
            rows = [(sequence, len(prompt) if n == 0 else 1)]
            out = run(driver, step(driver, rows, [0], len(tokens)))
            assert out.logits is not None
            of_prompt.append(out.logits[0])
            sequence.tokens.append(int(out.sampled[0]))
        driver.free(sequence)
        tokens.append(sequence.tokens[len(prompt) :])
        logits.append(np.stack(of_prompt))
    return tokens, logits


def check_logits(kind: Kind, found: np.ndarray, expected: np.ndarray) -> None:
    if kind.exact:
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    else:
        assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("good", [0, 1, 3, 7])
def test_positions_equal_single_steps(kind: Kind, good: int) -> None:
    """Of 7 drafts of every row the first `good` are right; the other rows have other numbers."""
    driver = kind.driver
    tokens, logits = generated(driver)
    rights = [good, 7 - good, good // 2]
    counts = [7, 7, 3]
    sequences = [driver.sequence([*prompt, tokens[i][0]]) for i, prompt in enumerate(PROMPTS)]
    run(driver, driver.inputs([(s, len(s.tokens) - 1) for s in sequences]))
    for i, sequence in enumerate(sequences):
        drafts = tokens[i][1 : 1 + counts[i]]
        right = min(rights[i], counts[i])
        drafts[right:] = [(t + 1) % VOCAB for t in drafts[right:]]
        sequence.tokens += drafts
    out = run(driver, step(driver, [(s, 1 + c) for s, c in zip(sequences, counts, strict=True)],
                           counts))  # fmt: skip
    assert out.logits is not None and len(out.sampled) == sum(counts) + 3 == len(out.logits)
    at = 0
    for i, sequence in enumerate(sequences):
        right = min(rights[i], counts[i])
        accepted = out.sampled[at : at + right + 1].tolist()
        assert accepted == tokens[i][1 : right + 2]
        assert (out.sampled[at + right + 1 : at + counts[i] + 1] == NOT_REACHED).all()
        check_logits(kind, out.logits[at : at + right + 1], logits[i][1 : right + 2])
        at += counts[i] + 1
        # What the rejected drafts left in the cache is overwritten.
        sequence.computed = len(PROMPTS[i]) + 1 + right
        del sequence.tokens[sequence.computed :]
        sequence.tokens += accepted[-1:]
    following = [min(r, c) + 2 for r, c in zip(rights, counts, strict=True)]
    out = run(driver, step(driver, [(s, 1) for s in sequences], [0, 0, 0]))
    assert out.logits is not None
    for i, n in enumerate(following):
        assert out.sampled[i] == tokens[i][n]
        check_logits(kind, out.logits[i], logits[i][n])


def test_a_prompt_ends_with_drafts(kind: Kind) -> None:
    driver = kind.driver
    tokens, logits = generated(driver)
    sequence = driver.sequence(PROMPTS[0] + tokens[0][:3])
    out = run(driver, step(driver, [(sequence, len(sequence.tokens))], [3]))
    assert out.logits is not None and out.sampled.tolist() == tokens[0][:4]
    check_logits(kind, out.logits, logits[0][:4])


def mask(*allowed: int) -> np.ndarray:
    bits = np.zeros(-(-VOCAB // 8) * 8, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little")


def test_a_mask_of_each_position(kind: Kind) -> None:
    driver = kind.driver
    sequence, other = driver.sequence([*PROMPTS[0], 3, 4, 9]), driver.sequence(PROMPTS[1])
    inputs = driver.inputs(
        [(sequence, len(sequence.tokens)), (other, len(other.tokens))], sample=True,
        sampling=sampling_inputs(5, num_logprobs=2), drafts=[3, 0],
    )  # fmt: skip
    inputs.await_mask[0] = 1
    handle = driver.backend.submit(inputs)
    for draft in (2, 0, 1, 3):  # in any order
        handle.set_mask(0, draft, mask(*[(3,), (4,), (5, 6), ()][draft]))
    out = handle.result()
    assert out.sampled[:2].tolist() == [3, 4] and out.sampled[2] in (5, 6)
    assert out.sampled[3] == NOT_REACHED and out.sampled[4] >= 0
    assert out.logprobs is not None
    assert np.isfinite(out.logprobs.chosen[[0, 1, 2, 4]]).all() and np.isnan(out.logprobs.chosen[3])


def test_hidden_states_of_the_verified_positions(kind: Kind) -> None:
    driver = kind.driver
    alone, sequence = driver.sequence(PROMPTS[0]), driver.sequence(PROMPTS[0])
    count = len(PROMPTS[0])
    run(driver, driver.inputs([(alone, count - 4)]))
    expected = []
    for _ in range(4):
        inputs = driver.inputs([(alone, 1)])
        inputs.hidden = np.array([HIDDEN_LAST], np.uint8)
        hidden = run(driver, inputs).hidden
        assert hidden is not None
        expected.append(hidden[0])
    inputs = step(driver, [(sequence, count)], [3])
    inputs.hidden = np.array([HIDDEN_LAST], np.uint8)
    hidden = run(driver, inputs).hidden
    assert hidden is not None and hidden.shape[0] == 4
    check_logits(kind, hidden, np.stack(expected))


def broken(inputs: StepInputs, field: str) -> None:
    if field == "too many":
        inputs.drafts = np.array([6], np.int32)
    elif field == "negative":
        inputs.drafts = np.array([-1], np.int32)
    elif field == "rows":
        inputs.drafts = np.array([1, 1], np.int32)
    elif field == "sample":
        inputs.sample[0] = 0
    elif field == "sampling":
        inputs.sampling = sampling_inputs(1)
    else:
        inputs.token_ids[0] = -1


@pytest.mark.parametrize("field", ["too many", "negative", "rows", "sample", "sampling", "future"])
def test_inconsistent_drafts_are_refused(field: str) -> None:
    driver = BackendDriver(native.load(SPEC, make_tensors(SPEC), options()))
    run(driver, driver.inputs([(driver.sequence([1]), 1)], sample=True))
    inputs = step(driver, [(driver.sequence([1, 2, 3, 4, 5, 6]), 6)], [2])
    broken(inputs, field)
    with pytest.raises(TidemillError, match=r"drafts|sampling"):
        run(driver, inputs)
    driver.backend.close()


def test_the_token_of_a_row_with_drafts_is_no_input(kind: Kind) -> None:
    driver = kind.driver
    sequence = driver.sequence([1, 2, 3, 4, 5])
    first = driver.backend.submit(step(driver, [(sequence, 5)], [1]))
    with pytest.raises(TidemillError):
        run(driver, driver.inputs([(sequence, 1)], sample=True, future=[0]))
    first.result()
