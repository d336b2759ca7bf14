"""Drafts in the scheduler: what a row verifies, what it costs others (nothing), how it ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from helpers.drafting import OracleDrafter, let_an_oracle_draft, let_draft
from helpers.drive import EOS, Machine, request
from helpers.fake_backend import expected_tokens, next_token

from tidemill.contract.plan import DraftsWanted, NewSequence, Row
from tidemill.contract.program import Grammar, OutputProgram
from tidemill.contract.request import FinishReason
from tidemill.sched.sequence import quiet
from tidemill.worker.speculate.drafter import Int32, Proposal, Wanted

VOCAB = 97
PROMPT = [7, 8, 9, 10, 11]


class RightDrafter(OracleDrafter):
    """Proposes what will come, as many as wanted; `bonus` tokens instead, if given."""

    def __init__(self, bonus: tuple[int, ...] = ()) -> None:
        super().__init__(VOCAB)
        self._bonus = bonus

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        found = []
        for one in wanted:
            context = one.tokens.tolist()
            while len(context) < len(one.tokens) + one.most and not self._bonus:
                context.append(next_token(context, VOCAB))
            found.append(Proposal(self._bonus or tuple(context[len(one.tokens) :])))
        return found


def drafted_rows(machine: Machine) -> list[Row]:
    return [row for plan in machine.plans for row in plan.rows if row.draft_token_ids]


def speculating(**options: object) -> Machine:
    machine = Machine(speculate="lookup", max_step_tokens=64, **options)  # type: ignore[arg-type]
    let_draft(machine.runner, RightDrafter())
    return machine


@pytest.mark.parametrize("depth", [1, 2])
def test_right_drafts_save_steps(depth: int) -> None:
    machine = speculating(depth=depth)
    machine.submit(request("a", PROMPT, 40))
    machine.run()
    assert machine.tokens("a") == expected_tokens(PROMPT, 40, VOCAB)
    assert len(machine.plans) == 4, "1 + 17 + 17 + 5"
    outputs = machine.collected["a", 0].outputs
    assert [(o.drafted, o.drafts_accepted) for o in outputs] == [(0, 0), (16, 16), (16, 16), (4, 4)]
    stats = machine.scheduler.stats()
    assert stats.drafted_tokens == stats.drafts_accepted == 36
    assert stats.step_tokens == len(PROMPT) + 17 + 17 + 5


def test_a_request_says_what_drafts_for_it() -> None:
    machine = speculating()
    machine.submit(request("a", PROMPT, 9, speculation="off"))
    machine.run()
    assert not drafted_rows(machine)
    plain = Machine()
    let_draft(plain.runner, RightDrafter())
    plain.submit(request("a", PROMPT, 9, speculation="lookup"))
    plain.submit(request("b", PROMPT, 9, prediction=(1, 2)))
    plain.submit(request("c", PROMPT, 9))
    plain.run()
    drafted = {row.seq_id for row in drafted_rows(plain)}
    assert drafted == {0, 1}
    machine.submit(request("d", PROMPT, 9, speculation="guess"))
    (output,) = machine.collected["d", 0].outputs
    assert output.error is not None and output.error.param == "speculation"
    machine.submit(request("e", PROMPT, 9, prediction=(5, VOCAB)))
    (output,) = machine.collected["e", 0].outputs
    assert output.error is not None and output.error.param == "prediction"


def test_the_length_ends_a_choice_in_the_middle_of_its_drafts() -> None:
    for count in range(1, 20):
        machine = speculating()
        machine.submit(request("a", PROMPT, count))
        machine.run()
        assert machine.tokens("a") == expected_tokens(PROMPT, count, VOCAB)
        assert all(len(row.draft_token_ids) <= count - 2 for row in drafted_rows(machine))
        assert machine.memory.num_used == 0


def test_a_stop_token_ends_a_choice_and_is_not_drafted() -> None:
    want = expected_tokens(PROMPT, 30, VOCAB)
    machine = speculating(block_size=4)
    machine.submit(request("a", PROMPT, 30, stop_token_ids=(want[9],)))
    machine.run()
    end = machine.collected["a", 0].terminal[0]
    assert end.finish_reason is FinishReason.STOP and end.stop_token == want[9]
    assert machine.tokens("a") == want[:10]
    assert not any(want[9] in row.draft_token_ids for row in drafted_rows(machine))
    # Its blocks are found again, none with a rejected token.
    machine.submit(request("b", [*PROMPT, *want[:10], 5], 5))
    machine.run()
    assert machine.tokens("b") == expected_tokens([*PROMPT, *want[:10], 5], 5, VOCAB)


def test_rejected_drafts_are_in_no_block_that_is_found_again() -> None:
    machine = Machine(speculate="lookup", max_step_tokens=64, num_blocks=200)
    let_draft(machine.runner, RightDrafter((1, 2, 3, 4, 5, 6, 7)))
    machine.submit(request("a", PROMPT, 40))
    machine.run()
    want = expected_tokens(PROMPT, 40, VOCAB)
    assert machine.tokens("a") == want
    assert machine.scheduler.stats().drafts_accepted < 5
    for cut in (5, 8, 20, 39):
        again = [*PROMPT, *want[:cut], 1, 2, 3]
        machine.submit(request(f"b{cut}", again, 6))
        machine.run()
        assert machine.tokens(f"b{cut}") == expected_tokens(again, 6, VOCAB)


def test_drafts_take_no_blocks_and_no_tokens_from_others() -> None:
    machine = Machine(
        speculate="lookup", num_blocks=13, block_size=4, max_step_tokens=8, prefix_caching=False
    )
    let_draft(machine.runner, RightDrafter())
    for i in range(4):
        machine.submit(request(f"r{i}", [i + 20], 11))
    machine.run()
    assert machine.scheduler.stats().preemptions == 0, "12 blocks are needed, 13 are there"
    for i in range(4):
        assert machine.tokens(f"r{i}") == expected_tokens([i + 20], 11, VOCAB)
    for plan in machine.plans:
        assert plan.num_tokens <= 8
        streams = [row for row in plan.rows if row.start > 0]
        drafts = sum(len(row.draft_token_ids) for row in streams)
        assert drafts <= (8 - len(streams)) // 2


def test_a_stream_that_may_have_drafts_is_not_launched_ahead() -> None:
    machine = Machine(speculate="lookup", depth=2, max_step_tokens=64)
    let_an_oracle_draft(machine.runner, VOCAB)
    machine.backend.cost = lambda x: 0.01
    machine.submit(request("a", PROMPT, 60))
    ahead = 0
    while machine.scheduler.has_work:
        seqs = {seq.seq_id: seq for seq in machine.scheduler.sequences()}
        assert machine.launch()
        (row,) = machine.plans[-1].rows
        free = not seqs[row.seq_id].needs_result
        if machine.scheduler.overlap_seconds is not None:
            assert free and not row.draft_token_ids and row.count == 1
            assert machine.launch()
            ahead += 1
            (row,) = machine.plans[-1].rows
            assert row.input_from is not None and not row.draft_token_ids
        while machine.in_flight:
            machine.land()
    assert ahead > 3 and machine.tokens("a") == expected_tokens(PROMPT, 60, VOCAB)


def test_background_requests_have_drafts_where_nothing_else_runs() -> None:
    machine = speculating(num_blocks=200)
    machine.submit(request("b", PROMPT, 60, background=True))
    machine.step()
    machine.step()
    assert drafted_rows(machine)
    machine.submit(request("a", PROMPT[:3], 30, speculation="off"))
    machine.run()
    for plan in machine.plans:
        if {row.seq_id for row in plan.rows} == {0, 1}:
            assert not any(row.draft_token_ids for row in plan.rows)
    assert machine.tokens("b") == expected_tokens(PROMPT, 60, VOCAB)
    assert machine.tokens("a") == expected_tokens(PROMPT[:3], 30, VOCAB)


def test_drafts_take_no_longer_than_a_prompt_beside_streams_may() -> None:
    for seconds, least, most in ((0.001, 15, 16), (0.01, 4, 8), (0.05, 0, 1)):
        machine = speculating(num_blocks=200)
        # Streams alone take 0.04 s and more, so the step may take 0.12 s or half as much again.
        machine.backend.cost = lambda x, each=seconds: 0.03 + each * len(x.token_ids)
        machine.submit(request("a", PROMPT, 150))
        machine.run()
        assert machine.tokens("a") == expected_tokens(PROMPT, 150, VOCAB)
        rows = [row for plan in machine.plans for row in plan.rows]
        drafts = [len(row.draft_token_ids) for row in rows[-4:-1]]
        assert least <= max(drafts) <= most, (seconds, drafts)


class Script:
    """Allows tokens until one of a number, which it forbids; forces some after others."""

    masked = False
    complete = False

    def __init__(
        self,
        forbids: int = 1000,
        forces: dict[int, tuple[int, ...]] | None = None,
        repeats: int = 1000,
    ) -> None:
        self.accepted: list[int] = []
        self._forbids, self._forces, self._repeats = forbids, forces or {}, repeats

    @property
    def repeats(self) -> bool:
        return len(self.accepted) >= self._repeats

    def allows(self, token_id: int) -> bool:
        return len(self.accepted) != self._forbids

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)

    def mark(self) -> int:
        return len(self.accepted)

    def rollback(self, mark: int) -> None:
        del self.accepted[mark:]

    def forced(self) -> tuple[int, ...]:
        return self._forces.get(len(self.accepted), ())


def constrained(
    machine: Machine, script: Script, max_tokens: int | None = 12, **sampling: object
) -> None:
    program = OutputProgram((Grammar("regex", "a+"),))
    one = request("a", PROMPT, max_tokens, **sampling)  # type: ignore[arg-type]
    machine.submit(msgspec.structs.replace(one, program=program))
    machine.take(machine.scheduler.release(0, "a", [script]))


def test_drafts_that_the_constraint_forbids_are_cut() -> None:
    machine = speculating()
    script = Script(forbids=5)
    constrained(machine, script)
    machine.run()
    assert script.accepted == machine.tokens("a") == expected_tokens(PROMPT, 12, VOCAB)
    first = drafted_rows(machine)[0]
    assert len(first.draft_token_ids) == 4, "the first token came without drafts"


def test_what_ends_amid_right_drafts_publishes_known_tokens_alone() -> None:
    machine = speculating()
    constrained(machine, Script(repeats=6), None)
    published = []
    add = machine.memory.indices[0].add
    machine.memory.indices[0].add = lambda key, block: (published.append(key), add(key, block))
    machine.run()
    want = expected_tokens(PROMPT, 6, VOCAB)
    assert machine.tokens("a") == want and drafted_rows(machine)
    assert len(published) == (len(PROMPT) + 6) // 4, "full blocks of known tokens"


def test_forced_tokens_follow_accepted_drafts_and_align_the_next() -> None:
    right = expected_tokens(PROMPT, 12, VOCAB)
    for forced in (tuple(right[1:3]), (50, 51)):
        machine = speculating()
        constrained(machine, Script(forces={1: forced}))
        machine.run()
        want = [right[0], *forced]
        want += expected_tokens([*PROMPT, *want], 9, VOCAB)
        assert machine.tokens("a") == want
        (first, *_) = drafted_rows(machine)
        assert first.count == 3 or first.start > len(PROMPT) + 1
        if forced[0] != 50:
            assert first.draft_token_ids == tuple(right[3 : 3 + len(first.draft_token_ids)])
            assert first.count == 3 and first.new_token_ids == forced


class Failing:
    """A drafter that fails."""

    reads_hidden = False

    def add(self, new: NewSequence, cached: int) -> None: ...

    def read(self, seq_id: int, tokens: Int32) -> None: ...

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        raise ValueError("broken")

    def forget(self, seq_id: int) -> None: ...


def test_a_drafter_that_fails_ends_drafting_not_the_request() -> None:
    machine = Machine(speculate="lookup")
    let_draft(machine.runner, Failing())
    machine.submit(request("a", PROMPT, 9), request("b", PROMPT, 9, ignore_eos=False))
    machine.run()
    want = expected_tokens(PROMPT, 9, VOCAB)
    assert machine.tokens("a") == want
    assert machine.tokens("b") == (want[: want.index(EOS) + 1] if EOS in want else want)


class Fortunate(RightDrafter):
    """Right for a while, then wrong for good, and certain of nothing."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self._until = until

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        right = super().propose(wanted)
        return [
            Proposal((), quiet=True)
            if of.least
            else (one if len(of.tokens) < self._until else Proposal((1, 2, 3, 4)))
            for one, of in zip(right, wanted, strict=True)
        ]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_drafter_that_turns_wrong_is_given_up_and_streams_are_launched_ahead(depth: int) -> None:
    machine = Machine(
        speculate="auto", depth=depth, always_draft=False, num_blocks=400, max_model_len=900
    )
    let_draft(machine.runner, Fortunate(100))
    machine.backend.cost = lambda x: 0.010 + 0.002 * len(x.token_ids)
    machine.submit(request("a", PROMPT, 800))
    ahead = 0
    while machine.scheduler.has_work:
        assert machine.launch()
        if machine.scheduler.overlap_seconds is not None and machine.launch():
            ahead += 1
        while machine.in_flight:
            machine.land()
    assert machine.tokens("a") == expected_tokens(PROMPT, 800, VOCAB)
    figures = machine.scheduler.stats().speculation
    assert figures is not None and figures.drafters[0].accepted[0] >= 3
    assert len(machine.plans) > 650
    late = [row for plan in machine.plans[100:] for row in plan.rows if row.draft_token_ids]
    assert 1 <= len(late) < len(machine.plans) // 20
    assert depth == 1 or ahead > len(machine.plans) // 2 * 0.8


def test_a_request_asks_for_what_is_loaded() -> None:
    machine = Machine(speculate="auto")
    machine.submit(request("a", PROMPT, 4, speculation="medusa"))
    (output,) = machine.collected["a", 0].outputs
    assert output.error is not None and output.error.param == "speculation"
    assert "--speculate" in output.error.message and "lookup" in output.error.message


def test_a_stream_is_quiet_for_those_alone_who_were_asked() -> None:
    certain, all_ = (DraftsWanted("lookup", 16, 3),), (DraftsWanted("lookup", 16, 0),)
    fewer = (DraftsWanted("lookup", 4, 3),)
    both = (*all_, DraftsWanted("draft", 4))
    assert quiet(certain, all_) and quiet(certain, certain) and quiet(fewer, certain)
    assert not quiet(all_, certain) and not quiet(both, all_) and not quiet(all_, both)
    assert not quiet(all_, ())


def test_forced_tokens_whose_logprobs_are_wanted_are_drafts() -> None:
    right = expected_tokens(PROMPT, 12, VOCAB)
    for speculate, asked, steps in (("off", None, 4), ("auto", None, 4), ("auto", "off", 12)):
        machine = Machine(speculate=speculate, max_step_tokens=64)
        let_draft(machine.runner, RightDrafter((1,)))
        forces = {1: tuple(right[1:4]), 5: tuple(right[5:8]), 9: tuple(right[9:11])}
        constrained(machine, Script(forces=forces), logprobs=0, speculation=asked)
        machine.run()
        assert machine.tokens("a") == right
        assert len(machine.plans) == steps
        outputs = machine.collected["a", 0].outputs
        assert all(len(o.logprobs or ()) == len(o.token_ids) for o in outputs)
        stats = machine.scheduler.stats()
        assert stats.drafts_accepted == (0 if asked else 8) and stats.forced_tokens == 0
        assert all(o.drafted == 0 for o in outputs), "the client predicted nothing"
