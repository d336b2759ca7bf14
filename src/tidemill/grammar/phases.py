"""The state of a choice in its output program: which tokens are allowed next, which are forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram
from tidemill.grammar.languages import explained
from tidemill.grammar.repetition import LIMIT, Repetition
from tidemill.grammar.stop_strings import StopTail
from tidemill.grammar.triggers import Triggers
from tidemill.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tidemill.grammar.compiler import CompiledGrammar

Mask = NDArray[np.uint8]  # [ceil(vocab / 8)], little-endian bits, 1 allows


def bits_of(vocabulary: Vocabulary, token_ids: Sequence[int]) -> Mask:
    """A mask that allows only these tokens."""
    mask = np.zeros(vocabulary.mask_bytes, np.uint8)
    for token in token_ids:
        mask[token >> 3] |= np.uint8(1 << (token & 7))
    return mask


class CompiledProgram:
    """A program with compiled grammars, shared by all choices of a request.

    Args:
        program: the phases.
        compiled: one per `Grammar` phase, in order.
        vocabulary: the model's.
        ends: tokens that end the request's choices (end tokens, stop token ids).
        discard: called with a grammar whose matcher exceeded a limit: the state that it shares with
            other matchers of the grammar is exhausted.
    """

    def __init__(
        self,
        program: OutputProgram,
        compiled: Sequence[CompiledGrammar],
        vocabulary: Vocabulary,
        ends: Sequence[int],
        discard: Callable[[Grammar], None] = lambda grammar: None,
    ) -> None:
        self.phases = program.phases
        self.stops = program.stops
        self.discard = discard
        self.vocabulary = vocabulary
        own = iter(compiled)
        self.compiled = [next(own) if isinstance(p, Grammar) else None for p in program.phases]
        # Copies owned by this program, for masks of a grammar after an optional phase.
        made = iter([one.matcher.deep_copy() for one in compiled])
        self.matchers = [next(made) if isinstance(p, Grammar) else None for p in program.phases]
        self.triggers = [
            Triggers(p.until) if isinstance(p, FreeText) and p.until else None
            for p in program.phases
        ]
        self.ends = frozenset((*ends, *vocabulary.ends))
        self.end_bits = bits_of(vocabulary, sorted(self.ends))
        self.no_ends = ~self.end_bits

    def start(self) -> ProgramState:
        """The initial state of a choice."""
        return ProgramState(self)


@dataclass(frozen=True, slots=True)
class Mark:
    """A position to return to.

    Attributes:
        consumed, count: the list of tokens that `matcher` has consumed, and how many they were.
    """

    index: int
    used: int
    found: int
    queue: tuple[int, ...]
    opening: bool
    complete: bool
    matcher: LLMatcher | None
    consumed: list[int]
    count: int
    repetition: Repetition


class ProgramState:
    """The position of one choice in its program; see `sched.constraint.Constraint`.

    Invariant: `matcher` belongs to the current phase, and `_queue` holds tokens that are forced
    next (those of a `Forced` phase, or the forced end of a free phase).
    """

    def __init__(self, program: CompiledProgram) -> None:
        self._program = program
        self._index = -1
        self._used = 0  # tokens of the current free phase
        self._found = 0  # state of the trigger automaton after its last token
        self._queue: tuple[int, ...] = ()
        self._opening = False  # the phase's first token decides whether it is entered
        self.matcher: LLMatcher | None = None
        self._consumed: list[int] = []  # tokens that `matcher` has consumed
        self._repetition = Repetition()  # of tokens consumed by matchers
        self._stops = None if program.stops is None else StopTail(program.stops, program.vocabulary)
        self.complete = False
        self._enter(0)

    def fork(self) -> ProgramState:
        """See Constraint."""
        made = copy(self)
        made.matcher = None if self.matcher is None else self.matcher.deep_copy()
        made._consumed = list(self._consumed)
        made._repetition = self._repetition.fork()
        made._stops = None if self._stops is None else self._stops.fork()
        return made

    # -- position ----------------------------------------------------------------------------

    @property
    def _last(self) -> bool:
        return self._index == len(self._program.phases) - 1

    def _enter(self, index: int) -> None:
        phases = self._program.phases
        self._index, self._used, self._found = index, 0, 0
        self.matcher, self._opening = None, False
        if index >= len(phases):
            self.complete = True
            return
        phase = phases[index]
        if isinstance(phase, Forced):
            self._queue = phase.token_ids
            if not self._queue:
                self._enter(index + 1)
        elif isinstance(phase, Grammar):
            matcher = self._program.matchers[index]
            assert matcher is not None
            self.matcher, self._consumed = matcher.deep_copy(), []
        elif phase.opened_by:
            self._opening = True
        elif phase.budget == 0:
            self._end_by_budget(phase)

    def _end_by_budget(self, phase: FreeText) -> None:
        if phase.then:
            self._queue = phase.then
        else:
            self._enter(self._index + 1)

    # -- the next token ----------------------------------------------------------------------

    @property
    def masked(self) -> bool:
        """See Constraint."""
        if self._queue or self.matcher is not None or self._opening:
            return True
        return not self._last  # a free phase before the last one: end tokens are masked

    def fixed_mask(self) -> Mask | None:
        """The next token's mask if it needs no matcher; None if it does."""
        if self._queue:
            return bits_of(self._program.vocabulary, self._queue[:1])
        if self.matcher is None and not self._opening:
            return self._program.no_ends
        return None

    def mask_matcher(self) -> LLMatcher:
        """The matcher for the next token's mask; that of the next phase if this one is optional."""
        if not self._opening:
            assert self.matcher is not None
            return self.matcher
        following = self._program.matchers[self._index + 1]
        assert following is not None
        return following

    def mask_grammar(self) -> CompiledGrammar:
        """The grammar of `mask_matcher`."""
        compiled = self._program.compiled[self._index + self._opening]
        assert compiled is not None
        return compiled

    def finish_mask(self, mask: Mask) -> Mask:
        """Complete a matcher's mask: no end tokens before the last phase; tokens that open an
        optional phase are allowed."""
        if self.mask_matcher().is_error():
            phase = self._program.phases[self._index + self._opening]
            assert isinstance(phase, Grammar)
            self._program.discard(phase)
        if not self._last or self._opening:
            mask = mask & self._program.no_ends
        if self._opening:
            phase = self._program.phases[self._index]
            assert isinstance(phase, FreeText)
            mask = mask | bits_of(self._program.vocabulary, phase.opened_by)
        return mask

    def allows(self, token_id: int) -> bool:
        """See Constraint."""
        if self.complete or self._queue:
            return not self.complete and token_id == self._queue[0]
        if self._opening:
            phase = self._program.phases[self._index]
            assert isinstance(phase, FreeText)
            if token_id in phase.opened_by:
                return True
        if (self._opening or not self._last) and token_id in self._program.ends:
            return False
        if self.matcher is None and not self._opening:
            return True
        return self.mask_matcher().validate_tokens([token_id]) == 1

    def mark(self) -> Mark:
        """See Constraint."""
        mark = Mark(
            *(self._index, self._used, self._found, self._queue, self._opening, self.complete),
            *(self.matcher, self._consumed, len(self._consumed), self._repetition),
        )
        self._repetition = Repetition()  # what is tentative repeats nothing
        return mark

    def rollback(self, mark: Mark) -> None:
        """See Constraint."""
        self._index, self._used, self._found = mark.index, mark.used, mark.found
        self._queue, self._opening, self.complete = mark.queue, mark.opening, mark.complete
        self.matcher, self._consumed = mark.matcher, mark.consumed
        self._repetition = mark.repetition
        tentative = len(self._consumed) - mark.count
        if self.matcher is None or not tentative:
            return
        del self._consumed[mark.count :]
        if self.matcher.is_error() or not self.matcher.rollback(tentative):
            self.matcher = self._replayed()

    def _replayed(self) -> LLMatcher:
        """The phase's matcher after what it has consumed: one that met a limit of the grammar
        cannot go back."""
        original = self._program.matchers[self._index]
        assert original is not None
        matcher = original.deep_copy()
        matcher.consume_tokens(self._consumed)
        return matcher

    def forced(self) -> tuple[int, ...]:
        """See Constraint."""
        if self._queue:
            return self._queue
        if self.matcher is None or not self._program.vocabulary.canonical:
            return ()
        return tuple(self.matcher.compute_ff_tokens())

    # -- advancing ---------------------------------------------------------------------------

    def accept(self, token_id: int) -> None:
        """See Constraint."""
        if self.complete:
            return
        self._advance(token_id)
        if self._stops is not None and self._stops.add(token_id):
            self.complete = True

    def _advance(self, token_id: int) -> None:
        if self._queue:
            self._accept_queued(token_id)
            return
        phase = self._program.phases[self._index]
        if isinstance(phase, Grammar):
            self._accept_matched(phase, token_id)
            return
        assert isinstance(phase, FreeText)
        if self._opening:
            self._opening = False
            if token_id not in phase.opened_by:
                self._enter(self._index + 1)
                self._advance(token_id)
                return
        self._accept_free(phase, token_id)

    def _accept_queued(self, token_id: int) -> None:
        if token_id != self._queue[0]:
            raise TidemillError(
                ErrorKind.INTERNAL, f"token {token_id} came where {self._queue[0]} is forced"
            )
        self._queue = self._queue[1:]
        if not self._queue:
            self._enter(self._index + 1)

    @property
    def repeats(self) -> bool:
        """See Constraint."""
        return self._repetition.length >= LIMIT

    def _accept_matched(self, phase: Grammar, token_id: int) -> None:
        matcher = self.matcher
        assert matcher is not None
        self._repetition.add(token_id)
        self._consumed.append(token_id)
        matcher.consume_token(token_id)
        if matcher.is_error():
            self._program.discard(phase)
            raise bad_request(
                phase.param,
                f"{phase.param}: the grammar became too complex to enforce, or rejected a token it "
                f"had allowed: {explained(matcher.get_error())}",
            )
        if matcher.is_stopped():
            if self._last:
                self.complete = True
            else:
                self._enter(self._index + 1)

    def _accept_free(self, phase: FreeText, token_id: int) -> None:
        self._used += 1
        triggers = self._program.triggers[self._index]
        if triggers is not None:
            self._found, met = triggers.step(self._found, token_id)
            if met:
                self._enter(self._index + 1)
                return
        if phase.budget is not None and self._used >= phase.budget:
            self._end_by_budget(phase)
