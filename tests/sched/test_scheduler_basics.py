"""The scheduler's rules, one at a time, over a backend that notices a wrong block."""

from __future__ import annotations

import random

import msgspec
import pytest
from helpers.drive import EOS, Machine, request
from helpers.fake_backend import expected_tokens, fake_logprob, next_token

from tidemill.base.errors import ErrorKind
from tidemill.contract.plan import LogitsWanted
from tidemill.contract.request import AdapterUse, EngineRequest, FinishReason
from tidemill.sched.policy import PART_SECONDS


def prompt_of(length: int, seed: int = 0, vocab: int = 97) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(length)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_one_request_gets_its_tokens(depth: int, groups: int) -> None:
    machine = Machine(depth=depth, groups=groups)
    prompt = prompt_of(19)
    machine.submit(request("a", prompt, 10))
    machine.run()
    assert machine.tokens("a") == expected_tokens(prompt, 10, 97)
    last = machine.collected["a", 0].outputs[-1]
    assert last.finish_reason is FinishReason.LENGTH and last.timings is not None
    assert machine.memory.num_used == 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [3, 16, 64])
@pytest.mark.parametrize("blocks", [12, 200])
def test_tokens_do_not_depend_on_load(depth: int, chunk: int, blocks: int) -> None:
    machine = Machine(
        depth=depth, num_blocks=blocks, max_step_tokens=chunk, max_model_len=48, max_num_seqs=8
    )
    rng = random.Random(chunk)
    shared = prompt_of(11, 99)
    jobs = {}
    for i in range(24):
        prompt = shared + prompt_of(rng.randrange(1, 16), i)
        jobs[f"r{i}"] = (prompt, rng.randrange(1, 18), i % 2)
    for name, (prompt, count, sampled) in jobs.items():
        machine.submit(request(name, prompt, count, temperature=float(sampled), seed=7))
    machine.run()
    for name, (prompt, count, sampled) in jobs.items():
        seed = 7 if sampled else None
        assert machine.tokens(name) == expected_tokens(prompt, count, 97, seed=seed), name
    if blocks == 12:
        assert machine.scheduler.stats().preemptions > 0
    assert machine.memory.num_used == 0


def test_every_row_stays_within_the_budget_and_streams_come_first() -> None:
    machine = Machine(max_step_tokens=16, num_blocks=100)
    machine.submit(request("stream", prompt_of(3), 40))
    machine.step()
    machine.submit(request("long", prompt_of(120, 5), 2))
    machine.run()
    assert all(plan.num_tokens <= 16 for plan in machine.plans)
    mixed = [plan for plan in machine.plans[1:] if len(plan.rows) > 1]
    assert mixed and all(plan.rows[0].count == 1 for plan in mixed)
    # While a stream runs, prefill gets a quarter of the budget: the stream has a token every step.
    assert max(row.count for plan in mixed for row in plan.rows) == 4
    streamed = [len(o.token_ids) for o in machine.collected["stream", 0].outputs]
    assert streamed == [1] * 40


def test_prefix_hit_leaves_the_last_token_to_compute() -> None:
    machine = Machine(block_size=4)
    prompt = prompt_of(16)
    machine.submit(request("a", prompt, 1))
    machine.run()
    before = len(machine.plans)
    machine.submit(request("b", prompt, 3))
    machine.run()
    first = machine.plans[before].rows[0]
    assert (first.start, first.count) == (15, 1)
    assert machine.tokens("b") == expected_tokens(prompt, 3, 97)
    assert machine.collected["b", 0].outputs[0].cached_tokens == 15
    assert machine.collected["a", 0].outputs[0].cached_tokens == 0
    assert machine.scheduler.stats().cached_tokens == 15


@pytest.mark.parametrize("shared", [16, 17, 18, 21, 23])
def test_a_block_that_begins_alike_is_copied(shared: int) -> None:
    machine = Machine(block_size=8)
    first = prompt_of(30)
    second = first[:shared] + prompt_of(30 - shared, 50)
    assert second[shared] != first[shared]
    machine.submit(request("a", first, 1))
    machine.run()
    before = len(machine.plans)
    machine.submit(request("b", second, 3))
    machine.run()
    plan = machine.plans[before]
    worth_it = shared - 16 >= 2  # a quarter of a block
    assert plan.rows[0].start == (shared if worth_it else 16)
    assert len(plan.copies) == worth_it
    assert machine.tokens("b") == expected_tokens(second, 3, 97)
    # What it copied from is still there for the next one.
    machine.submit(request("c", first, 3))
    machine.run()
    assert machine.tokens("c") == expected_tokens(first, 3, 97)
    assert machine.collected["c", 0].outputs[0].cached_tokens == 24
    machine.scheduler.check()


def test_a_full_memory_borrows_nothing() -> None:
    # Five blocks are what the second one needs: none is left to be borrowed until it is copied.
    machine = Machine(block_size=4, num_blocks=5)
    first = prompt_of(18)
    machine.submit(request("a", first, 1))
    machine.run()
    second = first[:10] + prompt_of(8, 50)
    machine.submit(request("b", second, 1))
    machine.run()
    assert machine.tokens("b") == expected_tokens(second, 1, 97)
    assert machine.collected["b", 0].outputs[0].cached_tokens == 8


def test_salts_do_not_share() -> None:
    machine = Machine()
    machine.submit(request("a", prompt_of(16), 1, salt="x"))
    machine.run()
    machine.submit(request("b", prompt_of(16), 1, salt="y"))
    machine.run()
    assert machine.collected["b", 0].outputs[0].cached_tokens == 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 16, 17])
@pytest.mark.parametrize("count", [1, 9])
def test_choices_fork(depth: int, caching: bool, length: int, count: int) -> None:
    machine = Machine(depth=depth, prefix_caching=caching)
    prompt = prompt_of(length)
    machine.submit(request("a", prompt, count, temperature=1.0, seed=5, n=4))
    machine.run()
    for choice in range(4):
        want = expected_tokens(prompt, count, 97, seed=5, choice=choice)
        assert machine.tokens("a", choice) == want
    computed = sum(row.count for plan in machine.plans for row in plan.rows)
    surplus = 4 if depth == 2 else 0
    assert computed <= length + 3 + 4 * (count - 1) + surplus, "forks computed the prompt again"
    copies = sum(len(plan.copies) for plan in machine.plans)
    if count > 1:
        assert copies == (3 if (length - 1) % 4 else 0)


def test_forks_survive_their_leaders_cancellation_and_preemption() -> None:
    machine = Machine(num_blocks=8, max_step_tokens=4, max_model_len=32)
    prompt = prompt_of(10)
    machine.submit(request("a", prompt, 12, temperature=1.0, seed=5, n=3))
    machine.step()
    machine.take(machine.scheduler.cancel("a", 0))
    machine.run()
    for choice in (1, 2):
        want = expected_tokens(prompt, 12, 97, seed=5, choice=choice)
        assert machine.tokens("a", choice) == want
    assert machine.collected["a", 0].terminal[0].finish_reason is FinishReason.CANCELLED


def test_end_tokens_stop_ids_and_min_tokens() -> None:
    machine = Machine()
    prompt = prompt_of(6)
    free = expected_tokens(prompt, 30, 97)
    stop = free[4]
    first = free.index(stop)
    machine.submit(request("stop", prompt, 30, stop_token_ids=(stop,)))
    machine.submit(request("min", prompt, 30, stop_token_ids=(stop,), min_tokens=first + 1))
    machine.submit(
        request(
            "eos",
            prompt,
            30,
            ignore_eos=False,
            logit_bias={t: -100.0 for t in range(97) if t != EOS},
        )
    )
    machine.run()
    assert machine.tokens("stop") == free[: first + 1]
    end = machine.collected["stop", 0].terminal[0]
    assert end.finish_reason is FinishReason.STOP and end.stop_token == stop
    banned = frozenset({stop})
    want = list(prompt)
    for _ in range(first + 1):
        want.append(next_token(want, 97, banned=banned))
    assert machine.tokens("min")[: first + 1] == want[len(prompt) :]
    assert machine.tokens("eos") == [EOS]


def test_priority_then_arrival() -> None:
    machine = Machine(max_num_seqs=1)
    machine.submit(
        request("late", [1, 2], 2, arrival=2.0),
        request("early", [1, 3], 2, arrival=1.0),
        request("urgent", [1, 4], 2, priority=-1, arrival=3.0),
    )
    machine.run()
    order = [name for name, _ in machine.collected]
    assert order == ["urgent", "early", "late"]


def test_the_parts_of_a_body_give_way_to_what_comes_meanwhile_and_begin_in_the_end() -> None:
    machine = Machine(max_num_seqs=1)
    parts = [request(f"part{i}", [1, i + 2], 2, arrival=1.0, place=i) for i in range(6)]
    second = PART_SECONDS * 2.5  # as the third part begins
    chats = [request(f"chat{i}", [2, i], 2, arrival=1.0 + second + i / 100) for i in range(3)]
    machine.submit(*parts, *chats)
    machine.run()
    order = [name for name, _ in machine.collected]
    assert order == [*(f"part{i}" for i in range(3)), *(f"chat{i}" for i in range(3)),
                     *(f"part{i}" for i in range(3, 6))]  # fmt: skip


def test_lowest_priority_latest_arrival_is_preempted() -> None:
    machine = Machine(num_blocks=8, block_size=4, max_model_len=32)
    machine.submit(request("a", prompt_of(7, 1), 16), request("b", prompt_of(7, 2), 16))
    machine.run()
    preempted = {n: machine.collected[n, 0].terminal[0].timings.preemptions for n in ("a", "b")}
    assert preempted["a"] == 0 and preempted["b"] > 0


def test_cancel_frees_blocks_at_once() -> None:
    machine = Machine(depth=2, max_step_tokens=64)
    machine.submit(request("a", prompt_of(30), 20, n=2), request("b", prompt_of(9, 2), 6))
    machine.launch()
    machine.take(machine.scheduler.cancel("a"))
    assert machine.memory.num_used == machine.memory.blocks_for(9)
    machine.run()
    assert machine.tokens("b") == expected_tokens(prompt_of(9, 2), 6, 97)
    ends = [machine.collected["a", c].terminal[0].finish_reason for c in (0, 1)]
    assert ends == [FinishReason.CANCELLED] * 2
    machine.take(machine.scheduler.cancel("a"))
    assert not machine.scheduler.has_work and len(machine.runner.inputs.sequences) <= 2


def test_a_client_that_leaves_takes_its_own_requests_along() -> None:
    machine = Machine(max_num_seqs=2)
    for client, names in ((1, "ab"), (2, "cd")):
        for name in names:
            machine.take(machine.scheduler.submit(request(name, [client, 5, 6], 9), client))
    machine.step()
    machine.scheduler.drop_client(1)
    machine.scheduler.check()
    assert {seq.owner.request.request_id for seq in machine.scheduler.sequences()} == {"c", "d"}
    machine.run()
    assert machine.tokens("c") == machine.tokens("d") == expected_tokens([2, 5, 6], 9, 97)


def test_closing_ends_everything_queued_or_running() -> None:
    machine = Machine(max_num_seqs=1)
    machine.submit(request("a", [1, 2], 9, n=2), request("b", [3], 9))
    machine.step()
    machine.roll_back()
    machine.take(machine.scheduler.end_all(FinishReason.CANCELLED))
    for name, choice in (("a", 0), ("a", 1), ("b", 0)):
        assert machine.collected[name, choice].terminal[0].finish_reason is FinishReason.CANCELLED
    assert not machine.scheduler.has_work and machine.memory.num_used == 0


def test_plans_are_committed_and_taken_back_in_order_only() -> None:
    machine = Machine(depth=2)
    machine.submit(request("a", [1, 2, 3], 9))
    machine.step()
    assert machine.launch() or machine.in_flight
    while machine.launch():
        pass
    [(old, handle), (new, _)] = machine.in_flight
    result = handle.result()
    with pytest.raises(RuntimeError, match="not the newest"):
        machine.scheduler.rollback(old)
    with pytest.raises(RuntimeError, match="not the oldest"):
        machine.scheduler.commit(new, result)
    with pytest.raises(RuntimeError, match="not the oldest"):
        other = msgspec.structs.replace(result, step_id=new.step_id)
        machine.scheduler.commit(old, other)
    machine.run()
    assert machine.tokens("a") == expected_tokens([1, 2, 3], 9, 97)


def test_a_prompt_that_is_being_computed_reserves_only_what_it_still_needs() -> None:
    # Of 17 blocks the long prompt takes 10, and one for the token it samples; 6 are for the other.
    machine = Machine(num_blocks=17, max_step_tokens=32, max_model_len=60)
    machine.submit(request("long", prompt_of(40), 4), request("next", prompt_of(23, 2), 1))
    assert machine.launch() and [row.count for row in machine.plans[-1].rows] == [32]
    machine.land()
    assert machine.launch() and [row.count for row in machine.plans[-1].rows] == [8, 23]
    machine.run()


def test_deadlines_end_queued_and_running() -> None:
    machine = Machine(max_num_seqs=1)
    machine.submit(
        request("running", prompt_of(5), 50, deadline=10.0),
        request("queued", prompt_of(5), 50, deadline=20.0),
        request("free", prompt_of(5), 3),
    )
    machine.step()
    machine.now = 9.0
    machine.take(machine.scheduler.expire())
    assert not machine.collected["running", 0].terminal
    machine.now = 21.0
    machine.take(machine.scheduler.expire())
    for name in ("running", "queued"):
        error = machine.collected[name, 0].terminal[0].error
        assert error is not None and error.kind == ErrorKind.TIMEOUT
    machine.run()
    assert len(machine.tokens("free")) == 3


def test_what_cannot_fit_is_refused_with_both_numbers() -> None:
    machine = Machine(num_blocks=4, block_size=4, max_model_len=100)
    machine.submit(request("big", prompt_of(16), 1), request("fits", prompt_of(15), 9))
    error = machine.collected["big", 0].terminal[0].error
    assert error is not None and error.kind == ErrorKind.BAD_REQUEST
    assert "16" in error.message and "16 tokens" in error.message
    machine.run()
    assert len(machine.tokens("fits")) == 1
    assert machine.collected["fits", 0].terminal[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"adapters": (AdapterUse("a", "/a", "d", invocation=(7, 8)),)}, "adapter"),
        ({"prompt_token_ids": ()}, "prompt"),
        ({"prompt_token_ids": (1, 97)}, "prompt"),
        ({"prompt_token_ids": (1, -1)}, "prompt"),
        ({"resume": ((1,), (2,))}, "resume"),
    ],
)
def test_refusals_name_the_field(change: dict[str, object], param: str) -> None:
    machine = Machine()
    bad: EngineRequest = msgspec.structs.replace(request("x", [1, 2]), **change)
    machine.submit(bad)
    error = machine.collected["x", 0].terminal[0].error
    assert error is not None and error.param == param
    assert not machine.scheduler.has_work


def test_resume_continues_with_the_same_tokens() -> None:
    prompt = prompt_of(9)
    whole = [expected_tokens(prompt, 12, 97, seed=3, choice=c) for c in (0, 1)]
    machine = Machine()
    machine.submit(
        request(
            "a",
            prompt,
            12,
            temperature=1.0,
            seed=3,
            n=2,
            resume=(tuple(whole[0][:5]), tuple(whole[1][:12])),
        )
    )
    machine.run()
    assert machine.tokens("a", 0) == whole[0][5:]
    assert machine.tokens("a", 1) == []
    assert machine.collected["a", 1].terminal[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("blocks", [10, 64])
@pytest.mark.parametrize("chunk", [4, 64])
def test_prompt_logprobs_cover_the_prompt(blocks: int, chunk: int) -> None:
    machine = Machine(num_blocks=blocks, max_step_tokens=chunk, max_model_len=40)
    prompt = prompt_of(14)
    machine.submit(request("warm", prompt, 1))
    machine.run()
    machine.submit(
        request("a", prompt, 6, prompt_logprobs=2, logprobs=1, n=2),
        request("b", prompt_of(12, 3), 9),
    )
    machine.run()
    told = [o.prompt_logprobs for c in (0, 1) for o in machine.collected["a", c].outputs]
    logprobs = told[0]  # once, with the first tokens
    assert logprobs is not None and not any(told[1:])
    assert logprobs[0] is None and len(logprobs) == 14
    for p in range(1, 14):
        assert logprobs[p].token_id == prompt[p]
        assert logprobs[p].logprob == pytest.approx(fake_logprob(prompt[:p], prompt[p]))
        assert len(logprobs[p].top) == 2
    for choice in (0, 1):
        outputs = machine.collected["a", choice].outputs
        sent = [lp.token_id for o in outputs for lp in o.logprobs]
        assert sent == machine.tokens("a", choice) == expected_tokens(prompt, 6, 97)
    asked = [r for p in machine.plans for r in p.rows if r.logits is LogitsWanted.ALL]
    [leader] = {n.seq_id for p in machine.plans for n in p.new
                if n.request_id == "a" and n.choice == 0}  # fmt: skip
    assert {row.seq_id for row in asked} == {leader}
    if blocks == 64:
        assert sum(row.count for row in asked) == len(prompt), "each position once"


def test_penalized_rows_carry_their_history() -> None:
    for depth in (1, 2):
        machine = Machine(depth=depth)
        seen: list[int] = []
        machine.backend.on_step = lambda x, seen=seen: seen.append(len(x.sampling.history))
        machine.submit(request("a", prompt_of(5), 4, frequency_penalty=0.5))
        machine.run()
        assert max(seen) >= 7


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_ends_its_rows_and_nothing_else(depth: int) -> None:
    machine = Machine(depth=depth, max_num_seqs=2, max_model_len=64)
    prompts = [prompt_of(9, i) for i in range(4)]
    for i, prompt in enumerate(prompts):
        machine.submit(request(f"r{i}", prompt, 6))
    machine.step()
    machine.backend.fail_next = 1
    machine.step()
    failed = {name for (name, _), box in machine.collected.items() if box.terminal}
    assert failed == {"r0", "r1"}
    machine.run()
    for i in (2, 3):
        assert machine.tokens(f"r{i}") == expected_tokens(prompts[i], 6, 97)
    assert machine.memory.num_used == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_taken_back_can_be_planned_again(depth: int) -> None:
    machine = Machine(depth=depth, num_blocks=20, max_model_len=64)
    prompts = [prompt_of(9, i) for i in range(6)]
    for i, prompt in enumerate(prompts):
        machine.submit(request(f"r{i}", prompt, 20, temperature=1.0, seed=1, n=1 + i % 2))
    rng = random.Random(1)
    while machine.scheduler.has_work:
        while machine.launch():
            pass
        if rng.random() < 0.3:
            machine.backend.forget_steps()
            machine.roll_back()
        else:
            machine.land()
    for i, prompt in enumerate(prompts):
        for choice in range(1 + i % 2):
            want = expected_tokens(prompt, 20, 97, seed=1, choice=choice)
            assert machine.tokens(f"r{i}", choice) == want


def test_waste_stays_below_four_percent() -> None:
    machine = Machine(
        num_blocks=1024,
        block_size=32,
        max_model_len=4000,
        max_num_seqs=64,
        max_step_tokens=2048,
        check=False,
    )
    rng = random.Random(4)
    for i in range(24):
        machine.submit(request(f"r{i}", prompt_of(rng.randrange(200, 1800), i), 20))
    held = used = 0
    for _ in range(40):
        machine.step()
        for seq in machine.scheduler.sequences():
            if seq.lease is not None:
                held += seq.lease.capacity
                used += seq.planned
    assert held and (held - used) / held < 0.04
