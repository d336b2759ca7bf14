"""Plans to arrays: what a backend is given, and what comes back when a step is undone."""

from __future__ import annotations

import time

import msgspec
import numpy as np
from helpers.fake_backend import FakeBackend, next_token, tiny_spec

from tidemill.backends.base import (
    LOGITS_ALL,
    LOGITS_LAST,
    LOGITS_NONE,
    NOT_REACHED,
    StepOutputs,
)
from tidemill.contract.plan import (
    BlockCopy,
    EmbeddingOverride,
    LogitsWanted,
    NewSequence,
    Row,
    StepPlan,
)
from tidemill.contract.sampling import SamplingParams
from tidemill.worker.inputs import UNSUPPORTED, InputBuilder
from tidemill.worker.runner import Runner


def new(seq_id: int, tokens: list[int], **sampling: object) -> NewSequence:
    params = SamplingParams(seed=7, **sampling)  # type: ignore[arg-type]
    banned = (1, 2) if params.min_tokens else ()
    return NewSequence(
        seq_id=seq_id,
        request_id="r",
        choice=0,
        token_ids=tuple(tokens),
        prompt_len=len(tokens),
        sampling=params,
        banned_until=banned,
    )


def row(seq_id: int, start: int, count: int, blocks: tuple[int, ...] = (), **rest: object) -> Row:
    sample = rest.pop("sample", True)
    return Row(
        seq_id=seq_id,
        start=start,
        count=count,
        new_blocks=(blocks,) if blocks else (),
        sample=bool(sample),
        logits=rest.pop("logits", LogitsWanted.LAST if sample else LogitsWanted.NONE),  # type: ignore[arg-type]
        **rest,  # type: ignore[arg-type]
    )


def test_a_ragged_step_in_arrays() -> None:
    builder = InputBuilder(1, 64, 4, slots=1)
    plan = StepPlan(
        step_id=0,
        new=(
            new(10, [5, 6, 7, 8, 9], temperature=0.5, top_k=-1, logprobs=3),
            new(11, [1, 2, 3], prompt_logprobs=1, repetition_penalty=1.5, min_tokens=2),
        ),
        rows=(
            row(10, 0, 3, (4, 2), sample=False),
            row(11, 0, 3, (7,), logits=LogitsWanted.ALL),
        ),
        copies=(BlockCopy(0, 1, 2), BlockCopy(0, 3, 4)),
    )
    step = builder.prepare(plan)
    x = step.inputs
    assert x.token_ids.tolist() == [5, 6, 7, 1, 2, 3]
    assert x.row_start.tolist() == [0, 3, 6] and x.context_len.tolist() == [0, 0]
    assert x.block_tables[0].tolist() == [[4, 2], [7, -1]]
    assert x.logits.tolist() == [LOGITS_NONE, LOGITS_ALL] and x.sample.tolist() == [0, 1]
    assert x.target_ids.tolist() == [-1, -1, -1, 2, 3, -1]
    assert x.target_logprobs.tolist() == [-1, 1]
    assert x.copies[0].tolist() == [[1, 2], [3, 4]]
    s = x.sampling
    assert s.position.tolist() == [3] and s.repetition.tolist() == [1.5]
    assert s.num_logprobs.tolist() == [-1]
    assert s.history.tolist() == [1, 2, 3] and s.history_prompt.tolist() == [3]
    assert s.bias_id.tolist() == [1, 2] and np.isneginf(s.bias_value).all()
    builder.accept(step, np.array([33], np.int32))

    step = builder.prepare(StepPlan(step_id=1, rows=(row(10, 3, 2), row(11, 3, 1))))
    x = step.inputs
    assert x.token_ids.tolist() == [8, 9, 33] and x.context_len.tolist() == [3, 3]
    assert x.logits.tolist() == [LOGITS_LAST, LOGITS_LAST]
    s = x.sampling
    assert s.temperature.tolist() == [0.5, 1.0] and s.top_k.tolist() == [0, 0]
    assert s.num_logprobs.tolist() == [3, -1] and s.position.tolist() == [5, 4]
    assert s.bias_start.tolist() == [0, 0, 2], "one token generated, two wanted: still banned"
    assert s.history_start.tolist() == [0, 0, 4]
    for array in (*x.block_tables, x.token_ids, s.temperature, s.seed):
        assert array.flags.c_contiguous
    builder.accept(step, np.array([40, 41], np.int32))
    assert (
        builder.prepare(StepPlan(step_id=2, rows=(row(11, 4, 1),))).inputs.sampling.bias_id.tolist()
        == []
    )


def test_bias_of_minus_hundred_is_a_ban() -> None:
    builder = InputBuilder(1, 64, 4)
    bias = {3: -100.0, 4: 2.5}
    plan = StepPlan(step_id=0, new=(new(1, [1], logit_bias=bias),), rows=(row(1, 0, 1, (0,)),))
    s = builder.prepare(plan).inputs.sampling
    assert dict(zip(s.bias_id.tolist(), s.bias_value.tolist(), strict=True)) == {
        3: float("-inf"),
        4: 2.5,
    }


def test_the_token_of_the_step_before() -> None:
    builder = InputBuilder(1, 64, 4)
    builder.prepare(
        StepPlan(
            step_id=0,
            new=(new(1, [1, 2]), new(2, [3], presence_penalty=0.5)),
            rows=(row(1, 0, 2, (0,)), row(2, 0, 1, (1,))),
        )
    )
    x = builder.prepare(
        StepPlan(step_id=1, rows=(row(2, 1, 1, input_from=0), row(1, 2, 1, input_from=0)))
    ).inputs
    assert x.token_ids.tolist() == [-2, -1]
    assert x.sampling.history.tolist() == [3], "the future token is the backend's to count"


def test_undo_restores_tables_and_forgets_newcomers() -> None:
    builder = InputBuilder(2, 64, 4)
    first = StepPlan(
        step_id=0,
        new=(new(1, [1] * 8),),
        rows=(Row(seq_id=1, start=0, count=4, new_blocks=((3,), (5,))),),
    )
    builder.accept(builder.prepare(first), np.zeros(0, np.int32))
    second = StepPlan(
        step_id=1,
        new=(new(2, [2]),),
        rows=(
            Row(seq_id=1, start=4, count=4, new_blocks=((6,), (7,))),
            Row(seq_id=2, start=0, count=1, new_blocks=((8,), (9,))),
        ),
    )
    step = builder.prepare(second)
    builder.undo(step)
    assert 2 not in builder.sequences
    again = builder.prepare(second).inputs
    assert again.block_tables[0].tolist() == [[3, 6], [8, -1]]
    assert again.block_tables[1].tolist() == [[5, 7], [9, -1]]
    third = StepPlan(
        step_id=2,
        preempted=(1,),
        finished=(2, 99),
        rows=(Row(seq_id=1, start=0, count=1, new_blocks=((1,), (1,))),),
    )
    assert builder.prepare(third).inputs.block_tables[0].tolist() == [[1]]
    assert len(builder.sequences) == 1


def test_slots_grow() -> None:
    builder = InputBuilder(1, 64, 4, slots=1)
    for i in range(9):
        plan = StepPlan(step_id=i, new=(new(i, [i, i]),), rows=(row(i, 0, 2, (i,)),))
        builder.accept(builder.prepare(plan), np.array([i + 50], np.int32))
    rows = tuple(row(i, 2, 1) for i in range(9))
    x = builder.prepare(StepPlan(step_id=9, rows=rows)).inputs
    assert x.token_ids.tolist() == [i + 50 for i in range(9)]
    assert x.block_tables[0][:, 0].tolist() == list(range(9))
    assert (x.sampling.seed == 7).all()


def test_drafts_are_tokens_of_the_row_that_are_not_known_yet() -> None:
    builder = InputBuilder(1, 64, 4)
    plan = StepPlan(
        step_id=0,
        new=(
            new(1, [5, 6, 7], presence_penalty=0.5, min_tokens=2),
            new(2, [8]),
            new(3, [9, 9], logprobs=1),
        ),
        rows=(
            row(1, 0, 3, (0, 1), draft_token_ids=(20, 21)),
            row(2, 0, 1, (2,)),
            row(3, 0, 2, (3,), draft_token_ids=(30,)),
        ),
    )
    step = builder.prepare(plan)
    x = step.inputs
    assert x.drafts is not None and x.drafts.tolist() == [2, 0, 1]
    assert x.token_ids.tolist() == [5, 6, 7, 20, 21, 8, 9, 9, 30]
    assert x.row_start.tolist() == [0, 5, 6, 9]
    s = x.sampling
    assert s.position.tolist() == [3, 4, 5, 1, 2, 3] and s.position.dtype == np.int32
    assert s.num_logprobs.tolist() == [-1] * 4 + [1, 1]
    assert s.history_start.tolist() == [0, 3, 7, 12, 12, 12, 12]
    assert s.history.tolist() == [5, 6, 7, 5, 6, 7, 20, 5, 6, 7, 20, 21]
    assert s.bias_start.tolist() == [0, 2, 4, 4, 4, 4, 4], "the third token may be an end token"
    builder.accept(step, np.array([20, 99, NOT_REACHED, 50, 60, NOT_REACHED], np.int32))
    rows = (row(1, 4, 1), row(2, 1, 1), row(3, 2, 1))
    x = builder.prepare(StepPlan(step_id=1, rows=rows)).inputs
    assert x.token_ids.tolist() == [99, 50, 60] and x.drafts is None
    assert x.sampling.history.tolist() == [5, 6, 7, 20, 99]


def test_the_result_of_a_row_has_the_tokens_of_the_positions_it_reached() -> None:
    runner = _runner()
    context = [1, 2, 3]
    for _ in range(3):
        context.append(next_token(context, 97))
    first, second, third = context[3:]
    news = (new(1, [1, 2, 3], temperature=0.0, logprobs=1), new(2, [1, 2, 3], temperature=0.0))
    rows = (
        row(1, 0, 3, (0, 1), draft_token_ids=(first, second)),
        row(2, 0, 3, (2, 3), draft_token_ids=(first, (second + 1) % 97, 0)),
    )
    result = runner.submit(StepPlan(step_id=0, new=news, rows=rows)).result()
    assert [r.token_ids for r in result.rows] == [(first, second, third), (first, second)]
    assert result.rows[0].logprobs is not None
    assert [p.token_id for p in result.rows[0].logprobs] == [first, second, third]

    def no_token_left(outputs: StepOutputs) -> None:
        outputs.sampled[1] = -1

    runner.backend.alter = no_token_left  # type: ignore[attr-defined]
    plan = StepPlan(step_id=1, rows=(row(2, 4, 1, draft_token_ids=(third,)),))
    (alone,) = runner.submit(plan).result().rows
    assert alone.error is None and alone.token_ids == (third,), "the next step meets the error"


def test_vectors_of_a_prompt_adapter_stand_for_its_first_tokens() -> None:
    """Beside rows of a LoRA, in chunks; penalties do not count them."""
    vectors = np.arange(20, dtype=np.float32).reshape(5, 4)
    builder = InputBuilder(1, 64, 4, slots=1, soft_prompts={3: vectors})
    soft = msgspec.structs.replace(
        new(10, [0, 0, 0, 0, 0, 7, 8], repetition_penalty=1.5), virtual_tokens=5
    )
    plain = new(11, [1, 2, 3])
    rows = (
        row(11, 0, 3, (7,), adapter_slot=1),
        row(10, 0, 4, (4,), sample=False, adapter_slot=3),
    )
    x = builder.prepare(StepPlan(step_id=0, new=(plain, soft), rows=rows)).inputs
    assert x.adapters is not None and x.adapters.tolist() == [0, -1]
    assert x.overrides is not None and x.overrides.tokens.tolist() == [3, 4, 5, 6]
    assert (x.overrides.rows == vectors[:4]).all()
    rows = (row(10, 4, 3, (5,), adapter_slot=3),)
    step = builder.prepare(StepPlan(step_id=1, rows=rows))
    x = step.inputs
    assert x.adapters is None and x.overrides is not None and x.overrides.tokens.tolist() == [0]
    assert (x.overrides.rows == vectors[4:]).all()
    assert x.sampling.history.tolist() == [7, 8] and x.sampling.history_prompt.tolist() == [2]
    assert x.sampling.position.tolist() == [7]
    builder.accept(step, np.array([9], np.int32))
    x = builder.prepare(StepPlan(step_id=2, rows=(row(10, 7, 1, adapter_slot=3),))).inputs
    assert x.overrides is None and x.sampling.history.tolist() == [7, 8, 9]


def _runner() -> Runner:
    backend = FakeBackend(tiny_spec(), 4)
    backend.allocate_cache((16,))
    return Runner(backend, 64)


# A value for every field of a row that no executor computes yet.
VALUES = {
    "embedding_overrides": (EmbeddingOverride(0, b"", b""),),
}
# The others. A new field belongs here with a test of what it does, or into UNSUPPORTED.
COMPUTED = {
    *("seq_id", "start", "count", "new_blocks", "new_token_ids", "new_token_start", "input_from"),
    "drafts_wanted",
    *("layers", "state_from", "fork_of", "snapshots", "logits", "sample", "mask_announced"),
    "draft_token_ids",
    "hidden_states",
    "adapter_slot",
}


def test_every_field_of_a_row_is_computed_or_rejected() -> None:
    assert set(Row.__struct_fields__) == COMPUTED | VALUES.keys()
    assert UNSUPPORTED.keys() == VALUES.keys()


def test_what_no_executor_does_is_rejected_by_name() -> None:
    runner = _runner()
    news = tuple(new(i, [1, 2]) for i in range(len(VALUES) + 1))
    rows = [row(0, 0, 2, (0,), sample=True)]
    rows += [row(i, 0, 2, (i,), **{name: v}) for i, (name, v) in enumerate(VALUES.items(), 1)]
    result = runner.submit(StepPlan(step_id=0, new=news, rows=tuple(rows))).result()
    assert [r.seq_id for r in result.rows] == list(range(len(VALUES) + 1))
    assert result.rows[0].error is None and len(result.rows[0].token_ids) == 1
    for name, got in zip(VALUES, result.rows[1:], strict=True):
        assert got.error_kind == "unsupported" and got.error_param == name


def test_rows_that_cannot_be_sampled_fail_alone() -> None:
    runner = _runner()

    def poison(outputs: StepOutputs) -> None:
        outputs.sampled[1:] = [-1, -2]

    runner.backend.alter = poison  # type: ignore[attr-defined]
    plan = StepPlan(
        step_id=0,
        new=tuple(new(i, [1, 2]) for i in range(3)),
        rows=tuple(row(i, 0, 2, (i,)) for i in range(3)),
    )
    rows = runner.submit(plan).result().rows
    assert rows[0].error is None
    assert "leaves no token" in (rows[1].error or "")
    assert "not finite" in rows[2].error and rows[2].error_kind == "not_finite"


def test_preparing_64_rows_is_quick() -> None:
    builder = InputBuilder(1, 4096, 32, slots=64)
    news = tuple(new(i, [1] * 500, temperature=0.8) for i in range(64))
    tables = [tuple(range(i * 20, i * 20 + 20)) for i in range(64)]
    rows = tuple(row(i, 0, 500, tables[i]) for i in range(64))
    builder.accept(builder.prepare(StepPlan(step_id=0, new=news, rows=rows)), np.ones(64, np.int32))
    best = 1.0
    for step in range(1, 30):
        plan = StepPlan(step_id=step, rows=tuple(row(i, 499 + step, 1) for i in range(64)))
        begun = time.perf_counter()
        prepared = builder.prepare(plan)
        builder.accept(prepared, np.ones(64, np.int32))
        best = min(best, time.perf_counter() - begun)
    assert best < 0.003, f"{best * 1e6:.0f} us"


def test_a_top_p_that_float32_knows_as_zero_keeps_the_likeliest_token() -> None:
    builder = InputBuilder(1, 64, 16)
    step = builder.prepare(
        StepPlan(step_id=0, new=(new(0, [5, 6], top_p=1e-320),), rows=(row(0, 0, 2, (0,)),))
    )
    assert 0 < step.inputs.sampling.top_p[0] < 1e-20
