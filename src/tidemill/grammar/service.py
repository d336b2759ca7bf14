"""Compiles output programs concurrently with the step loop, and computes masks during a step.

Modules that read vocabularies and grammars are imported with the first program, so that the engine
starts faster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, bad_request
from tidemill.base.heap import give_back
from tidemill.base.log import get_logger
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram
from tidemill.grammar.lanes import Lane
from tidemill.grammar.live import LiveGrammars, choices_bytes

if TYPE_CHECKING:
    from llguidance import LLExecutor

    from tidemill.grammar.compiler import Compiler
    from tidemill.grammar.phases import CompiledProgram, Mask, ProgramState
    from tidemill.grammar.sandbox import GrammarSandbox

_log = get_logger(__name__)

MAX_PHASES = 64

NOTED_BYTES = 4096
"""Minimum growth per mask that is accounted for; less is covered by `USE_BYTES`."""

# A vocabulary takes about this many bytes per token, in a tokenizer and in llguidance's table (127
# MiB for 152,000 tokens), and a second to read. It is read in advance if its memory is at most this
# fraction of the weights.
TOKEN_BYTES = 800
WARM_SHARE = 0.05

Done = Callable[["list[ProgramState]", TidemillError | None], None]


class GrammarService:
    """The engine's service for constrained output. The vocabulary is read at first use.

    Args:
        data: the model's tokenizer.
        vocab_size: token ids of the output layer.
        ends: the model's end tokens.
    """

    def __init__(self, data: TokenizerData, vocab_size: int, ends: Sequence[int]) -> None:
        self._source = (data, vocab_size, tuple(ends))
        self._lock = Lock()
        self._compiler: Compiler | None = None
        self._sandbox: GrammarSandbox | None = None
        # Compiling takes time; requests whose grammars are cached do not queue behind it.
        self._new, self._known = Lane("tidemill-grammar"), Lane("tidemill-grammar-known")
        self._live = LiveGrammars()
        self._masks: LLExecutor | None = None
        self._mask_seconds = 0.0
        self._used = False
        self._warmed = False

    # -- compiling: any thread ---------------------------------------------------------------

    def compile_later(
        self,
        program: OutputProgram,
        ends: Sequence[int],
        choices: int,
        done: Done,
        *,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Compile a program in a thread, which calls `done` with a state per choice, or with the
        error that names the field.

        Args:
            program: the program.
            ends: tokens that end the request's choices.
            choices: number of states.
            done: see above.
            tenant: the request's tenant; tenants are served round-robin.
            wanted: called right before compiling: whether the request is still active. If it is
                not, `done` is called with no states and no error.

        Returns:
            Whether it was compiled before, and only has to be started.
        """
        self._used = True

        def job() -> None:
            if wanted():
                self._compile(program, ends, choices, done, tenant)
            else:
                done([], None)

        known = self._is_known(program)
        lane = self._known if known else self._new
        lane.submit(tenant, job)
        return known

    def _is_known(self, program: OutputProgram) -> bool:
        compiler = self._compiler
        if compiler is None:
            return False
        return all(compiler.has(p) for p in program.phases if isinstance(p, Grammar))

    def _compile(
        self,
        program: OutputProgram,
        ends: Sequence[int],
        choices: int,
        done: Done,
        tenant: str,
    ) -> None:
        try:
            compiled = self.compile(program, ends, choices, tenant)
            states = [compiled.start() for _ in range(choices)]
        except TidemillError as error:
            done([], error)
        except Exception as error:
            _log.exception("a grammar could not be compiled")
            done([], bad_request("grammar", f"the output's constraint cannot be used: {error}"))
        else:
            done(states, None)

    def compile(
        self, program: OutputProgram, ends: Sequence[int], choices: int = 1, tenant: str = ""
    ) -> CompiledProgram:
        """Compile a program; see `compile_later`.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field that cannot be enforced, OVERLOADED if
                compiled grammars take too much memory.
        """
        from tidemill.grammar.phases import CompiledProgram

        grammars = [p for p in program.phases if isinstance(p, Grammar)]
        if grammars and self._compiler is None:
            self._make_sandbox().start()  # concurrent with reading the vocabulary
        compiler = self._ready()
        _check(program, compiler.vocabulary.size)
        compiled = [compiler.compiled(grammar) for grammar in grammars]
        made = CompiledProgram(program, compiled, compiler.vocabulary, ends, compiler.discard)
        for one in compiled:
            self._live.hold(made, tenant, one.bytes + choices_bytes(one.bytes, choices))
        return made

    def _make_sandbox(self) -> GrammarSandbox:
        with self._lock:
            if self._sandbox is None:
                from tidemill.grammar.sandbox import GrammarSandbox

                self._sandbox = GrammarSandbox()
            return self._sandbox

    def _ready(self) -> Compiler:
        if self._compiler is not None:  # never reset
            return self._compiler
        sandbox = self._make_sandbox()
        with self._lock:
            if self._compiler is None:
                from tidemill.grammar.compiler import Compiler
                from tidemill.grammar.vocabulary import Vocabulary

                vocabulary = Vocabulary(*self._source)
                sandbox.set_vocabulary(vocabulary.shape)
                self._compiler = Compiler(vocabulary, sandbox.attempt)
                give_back()  # memory that reading the vocabulary used and freed
            return self._compiler

    def warm(self, weight_bytes: int) -> None:
        """Read the vocabulary in a thread in advance, once, and only if its memory is small
        compared to the weights."""
        if self._source[1] * TOKEN_BYTES > WARM_SHARE * weight_bytes:
            return
        with self._lock:
            if self._warmed or self._compiler is not None:
                return
            self._warmed = True
        self._new.submit("", self._read_ahead)

    def _read_ahead(self) -> None:
        try:
            self._ready()
        except Exception:
            _log.exception("the vocabulary for constrained output cannot be read")

    @property
    def used(self) -> bool:
        """A program has been requested."""
        return self._used

    def figures(self) -> dict[str, float]:
        """Counters, under their names in `EngineStats`."""
        stats = None if self._compiler is None else self._compiler.stats
        return {
            "grammars_compiled": stats.compiled if stats else 0,
            "grammars_reused": stats.reused if stats else 0,
            "grammars_refused": stats.refused if stats else 0,
            "grammar_seconds": stats.seconds if stats else 0.0,
            "mask_seconds": self._mask_seconds,
        }

    # -- masks: the engine's thread ----------------------------------------------------------

    def masks(self, states: Sequence[ProgramState]) -> list[Mask]:
        """Masks of the next token of each choice; several matchers run in parallel."""
        begun = monotonic()
        found: list[Mask | None] = [state.fixed_mask() for state in states]
        matched = [i for i, mask in enumerate(found) if mask is None]
        if matched:
            from llguidance import LLExecutor
            from llguidance.numpy import fill_next_token_bitmask_par

            from tidemill.grammar.trial import heap_in_use

            vocabulary = self._ready().vocabulary
            table = np.zeros((len(matched), -(-vocabulary.size // 32)), np.int32)
            if self._masks is None:
                self._masks = LLExecutor(num_threads=max(1, (os.cpu_count() or 2) // 2))
            matchers = [(states[i].mask_matcher(), row) for row, i in enumerate(matched)]
            before = heap_in_use()
            fill_next_token_bitmask_par(self._masks, matchers, table)
            self._note_growth([states[i] for i in matched], heap_in_use() - before)
            rows = table.view(np.uint8)[:, : vocabulary.mask_bytes]
            for row, i in enumerate(matched):
                found[i] = states[i].finish_mask(rows[row])
        self._mask_seconds += monotonic() - begun
        return [mask for mask in found if mask is not None]

    def _note_growth(self, states: Sequence[ProgramState], grown: int) -> None:
        """Attribute heap growth during mask computation to the grammars. Allocations of other
        threads can at worst cause a grammar to be compiled again too early."""
        share = grown // len(states)
        if share >= NOTED_BYTES and self._compiler is not None:
            for state in states:
                self._compiler.grown(state.mask_grammar(), share)

    def close(self) -> None:
        """Stop the threads and the sandbox; programs still being compiled are dropped."""
        self._new.close()
        self._known.close()
        if self._sandbox is not None:
            self._sandbox.close()


def _check(program: OutputProgram, vocab_size: int) -> None:
    phases = program.phases
    if len(phases) > MAX_PHASES:
        raise bad_request("program", f"the program has {len(phases)} phases; at most {MAX_PHASES}")
    for index, phase in enumerate(phases):
        at, last = f"program.phases[{index}]", index == len(phases) - 1
        ids: list[int] = []
        if isinstance(phase, Forced):
            ids += phase.token_ids
        elif isinstance(phase, FreeText):
            ids += [*phase.then, *phase.opened_by, *(t for s in phase.until for t in s)]
            if not all(phase.until):
                raise bad_request(at, f"{at}: a trigger has no tokens")
            if phase.budget is not None and phase.budget < 0:
                raise bad_request(at, f"{at}: the budget is {phase.budget}; at least 0")
            endless = not phase.until and phase.budget is None
            if endless and not last:
                raise bad_request(at, f"{at} never ends, so the next phase is never reached")
            if phase.opened_by and (last or not isinstance(phases[index + 1], Grammar)):
                raise bad_request(at, f"{at}: an optional phase must be followed by a grammar")
        if not all(0 <= i < vocab_size for i in ids):
            raise bad_request(at, f"{at}: token ids must be between 0 and {vocab_size - 1}")
