"""Programs compiled beside the step loop, and masks computed while a step runs.

What reads vocabularies and grammars is imported when the first program comes: an engine starts
sooner without.
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
"""Of memory that a mask takes; less is what every use of a grammar is charged with."""

# A vocabulary takes about so many bytes per token, in a tokenizer and in llguidance's table (127
# MiB for 152,000 tokens), and a second to read. It is read before somebody asks for it where that
# is at most this share of the weights.
TOKEN_BYTES = 800
WARM_SHARE = 0.05

Done = Callable[["list[ProgramState]", TidemillError | None], None]


class GrammarService:
    """What an engine needs for constrained output. The vocabulary is read at first use.

    Args:
        data: the model's text side.
        vocab_size: token ids of the output layer.
        ends: the model's end tokens.
    """

    def __init__(self, data: TokenizerData, vocab_size: int, ends: Sequence[int]) -> None:
        self._source = (data, vocab_size, tuple(ends))
        self._lock = Lock()
        self._compiler: Compiler | None = None
        self._sandbox: GrammarSandbox | None = None
        # New grammars take their time; what is compiled already does not wait behind them.
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
    ) -> None:
        """Compile a program in a thread; `done` is called there with a state per choice, or with
        the error that names the field.

        Args:
            program: what is compiled.
            ends: tokens that end the request's choices.
            choices: states wanted.
            done: see above.
            tenant: whose turn it takes; tenants that have new grammars take turns.
            wanted: whether somebody still waits for it, asked right before; where nobody does,
                `done` is called with neither states nor an error.
        """
        self._used = True

        def job() -> None:
            if wanted():
                self._compile(program, ends, choices, done, tenant)
            else:
                done([], None)

        lane = self._known if self._is_known(program) else self._new
        lane.submit(tenant, job)

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
        """A program ready to run; see `compile_later`.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field that cannot be honoured, OVERLOADED
                when compiled grammars take too much memory.
        """
        from tidemill.grammar.phases import CompiledProgram

        grammars = [p for p in program.phases if isinstance(p, Grammar)]
        if grammars and self._compiler is None:
            self._make_sandbox().start()  # which takes as long as reading the vocabulary
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
        if self._compiler is not None:  # never unmade
            return self._compiler
        sandbox = self._make_sandbox()
        with self._lock:
            if self._compiler is None:
                from tidemill.grammar.compiler import Compiler
                from tidemill.grammar.vocabulary import Vocabulary

                vocabulary = Vocabulary(*self._source)
                sandbox.set_vocabulary(vocabulary.shape)
                self._compiler = Compiler(vocabulary, sandbox.attempt)
                give_back()  # what reading the vocabulary took and freed
            return self._compiler

    def warm(self, weight_bytes: int) -> None:
        """Read the vocabulary in a thread, before somebody waits for it; once, and only beside so
        many bytes of weights that what it takes is little."""
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
        """Some program was asked for."""
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
        """Masks of the next token of each choice; several languages are asked in parallel."""
        begun = monotonic()
        found: list[Mask | None] = [state.fixed_mask() for state in states]
        asked = [i for i, mask in enumerate(found) if mask is None]
        if asked:
            from llguidance import LLExecutor
            from llguidance.numpy import fill_next_token_bitmask_par

            from tidemill.grammar.trial import heap_in_use

            vocabulary = self._ready().vocabulary
            table = np.zeros((len(asked), -(-vocabulary.size // 32)), np.int32)
            if self._masks is None:
                self._masks = LLExecutor(num_threads=max(1, (os.cpu_count() or 2) // 2))
            matchers = [(states[i].asked(), row) for row, i in enumerate(asked)]
            before = heap_in_use()
            fill_next_token_bitmask_par(self._masks, matchers, table)
            self._note_growth([states[i] for i in asked], heap_in_use() - before)
            rows = table.view(np.uint8)[:, : vocabulary.mask_bytes]
            for row, i in enumerate(asked):
                found[i] = states[i].finish_mask(rows[row])
        self._mask_seconds += monotonic() - begun
        return [mask for mask in found if mask is not None]

    def _note_growth(self, states: Sequence[ProgramState], grown: int) -> None:
        """Memory that was taken while masks were computed is taken to be their grammars'. What
        other threads took at that time makes a grammar be compiled anew too soon, at worst."""
        share = grown // len(states)
        if share >= NOTED_BYTES and self._compiler is not None:
            for state in states:
                self._compiler.grown(state.asked_grammar(), share)

    def close(self) -> None:
        """End the threads and the sandbox; programs still being compiled are dropped."""
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
                raise bad_request(at, f"{at} never ends, so what follows it is never reached")
            if phase.opened_by and (last or not isinstance(phases[index + 1], Grammar)):
                raise bad_request(at, f"{at}: a phase that may be skipped needs a grammar after it")
        if not all(0 <= i < vocab_size for i in ids):
            raise bad_request(at, f"{at}: token ids must be between 0 and {vocab_size - 1}")
