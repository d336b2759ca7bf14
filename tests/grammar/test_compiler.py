"""The cache of compiled grammars: hits and eviction."""

from __future__ import annotations

import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar import compiler as compilers
from tidemill.grammar.compiler import MAX_BYTES, MAX_USES, USE_BYTES, Compiler
from tidemill.grammar.messages import Tried
from tidemill.grammar.phases import CompiledProgram, OutputProgram
from tidemill.grammar.trial import Trial, heap_in_use
from tidemill.grammar.vocabulary import Vocabulary
from tidemill.loading import bundled_models, open_model


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    files = open_model(bundled_models()["brook"])
    return Vocabulary(files.tokenizer, 3072, files.eos_token_ids)


@pytest.fixture
def compiler(vocabulary: Vocabulary) -> Compiler:
    return Compiler(vocabulary)


def regex(text: str) -> Grammar:
    return Grammar("regex", text)


def test_what_is_kept_is_bounded_by_the_memory_it_holds(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "MAX_KEPT_BYTES", 3 * 2**20)
    words = [f"a{i} and so on" for i in range(3000)]
    compiler.matcher(regex("first"))
    several = [regex("|".join(f"{word}{number}" for word in words)) for number in range(8)]
    for one in several:
        compiler.matcher(one)
    assert 0 < compiler.kept_bytes <= 3 * 2**20
    assert not compiler.has(regex("first"))
    kept = [compiler.has(one) for one in several]
    assert kept == sorted(kept) and 1 < sum(kept) < 8, "the latest"


def test_the_trial_shows_what_a_grammar_takes(vocabulary: Vocabulary, compiler: Compiler) -> None:
    for count in (50, 2000):
        grammar = regex("|".join(f"{'x' * (i % 97)}{i}.*y" for i in range(count)))
        tried = Trial(vocabulary.shape).attempt(grammar)
        before = heap_in_use()
        matcher = compiler._compile(grammar, tried.source)
        copy = matcher.deep_copy()
        copy.compute_bitmask()
        taken = heap_in_use() - before
        # 0 on both sides where the C library does not say.
        assert 0.5 * taken <= tried.heap_bytes <= 2 * taken


def test_a_grammar_used_often_is_compiled_anew(compiler: Compiler) -> None:
    for _ in range(MAX_USES):
        assert compiler.stats.compiled == 1 or not compiler.stats.compiled
        compiler.matcher(regex("a+"))
    assert not compiler.has(regex("a+")) and compiler.kept_bytes == 0
    compiler.matcher(regex("a+"))
    assert compiler.stats.compiled == 2 and compiler.kept_bytes > USE_BYTES


def test_only_what_was_tried_is_compiled(vocabulary: Vocabulary) -> None:
    def attempt(grammar: Grammar) -> Tried:
        if "no" in grammar.source:
            raise TidemillError("bad_request", "not this one")
        return Tried(Trial(vocabulary.shape).attempt(regex("b")).source, 5)

    compiler = Compiler(vocabulary, attempt)
    with pytest.raises(TidemillError, match="not this one"):
        compiler.matcher(regex("no"))
    matcher = compiler.matcher(regex("a"))
    assert matcher.compute_ff_bytes() == b"b"


def test_a_grammar_whose_states_are_used_up_is_discarded(
    compiler: Compiler, vocabulary: Vocabulary
) -> None:
    grammar = regex("a{3}")
    program = OutputProgram((grammar,))
    made = CompiledProgram(program, [compiler.compiled(grammar)], vocabulary, [2], compiler.discard)
    state = made.start()
    (wrong,) = vocabulary(b"b")
    assert compiler.has(grammar)
    with pytest.raises(TidemillError):
        state.accept(wrong)
    assert not compiler.has(grammar)


def test_what_grows_by_use_is_kept_within_the_bounds(compiler: Compiler) -> None:
    small, large = compiler.compiled(regex("a+")), compiler.compiled(regex("b+"))
    before = compiler.kept_bytes
    compiler.grown(large, 2**20)
    assert compiler.kept_bytes == before + 2**20 and compiler.has(regex("b+"))
    compiler.grown(large, MAX_BYTES)
    assert not compiler.has(regex("b+")) and compiler.has(regex("a+"))
    assert compiler.kept_bytes == small.bytes
    compiler.grown(large, 2**20)
    assert compiler.kept_bytes == small.bytes, "it is not kept any more"
