"""What happened to a request is told with its last output, and each cause by its name."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.drive import Machine, request

from tidemill.contract.history import ChoiceHistory, ChunkLimit, Miss, PreemptionCause
from tidemill.sched.history import MAX_CHUNKS, limit_of
from tidemill.sched.misses import MAX_ROOTS, Roots

PROMPT = list(range(10, 30))  # five blocks of four


def ask(name: str, prompt: list[int], max_tokens: int = 2, **more: Any) -> Any:
    return request(name, prompt, max_tokens, explain=True, **more)


def told(machine: Machine, name: str, choice: int = 0) -> ChoiceHistory:
    [last] = machine.collected[name, choice].terminal
    assert last.history is not None
    return last.history


def missed(machine: Machine, name: str, prompt: list[int], **more: Any) -> tuple[str, int, int]:
    """Runs a request; why no more of it was cached, how much was, and the same tokens there."""
    machine.submit(ask(name, prompt, **more))
    machine.run()
    prefix = told(machine, name).prefix
    assert prefix is not None
    assert prefix.cached == machine.collected[name, 0].outputs[0].cached_tokens
    return prefix.miss, prefix.cached, prefix.known


def test_nothing_is_told_where_nobody_asks() -> None:
    machine = Machine()
    machine.submit(request("a", PROMPT))
    machine.run()
    [last] = machine.collected["a", 0].terminal
    assert last.history is None
    assert machine.memory.evicted is None and not machine.scheduler.explains
    assert machine.collected["a", 0].outputs[0].scheduled == 0.0  # the clock stands still at 0


def test_what_is_cached_and_why_not_more() -> None:
    machine = Machine()
    assert missed(machine, "new", PROMPT) == (Miss.NEW, 0, 0)
    assert missed(machine, "again", PROMPT) == (Miss.NONE, 19, 0)  # the last one is computed
    missed(machine, "answered", PROMPT, max_tokens=8)  # its output fills a block behind the prompt
    assert missed(machine, "at a block", [*PROMPT, *range(50, 60)]) == (Miss.PARTED, 20, 0)
    parted = [*PROMPT[:10], *range(60, 70)]
    assert missed(machine, "parted", parted) == (Miss.PARTED, 10, 2)
    assert missed(machine, "salt", PROMPT, salt="other") == (Miss.OTHER_SALT, 0, 0)
    assert missed(machine, "every", PROMPT, prompt_logprobs=0)[0] == Miss.EVERY_POSITION


def test_a_prompt_beyond_what_was_computed() -> None:
    machine = Machine()
    assert missed(machine, "first", PROMPT, max_tokens=1) == (Miss.NEW, 0, 0)
    assert missed(machine, "longer", [*PROMPT, *range(50, 60)]) == (Miss.LONGER, 20, 0)
    assert missed(machine, "short", [*PROMPT, 7, 8]) == (Miss.SHORT, 20, 0)


def test_without_a_prefix_cache() -> None:
    machine = Machine(prefix_caching=False)
    assert missed(machine, "a", PROMPT) == (Miss.OFF, 0, 0)


def test_what_was_evicted_is_known() -> None:
    machine = Machine(num_blocks=8)
    missed(machine, "first", PROMPT)
    missed(machine, "other", list(range(40, 65)))  # takes the blocks of the first
    miss, cached, _ = missed(machine, "again", PROMPT)
    assert miss == Miss.EVICTED and cached < len(PROMPT)


def test_without_a_free_block_what_begins_alike_is_computed() -> None:
    machine = Machine(num_blocks=8)
    missed(machine, "first", PROMPT[:12], max_tokens=1)  # leaves three full blocks
    machine.submit(ask("beside", list(range(40, 57)), 3))  # holds the five others
    machine.step()
    # Two of them are found, and the third begins like the rest. It would be copied to a fourth.
    assert missed(machine, "alike", PROMPT[:11], max_tokens=1) == (Miss.NO_ROOM, 8, 2)


def test_few_tokens_that_are_alike_are_not_worth_a_copy() -> None:
    machine = Machine(block_size=32)
    prompt = [10 + i % 80 for i in range(70)]
    missed(machine, "first", prompt, max_tokens=1)
    assert missed(machine, "short", prompt[:36], max_tokens=1) == (Miss.SHORT, 32, 3)


def test_what_another_request_was_computing() -> None:
    machine = Machine()
    machine.submit(ask("one", PROMPT), ask("two", PROMPT))
    machine.run()
    prefixes = [told(machine, name).prefix for name in ("one", "two")]
    assert [prefix.miss for prefix in prefixes if prefix] == [Miss.NEW, Miss.IN_FLIGHT]


def test_what_is_looked_at_of_others_is_bounded() -> None:
    roots = Roots()
    for i in range(MAX_ROOTS + 9):
        roots.note(bytes([i]), str(i))
    assert len(roots) == MAX_ROOTS
    assert roots.others(b"none")[-1] == (bytes([9]), "9")


def test_chunks_are_the_whole_prompt_in_order() -> None:
    machine = Machine(max_step_tokens=8)
    machine.submit(ask("a", PROMPT))
    machine.run()
    chunks = told(machine, "a").chunks
    assert [chunk.start for chunk in chunks] == [0, 8, 16]
    assert [chunk.tokens for chunk in chunks] == [8, 8, 4]
    assert [chunk.limit for chunk in chunks] == [
        ChunkLimit.TOKENS, ChunkLimit.TOKENS, ChunkLimit.PROMPT,
    ]  # fmt: skip
    assert [chunk.streams for chunk in chunks] == [0, 0, 0]
    steps = [chunk.step for chunk in chunks]
    assert steps == sorted(set(steps))


def test_a_chunk_that_is_rolled_back_counts_once() -> None:
    machine = Machine(max_step_tokens=8, depth=1)
    machine.submit(ask("a", PROMPT))
    machine.step()
    machine.launch()
    machine.roll_back()
    machine.run()
    assert [chunk.start for chunk in told(machine, "a").chunks] == [0, 8, 16]


def test_a_long_list_is_cut_and_says_so() -> None:
    machine = Machine(max_step_tokens=1, max_model_len=1000, num_blocks=256, vocab=997)
    machine.submit(ask("a", list(range(10, 20 + MAX_CHUNKS)), max_tokens=1))
    machine.run()
    found = told(machine, "a")
    # The last token alone is a row as of a running stream.
    assert (len(found.chunks), found.further_chunks) == (MAX_CHUNKS, 9)


@pytest.mark.parametrize(
    ("tokens", "budget", "timed", "layered", "limit"),
    [
        (50, 100, True, False, ChunkLimit.PROMPT),
        (20, 20, True, False, ChunkLimit.TOKENS),
        (20, 100, True, False, ChunkLimit.TIME),
        (8, 100, True, False, ChunkLimit.LEAST),
        (20, 100, False, False, ChunkLimit.TOKENS),
        (50, 100, True, True, ChunkLimit.LAYERS),
    ],
)
def test_why_a_chunk_is_no_longer(
    tokens: int, budget: int, timed: bool, layered: bool, limit: ChunkLimit
) -> None:
    found = limit_of(tokens, rest=50, budget=budget, least=8, timed=timed, layered=layered)
    assert found == limit


def test_a_preemption_names_its_cause_and_who_it_was_for() -> None:
    machine = Machine(num_blocks=10, max_step_tokens=64)
    machine.submit(ask("old", list(range(10, 22)), 20), ask("young", list(range(30, 42)), 20))
    machine.run()
    [preemption] = told(machine, "young").preemptions
    assert (preemption.cause, preemption.by) == (PreemptionCause.GROWTH, "old")
    assert preemption.computed >= 12
    again = [chunk for chunk in told(machine, "young").chunks if chunk.step > 0]
    assert again, "the chunks that compute it again are listed as well"
    assert told(machine, "old").preemptions == ()


def test_the_background_gives_way_by_name() -> None:
    machine = Machine(num_blocks=8)
    machine.submit(ask("behind", list(range(10, 22)), 20, background=True))
    for _ in range(4):
        machine.step()
    machine.submit(ask("front", list(range(30, 50)), 4))
    machine.run()
    causes = [preemption.cause for preemption in told(machine, "behind").preemptions]
    assert causes == [PreemptionCause.FOREGROUND]


def test_a_tenant_below_its_share_preempts_by_name() -> None:
    machine = Machine(num_blocks=12, max_num_seqs=2)
    machine.submit(*(ask(f"a{i}", [10 + i] * 8, 20, tenant="many") for i in range(2)))
    for _ in range(3):
        machine.step()
    machine.submit(ask("b", [60] * 8, 4, tenant="few"))
    machine.run()
    found = [p for i in range(2) for p in told(machine, f"a{i}").preemptions]
    assert [(p.cause, p.by) for p in found] == [(PreemptionCause.TENANT, "b")]


def test_choices_have_their_own() -> None:
    machine = Machine()
    machine.submit(ask("a", PROMPT, n=2, temperature=1.0))
    machine.run()
    first, second = told(machine, "a", 0), told(machine, "a", 1)
    assert first.prefix is not None and second.prefix is None
    assert [chunk.tokens for chunk in first.chunks] == [20]
