"""When the vocabulary for constrained output is read."""

from __future__ import annotations

import threading

import pytest

from tidemill.contract.program import FreeText, Grammar, OutputProgram
from tidemill.grammar.service import TOKEN_BYTES, WARM_SHARE, GrammarService
from tidemill.loading.checkpoint import open_model
from tidemill.loading.locate import locate


@pytest.fixture
def service() -> GrammarService:
    files = open_model(locate(None)[0])
    return GrammarService(files.tokenizer, files.spec.vocab_size, files.eos_token_ids)


def test_it_is_read_ahead_only_beside_weights_that_are_much_larger(service: GrammarService) -> None:
    enough = int(service._source[1] * TOKEN_BYTES / WARM_SHARE) + 1
    service.warm(enough // 2)
    assert not service._warmed and service._compiler is None
    service.warm(enough)
    service._new.close(wait=True)
    assert service._compiler is not None
    assert service._sandbox is not None and service._sandbox.pid is None, "nobody asked for it"


def test_without_that_the_first_program_reads_it(service: GrammarService) -> None:
    service.warm(0)
    program = OutputProgram((Grammar("regex", "a+"),))
    assert service.compile(program, [2]) is not None
    service.close()


def test_nothing_is_compiled_for_who_has_left(service: GrammarService) -> None:
    ends: list[tuple[int, object]] = []
    program = OutputProgram((Grammar("regex", "a+"),))
    service.compile_later(program, [2], 1, lambda s, e: ends.append((len(s), e)), wanted=bool)
    service.compile_later(program, [2], 2, lambda s, e: ends.append((len(s), e)))
    service._new.close(wait=True)
    assert ends == [(0, None), (2, None)]
    assert service.figures()["grammars_compiled"] == 1
    service.close()


def test_what_is_compiled_does_not_wait_behind_what_is_not(service: GrammarService) -> None:
    program = OutputProgram((Grammar("regex", "a+"),))
    service.compile(program, [2])
    hold, done = threading.Event(), threading.Event()
    service._new.submit("other", lambda: hold.wait() or None)
    service.compile_later(program, [2], 1, lambda states, error: done.set())
    assert done.wait(20)
    hold.set()
    service.close()


def test_no_process_is_started_where_there_is_no_grammar(service: GrammarService) -> None:
    service.compile(OutputProgram((FreeText(budget=3, until=((5,),)),)), [2])
    assert service._sandbox is not None and service._sandbox.pid is None
    service.close()


def test_memory_that_masks_take_is_noted(service: GrammarService) -> None:
    grammar = Grammar("regex", "(.|b)*a(.|b){60}c")
    program = service.compile(OutputProgram((grammar,)), [2])
    (compiled,) = program.compiled
    assert compiled is not None
    before, state = compiled.bytes, program.start()
    for token in range(300, 500):
        (mask,) = service.masks([state])
        if mask[token >> 3] >> (token & 7) & 1:
            state.accept(token)
    assert compiled.bytes > before + 100_000
    service.close()
