"""When the vocabulary for constrained output is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.program import FreeText, Grammar, OutputProgram
from tidemill.grammar import vocabulary
from tidemill.grammar.service import GrammarService
from tidemill.loading.checkpoint import open_model
from tidemill.loading.locate import locate

PROGRAM = OutputProgram((Grammar("regex", "a+"),))
FREE = OutputProgram((FreeText(budget=3, until=((5,),)),))
SECONDS = 20


@pytest.fixture
def service() -> Iterator[GrammarService]:
    files = open_model(locate(None)[0])
    made = GrammarService(files.tokenizer, files.spec.vocab_size, files.eos_token_ids)
    yield made
    made.close()


class Read:
    """Notes each vocabulary that is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.once = 0, threading.Event()
        original = vocabulary.Vocabulary

        def noting(*source: object) -> vocabulary.Vocabulary:
            self.count += 1
            self.once.set()
            return original(*source)  # type: ignore[arg-type]

        monkeypatch.setattr(vocabulary, "Vocabulary", noting)


def sandboxes() -> set[int]:
    """The processes of sandboxes that this one has started."""
    return {
        child.pid
        for child in psutil.Process().children()
        if "tidemill.grammar.sandbox_process" in child.cmdline()
    }


def wait_for_the_queue(service: GrammarService) -> None:
    """Return when all that was queued before has been done."""
    done = threading.Event()
    service.compile_later(PROGRAM, [2], 1, lambda states, error: done.set(), wanted=lambda: False)
    assert done.wait(SECONDS)


def test_it_is_read_ahead_only_beside_weights_that_are_much_larger(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, before = Read(monkeypatch), sandboxes()
    tokens = open_model(locate(None)[0]).spec.vocab_size
    enough = tokens * 800 * 20  # 800 bytes a token are a twentieth of them
    service.warm(enough - 1)
    wait_for_the_queue(service)
    assert read.count == 0
    for _ in range(2):
        service.warm(enough)
        wait_for_the_queue(service)
        assert read.count == 1
    service.compile(FREE, [2])
    assert read.count == 1
    assert sandboxes() <= before, "nobody asked for a grammar"


def test_without_that_the_first_program_reads_it(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Read(monkeypatch)
    service.warm(0)
    for _ in range(2):
        service.compile(PROGRAM, [2])
    assert read.count == 1


def test_nothing_is_compiled_for_who_has_left(service: GrammarService) -> None:
    ends: list[tuple[int, TidemillError | None]] = []
    both = threading.Event()

    def done(states: list[object], error: TidemillError | None) -> None:
        ends.append((len(states), error))
        if len(ends) == 2:
            both.set()

    service.compile_later(PROGRAM, [2], 1, done, wanted=lambda: False)  # type: ignore[arg-type]
    service.compile_later(PROGRAM, [2], 2, done)  # type: ignore[arg-type]
    assert both.wait(SECONDS)
    assert ends == [(0, None), (2, None)]
    assert service.figures()["grammars_compiled"] == 1


def test_what_is_compiled_does_not_wait_behind_what_is_not(service: GrammarService) -> None:
    service.compile(PROGRAM, [2])
    hold, begun, done = threading.Event(), threading.Event(), threading.Event()

    def waiting() -> bool:
        begun.set()
        return hold.wait(3 * SECONDS)

    new = OutputProgram((Grammar("regex", "b+"),))
    service.compile_later(new, [2], 1, lambda states, error: None, wanted=waiting)
    assert begun.wait(SECONDS)
    service.compile_later(PROGRAM, [2], 1, lambda states, error: done.set())
    try:
        assert done.wait(SECONDS)
    finally:
        hold.set()


def test_no_process_is_started_where_there_is_no_grammar(service: GrammarService) -> None:
    before = sandboxes()
    service.compile(FREE, [2])
    assert sandboxes() <= before
    service.compile(PROGRAM, [2])
    assert len(sandboxes() - before) == 1


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
