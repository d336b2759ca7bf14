"""Where a choice is in its program: what it may write next, and what it must."""

from __future__ import annotations

import numpy as np
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram, Phase
from tidemill.grammar.compiler import Compiler
from tidemill.grammar.phases import CompiledProgram, ProgramState
from tidemill.grammar.vocabulary import Vocabulary
from tidemill.loading import bundled_models, open_model

STOP = 2
"""A stop token id of the request, beside the model's end tokens."""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    files = open_model(bundled_models()["brook"])
    return Compiler(Vocabulary(files.tokenizer, 3072, files.eos_token_ids))


class Walk:
    """A choice, and what its next token may be."""

    def __init__(self, compiler: Compiler, *phases: Phase) -> None:
        compiled = [compiler.compiled(p) for p in phases if isinstance(p, Grammar)]
        self._vocabulary = compiler.vocabulary
        program = CompiledProgram(OutputProgram(phases), compiled, compiler.vocabulary, [STOP])
        self.state: ProgramState = program.start()
        self.ends = {STOP, *compiler.vocabulary.ends}

    def ids(self, text: str) -> list[int]:
        """One token a byte."""
        return [token for byte in text.encode() for token in self._vocabulary(bytes([byte]))]

    def write(self, text: str) -> None:
        for token in self.ids(text):
            assert token in self.allowed, (text, token)
            self.state.accept(token)

    @property
    def allowed(self) -> set[int]:
        """The tokens that the mask allows; all without one."""
        everything = set(range(self._vocabulary.size))
        if not self.state.masked:
            return everything
        mask = self.state.fixed_mask()
        if mask is None:
            matcher = self.state.mask_matcher()
            raw = bytes(matcher.compute_bitmask())[: self._vocabulary.mask_bytes]
            mask = self.state.finish_mask(np.frombuffer(raw, np.uint8).copy())
        return {token for token in everything if mask[token >> 3] >> (token & 7) & 1}

    @property
    def may_end(self) -> bool:
        return bool(self.allowed & self.ends)


A = Grammar("regex", "a+b")


def test_free_text_to_the_end_needs_no_mask(compiler: Compiler) -> None:
    walk = Walk(compiler, FreeText())
    for _ in range(3):
        assert not walk.state.masked and walk.may_end and walk.state.forced() == ()
        walk.write("x")
    assert not walk.state.complete


def test_a_trigger_ends_free_text_wherever_it_comes(compiler: Compiler) -> None:
    walk = Walk(compiler, FreeText(until=((70, 71), (80,))), A)
    assert walk.state.masked and not walk.may_end and len(walk.allowed) > 3000
    for token in (70, 70, 80 - 1):
        walk.state.accept(token)
        assert walk.state.fixed_mask() is not None
    for token in (70, 71):
        walk.state.accept(token)
    assert walk.allowed.isdisjoint(walk.ids("b")) and set(walk.ids("a")) <= walk.allowed


@pytest.mark.parametrize(
    ("then", "forced"), [((), None), ((50, 51), 50)], ids=["no end", "a clean end"]
)
@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_ends_free_text(
    compiler: Compiler, budget: int, then: tuple[int, ...], forced: int | None
) -> None:
    walk = Walk(compiler, FreeText(until=((80,),), budget=budget, then=then), A)
    for _ in range(budget):
        assert len(walk.allowed) > 3000 and not walk.may_end
        walk.state.accept(60)
    if forced is not None:
        assert walk.state.forced() == then
        for token in then:
            assert walk.allowed == {token}
            walk.state.accept(token)
    assert set(walk.ids("a")) <= walk.allowed and 60 not in walk.allowed


def test_a_trigger_within_the_budget_is_not_followed_by_the_clean_end(compiler: Compiler) -> None:
    walk = Walk(compiler, FreeText(until=((80,),), budget=2, then=(50,)), A)
    walk.state.accept(60)
    walk.state.accept(80)
    assert set(walk.ids("a")) <= walk.allowed and 50 not in walk.allowed


def test_forced_tokens_come_one_by_one_and_nothing_else(compiler: Compiler) -> None:
    walk = Walk(compiler, Forced((50, 51)), Forced(()), FreeText())
    assert walk.state.forced() == (50, 51) and walk.allowed == {50}
    walk.state.accept(50)
    assert walk.state.forced() == (51,) and walk.allowed == {51}
    with pytest.raises(TidemillError, match="51 is forced") as caught:
        walk.state.accept(52)
    assert caught.value.kind is ErrorKind.INTERNAL
    walk.state.accept(51)
    assert not walk.state.masked and not walk.state.complete


def test_a_program_that_ends_with_forced_tokens_is_complete_with_them(compiler: Compiler) -> None:
    walk = Walk(compiler, Forced((50,)))
    assert not walk.state.complete
    walk.state.accept(50)
    assert walk.state.complete
    walk.state.accept(51)  # a step that was launched before: nothing happens


def test_the_last_grammar_completes_the_program(compiler: Compiler) -> None:
    walk = Walk(compiler, A)
    assert not walk.may_end
    walk.write("aa")
    assert not walk.may_end and not walk.state.complete
    walk.write("b")
    assert walk.state.complete


def test_where_a_last_grammar_may_end_the_choice_may(compiler: Compiler) -> None:
    walk = Walk(compiler, Grammar("regex", "a+"))
    assert not walk.may_end
    walk.write("a")
    assert walk.may_end and set(walk.ids("a")) <= walk.allowed


def test_before_the_last_phase_a_grammar_never_ends_the_choice(compiler: Compiler) -> None:
    walk = Walk(compiler, A, FreeText())
    walk.write("a")
    assert not walk.may_end
    walk.write("b")
    assert not walk.state.complete and not walk.state.masked


def test_an_optional_phase_is_entered_by_its_token_or_skipped(compiler: Compiler) -> None:
    phases = (FreeText(until=((80,),), opened_by=(70,)), A)
    walk = Walk(compiler, *phases)
    assert 70 in walk.allowed and set(walk.ids("a")) <= walk.allowed
    assert not walk.may_end and not set(walk.ids("b")) & walk.allowed
    walk.state.accept(70)
    assert len(walk.allowed) > 3000
    walk.state.accept(80)
    assert set(walk.ids("a")) <= walk.allowed and 70 not in walk.allowed

    skipped = Walk(compiler, *phases)
    skipped.write("a")
    assert set(skipped.ids("ab")) <= skipped.allowed and 70 not in skipped.allowed
    skipped.write("b")
    assert skipped.state.complete


def test_what_a_grammar_leaves_no_choice_about_is_forced(compiler: Compiler) -> None:
    walk = Walk(compiler, Grammar("regex", "x(abc)+y"))
    assert walk.state.forced(), "it begins with one text"
    assert Walk(compiler, Grammar("regex", "[xyz]+")).state.forced() == ()


def test_a_token_that_the_grammar_does_not_allow_is_the_fields_fault(compiler: Compiler) -> None:
    walk = Walk(compiler, Grammar("regex", "a+", "guided_regex"))
    with pytest.raises(TidemillError, match="guided_regex") as caught:
        walk.state.accept(walk.ids("b")[0])
    assert caught.value.kind is ErrorKind.BAD_REQUEST and caught.value.param == "guided_regex"


@pytest.mark.parametrize(("tokens", "repeats"), [(1024 + 7, False), (1024 + 8, True)])
def test_repetition_is_counted_in_grammars(compiler: Compiler, tokens: int, repeats: bool) -> None:
    walk = Walk(compiler, FreeText(until=((80,),)), Grammar("regex", "a+"))
    for _ in range(2000):
        walk.state.accept(60)
    assert not walk.state.repeats, "free text may"
    walk.state.accept(80)
    [a] = walk.ids("a")
    for _ in range(tokens):
        walk.state.accept(a)
    assert walk.state.repeats is repeats


def everything_of(state: ProgramState, walk: Walk) -> object:
    return walk.allowed, state.masked, state.complete, state.forced(), state.repeats


@pytest.mark.parametrize(
    ("before", "tentative"),
    [
        ("", "ab"),
        ("ab", "bc"),  # completes the grammar
        ("abc", ""),
        ("abc", "some t"),  # leaves the phase after it
        ("abcxy", "z."),
        ("a", "bbbbb"),
    ],
)
def test_what_was_accepted_after_a_mark_is_undone(
    compiler: Compiler, before: str, tentative: str
) -> None:
    walk = Walk(
        compiler, Grammar("regex", "ab*c"), FreeText(budget=6), Forced((9, 10)),
        Grammar("regex", "x+"),
    )  # fmt: skip
    other = Walk(
        compiler, Grammar("regex", "ab*c"), FreeText(budget=6), Forced((9, 10)),
        Grammar("regex", "x+"),
    )  # fmt: skip
    walk.write(before)
    other.write(before)
    for _ in range(2):
        mark = walk.state.mark()
        walk.write(tentative)
        walk.state.rollback(mark)
        assert everything_of(walk.state, walk) == everything_of(other.state, other)
    rest = {"": "abbc", "a": "bc", "ab": "c"}.get(before, "")
    walk.write(rest)
    other.write(rest)
    assert everything_of(walk.state, walk) == everything_of(other.state, other)


def test_a_matcher_that_failed_after_a_mark_is_made_again(compiler: Compiler) -> None:
    walk = Walk(compiler, Grammar("regex", "ab*c"))
    walk.write("ab")
    want = walk.allowed
    mark = walk.state.mark()
    with pytest.raises(TidemillError):
        walk.state.accept(walk.ids("z")[0])
    walk.state.rollback(mark)
    assert walk.allowed == want
    walk.write("bbc")
    assert walk.state.complete


def test_what_is_allowed_is_what_the_mask_says(compiler: Compiler) -> None:
    programs: list[tuple[Phase, ...]] = [
        (Grammar("regex", "a[bc]+"),),
        (FreeText(budget=3), Grammar("regex", "a+")),
        (Forced((7, 8)), FreeText()),
        (FreeText(until=((30,),), opened_by=(30, 31)), Grammar("json_object", "{}")),
        (Grammar("regex", "ab?"), FreeText(budget=2), Forced((5,))),
    ]
    for phases in programs:
        walk = Walk(compiler, *phases)
        for _ in range(6):
            allowed = walk.allowed if not walk.state.complete else set()
            assert {t for t in range(3072) if walk.state.allows(t)} == allowed
            if not allowed:
                break
            walk.state.accept(min(allowed - walk.ends, default=min(allowed)))
