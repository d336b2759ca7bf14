"""Constrained choices: queued when compiled, advanced by every token, ended when complete."""

from __future__ import annotations

import msgspec
import pytest
from helpers.drive import Machine, request
from helpers.fake_backend import expected_tokens, next_token

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.contract.program import Grammar, OutputProgram
from tidemill.contract.request import EngineRequest, FinishReason

PROGRAM = OutputProgram((Grammar("regex", "a+"),))
PROMPT = [7, 8, 9, 10, 11]


class Script:
    """A constraint that allows every token, and forces, ends and fails as it is told.

    Args:
        forces: after so many tokens, these.
        ends: complete after so many tokens.
        repeats: repeats itself after so many tokens.
        fails: does not allow the token of this number.
    """

    masked = False

    def __init__(
        self,
        forces: dict[int, tuple[int, ...]] | None = None,
        *,
        ends: int = 1000,
        repeats: int = 1000,
        fails: int = 1000,
    ) -> None:
        self.accepted: list[int] = []
        self._forces = forces or {}
        self._ends, self._repeats, self._fails = ends, repeats, fails

    @property
    def complete(self) -> bool:
        return len(self.accepted) >= self._ends

    @property
    def repeats(self) -> bool:
        return len(self.accepted) >= self._repeats

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)
        if len(self.accepted) >= self._fails:
            raise bad_request("program", "the token is not allowed")

    def allows(self, token_id: int) -> bool:
        return True

    def mark(self) -> int:
        return len(self.accepted)

    def rollback(self, mark: int) -> None:
        del self.accepted[mark:]

    def forced(self) -> tuple[int, ...]:
        return self._forces.get(len(self.accepted), ())


def constrained(name: str, max_tokens: int | None = 8, **options: object) -> EngineRequest:
    made = request(name, PROMPT, max_tokens, **options)  # type: ignore[arg-type]
    return msgspec.structs.replace(made, program=PROGRAM)


def end_of(machine: Machine, name: str, choice: int = 0) -> FinishReason | None:
    [end] = machine.collected[name, choice].terminal
    return end.finish_reason


def test_a_request_waits_for_its_program_and_holds_nobody_up() -> None:
    machine = Machine()
    scheduler = machine.scheduler
    machine.submit(constrained("a"))
    assert scheduler.is_waiting_for_program(0, "a") and not scheduler.has_work
    assert not machine.launch()
    machine.submit(request("b", [1, 2], 3))
    machine.run()
    assert machine.tokens("b") == expected_tokens([1, 2], 3, 97)
    script = Script()
    machine.take(scheduler.release(0, "a", [script]))
    assert not scheduler.is_waiting_for_program(0, "a") and scheduler.has_work
    machine.run()
    assert machine.tokens("a") == script.accepted == expected_tokens(PROMPT, 8, 97)


def test_a_program_that_cannot_be_compiled_ends_every_choice() -> None:
    machine = Machine()
    machine.submit(constrained("a", n=2))
    error = TidemillError(ErrorKind.BAD_REQUEST, "no", param="response_format")
    machine.take(machine.scheduler.release(0, "a", (), error))
    for choice in (0, 1):
        [end] = machine.collected["a", choice].terminal
        assert end.error is not None and end.error.param == "response_format"
    assert not machine.scheduler.has_work
    assert machine.scheduler.release(0, "a", [Script()] * 2) == [], "it has ended"


def test_each_choice_has_its_own() -> None:
    machine = Machine()
    machine.submit(constrained("a", n=2, temperature=1.0, seed=3))
    scripts = [Script(ends=2), Script(ends=4)]
    machine.take(machine.scheduler.release(0, "a", scripts))
    machine.run()
    for choice, script in enumerate(scripts):
        want = expected_tokens(PROMPT, (2, 4)[choice], 97, seed=3, choice=choice)
        assert machine.tokens("a", choice) == script.accepted == want
        assert end_of(machine, "a", choice) is FinishReason.STOP


@pytest.mark.parametrize("depth", [1, 2])
def test_forced_tokens_are_appended_without_being_sampled(depth: int) -> None:
    machine = Machine(depth=depth)
    machine.submit(constrained("a", 9))
    script = Script({1: (40, 41, 42), 5: (43,)})
    machine.take(machine.scheduler.release(0, "a", [script]))
    machine.run()
    want = expected_tokens(PROMPT, 1, 97)
    want += [40, 41, 42]
    want += expected_tokens([*PROMPT, *want], 1, 97)
    want += [43]
    want += expected_tokens([*PROMPT, *want], 3, 97)
    assert machine.tokens("a") == script.accepted == want
    assert machine.scheduler.stats().forced_tokens == 4
    sampled = sum(row.sample for plan in machine.plans for row in plan.rows)
    assert sampled == 5


def test_with_logprobs_every_token_is_sampled() -> None:
    machine = Machine()
    machine.submit(constrained("a", 5, logprobs=0))
    script = Script({1: (40, 41, 42)})
    machine.take(machine.scheduler.release(0, "a", [script]))
    machine.run()
    assert machine.tokens("a") == expected_tokens(PROMPT, 5, 97)


def test_forced_tokens_beyond_the_length_are_none() -> None:
    machine = Machine()
    machine.submit(constrained("a", 3))
    machine.take(machine.scheduler.release(0, "a", [Script({1: (40, 41, 42, 43)})]))
    machine.run()
    assert machine.tokens("a") == [next_token(PROMPT, 97), 40, 41]
    assert end_of(machine, "a") is FinishReason.LENGTH


@pytest.mark.parametrize(("max_tokens", "count"), [(None, 6), (20, 20)])
def test_an_output_that_repeats_itself_ends_where_nothing_else_would_end_it(
    max_tokens: int | None, count: int
) -> None:
    machine = Machine(max_model_len=60)
    machine.submit(constrained("a", max_tokens))
    machine.take(machine.scheduler.release(0, "a", [Script(repeats=6)]))
    machine.run()
    assert len(machine.tokens("a")) == count
    assert end_of(machine, "a") is FinishReason.LENGTH


def test_a_token_that_is_not_allowed_ends_the_choice_alone() -> None:
    machine = Machine()
    machine.submit(constrained("a", n=2, temperature=1.0, seed=3))
    machine.take(machine.scheduler.release(0, "a", [Script(fails=3), Script()]))
    machine.run()
    [end] = machine.collected["a", 0].terminal
    assert end.error is not None and end.error.param == "program"
    assert len(machine.tokens("a", 0)) == 2 and len(machine.tokens("a", 1)) == 8
    assert machine.memory.num_used == 0


@pytest.mark.parametrize("ends", [3, 1000])
def test_resumed_tokens_advance_it_first(ends: int) -> None:
    whole = expected_tokens(PROMPT, 8, 97)
    machine = Machine()
    machine.submit(constrained("a", resume=(tuple(whole[:3]),)))
    script = Script(ends=ends)
    machine.take(machine.scheduler.release(0, "a", [script]))
    machine.run()
    if ends == 3:
        assert machine.tokens("a") == [] and end_of(machine, "a") is FinishReason.STOP
    else:
        assert machine.tokens("a") == whole[3:] and script.accepted == whole


def test_whose_mask_is_computed_is_found_by_its_sequence() -> None:
    machine = Machine()
    machine.submit(constrained("a"), request("free", [1, 2, 3], 4))
    script = Script()
    machine.take(machine.scheduler.release(0, "a", [script]))
    machine.launch()
    names = {new.seq_id: new.request_id for new in machine.plans[-1].new}
    found = {names[row.seq_id]: machine.scheduler.constraint(row.seq_id)
             for row in machine.plans[-1].rows}  # fmt: skip
    assert found == {"a": script, "free": None}
    machine.run()
