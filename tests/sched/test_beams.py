"""Beam groups in the scheduler: memory, preemption, failures and ends, with a backend that notices
every block that is not its sequence's."""

from __future__ import annotations

import random

import pytest
from helpers.drive import EOS, Machine, request
from helpers.fake_backend import expected_tokens, fake_candidates

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import EngineRequest, FinishReason
from tidemill.sched.beam_search import BeamSearch

VOCAB = 97


def searched(asked: EngineRequest) -> list[list[int]]:
    """The outputs of a beam search, without engine: its beams are lists."""
    s = asked.sampling
    ends = {*s.stop_token_ids, *(() if s.ignore_eos else (EOS,))}
    assert s.max_tokens is not None
    search = BeamSearch(s.beam_width, s.length_penalty, s.early_stopping, s.max_tokens)
    live: list[list[int]] = [[]]
    outputs: dict[object, list[int]] = {}
    while True:
        rows = [fake_candidates([*asked.prompt_token_ids, *tokens], VOCAB) for tokens in live]
        last = len(live[0]) + 1 == s.max_tokens
        decided = search.next(rows, lambda o, last=last: last or o.token in ends)
        outputs |= {h: [*live[h.offer.beam], h.offer.token] for h in decided.ended}
        if decided.done:
            return [outputs[h] for h in search.hypotheses[: s.n]]
        live = [[*live[o.beam], o.token] for o in decided.live]


def beams(name: str, length: int = 9, max_tokens: int = 12, **options: object) -> EngineRequest:
    defaults: dict[str, object] = {
        **{"beam_width": 3, "n": 3, "stop_token_ids": tuple(range(0, VOCAB, 8))},
        **options,
    }
    rng = random.Random(name)
    prompt = [rng.randrange(VOCAB) for _ in range(length)]
    return request(name, prompt, max_tokens, **defaults)  # type: ignore[arg-type]


def check(machine: Machine, *requests: EngineRequest) -> None:
    for one in requests:
        s = one.sampling
        if s.beam_search:
            want = searched(one)
        else:
            assert s.max_tokens is not None
            want = [expected_tokens(one.prompt_token_ids, s.max_tokens, VOCAB)]
        got = [machine.tokens(one.request_id, choice) for choice in range(s.n)]
        assert got == want, one.request_id
    assert machine.memory.num_used == 0


def test_a_search_returns_its_best_hypotheses() -> None:
    machine = Machine()
    asked = [beams("a"), beams("b", n=1), beams("c", early_stopping=True, length_penalty=0.0)]
    machine.submit(*asked)
    machine.run()
    check(machine, *asked)
    [last] = machine.collected["b", 0].outputs  # nothing was sent before the end
    assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert ("b", 1) not in machine.collected


def test_beams_share_their_blocks() -> None:
    machine = Machine(block_size=4, num_blocks=64, prefix_caching=False)
    asked = beams("a", length=120, max_tokens=9, beam_width=6, n=1)
    machine.submit(asked)
    most = 0
    while machine.step():
        most = max(most, machine.memory.num_used)
    check(machine, asked)
    assert 30 + 6 < most <= 30 + 6 * 3


@pytest.mark.parametrize("seed", range(12))
def test_any_load_and_little_memory(seed: int) -> None:
    rng = random.Random(seed)
    machine = Machine(
        num_blocks=rng.choice((24, 30, 60)),
        groups=rng.choice((1, 2)),
        depth=rng.choice((1, 2)),
        max_step_tokens=rng.choice((7, 32)),
        max_num_seqs=rng.choice((4, 9)),
        prefix_caching=rng.random() < 0.7,
    )
    asked: list[EngineRequest] = []
    failing = 0
    for _ in range(400):
        if len(asked) < 14 and rng.random() < 0.4:
            name, tenant = f"r{len(asked)}", rng.choice("ab")
            options: dict[str, object] = {"tenant": tenant, "priority": rng.choice((0, 0, 1))}
            options["background"] = rng.random() < 0.2
            if rng.random() < 0.5:
                width = rng.choice((2, 3, 4))
                options |= {"beam_width": width, "n": rng.randrange(1, width + 1)}
                options |= {"early_stopping": rng.choice((True, False, "never"))}
                asked.append(beams(name, rng.randrange(1, 22), rng.randrange(1, 15), **options))
            else:
                prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))]
                asked.append(request(name, prompt, rng.randrange(1, 30), **options))  # type: ignore
            machine.submit(asked[-1])
        elif rng.random() < 0.05 and machine.launch():
            machine.roll_back()
            machine.backend.forget_steps()
            failing += 1
        elif not machine.step() and len(asked) == 14:
            break
    machine.run()
    check(machine, *asked)
    assert failing


def test_a_preempted_search_goes_on_where_it_was() -> None:
    machine = Machine(num_blocks=18, prefix_caching=False)
    old = request("old", list(range(8)), 60)
    asked = beams("a", length=12, max_tokens=14, stop_token_ids=())
    machine.submit(old)
    machine.step()
    machine.submit(asked)
    machine.run()
    check(machine, asked, old)
    last = machine.collected["a", 0].terminal[0]
    assert last.timings is not None and last.timings.preemptions > 0
    # Its steps were not searched again: two rounds never have the same length.
    rounds = [
        row.start
        for plan in machine.plans
        for row in plan.rows
        if row.sample and row.count == 1 and row.start >= 12
    ]
    assert len(rounds) < 60 + 3 * 14 * 2


def test_cancelling_a_choice_and_all() -> None:
    machine = Machine()
    asked = beams("a", n=3, max_tokens=20)
    machine.submit(asked, beams("b"))
    for _ in range(4):
        machine.step()
    machine.take(machine.scheduler.cancel("a", 1))
    machine.take(machine.scheduler.cancel("b"))
    machine.run()
    assert machine.collected["a", 1].terminal[0].finish_reason is FinishReason.CANCELLED
    assert [machine.tokens("a", c) for c in (0, 2)] == searched(asked)[::2]
    ends = [machine.collected["b", c].terminal[0].finish_reason for c in range(3)]
    assert ends == [FinishReason.CANCELLED] * 3
    assert machine.memory.num_used == 0


def test_a_failing_row_ends_the_search() -> None:
    machine = Machine()
    machine.submit(beams("a"), beams("b"))
    for _ in range(3):
        machine.step()
    machine.backend.fail_next = 1
    machine.step()
    machine.run()
    for name in "ab":
        ends = [machine.collected[name, c].terminal[0].finish_reason for c in range(3)]
        assert ends == [FinishReason.ERROR] * 3
    assert machine.memory.num_used == 0


def test_what_could_never_run_is_refused() -> None:
    machine = Machine(num_blocks=16, max_num_seqs=8)
    machine.submit(beams("deep", length=20, max_tokens=40), beams("wide", beam_width=9))
    for name, text in (("deep", "KV cache"), ("wide", "sequences that may run")):
        error = machine.collected[name, 0].terminal[0].error
        assert error is not None and error.param == "beam_width" and text in error.message


def test_a_cache_that_shrinks_below_a_search_ends_it() -> None:
    machine = Machine(num_blocks=64, max_model_len=40, prefix_caching=False)
    asked = beams("a", length=4, max_tokens=28, beam_width=8, n=1, stop_token_ids=())
    machine.submit(asked)
    machine.memory.resize(11)
    while machine.step():
        pass
    machine.take(machine.scheduler.end_stuck())
    error = machine.collected["a", 0].terminal[0].error
    assert error is not None and error.kind == ErrorKind.RESOURCE
    assert machine.memory.num_used == 0 and not machine.scheduler.has_work


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": 2, "n": 3},
        {"beam_width": 33},
        {"best_of": 1, "n": 2},
        {"beam_width": 3, "best_of": 4},
        {"beam_width": 2, "temperature": 0.7},
        {"beam_width": 2, "top_p": 0.5},
        {"early_stopping": "always"},
        {"length_penalty": 11.0},
    ],
)
def test_parameters_that_contradict_each_other_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(TidemillError) as caught:
        request("a", [1], **options)  # type: ignore[arg-type]
    assert caught.value.param in options
