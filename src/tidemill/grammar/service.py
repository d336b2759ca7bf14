"""Programs compiled beside the step loop, and masks computed while a step runs.

What reads vocabularies and grammars is imported when the first program comes: an engine starts
sooner without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, bad_request
from tidemill.base.heap import give_back
from tidemill.base.log import get_logger
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram

if TYPE_CHECKING:
    from llguidance import LLExecutor

    from tidemill.grammar.compiler import Compiler
    from tidemill.grammar.phases import CompiledProgram, Mask, ProgramState

_log = get_logger(__name__)

MAX_PHASES = 64
COMPILE_THREADS = 2

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
        self._pool: ThreadPoolExecutor | None = None
        self._masks: LLExecutor | None = None
        self._mask_seconds = 0.0
        self._used = False
        self._warmed = False

    # -- compiling: any thread ---------------------------------------------------------------

    def compile_later(
        self, program: OutputProgram, ends: Sequence[int], choices: int, done: Done
    ) -> None:
        """Compile a program in a thread; `done` is called there with a state per choice, or with
        the error that names the field."""
        self._used = True
        self._threads().submit(self._compile, program, ends, choices, done)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(COMPILE_THREADS, "tidemill-grammar")
            return self._pool

    def _compile(
        self, program: OutputProgram, ends: Sequence[int], choices: int, done: Done
    ) -> None:
        try:
            compiled = self.compile(program, ends)
            states = [compiled.start() for _ in range(choices)]
        except TidemillError as error:
            done([], error)
        except Exception as error:
            _log.exception("a grammar could not be compiled")
            done([], bad_request("grammar", f"the output's constraint cannot be used: {error}"))
        else:
            done(states, None)

    def compile(self, program: OutputProgram, ends: Sequence[int]) -> CompiledProgram:
        """A program ready to run.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field that cannot be honoured.
        """
        from tidemill.grammar.phases import CompiledProgram

        compiler = self._ready()
        _check(program, compiler.vocabulary.size)
        matchers = [compiler.matcher(p) for p in program.phases if isinstance(p, Grammar)]
        return CompiledProgram(program, matchers, compiler.vocabulary, ends)

    def _ready(self) -> Compiler:
        with self._lock:
            if self._compiler is None:
                from tidemill.grammar.compiler import Compiler
                from tidemill.grammar.vocabulary import Vocabulary

                self._compiler = Compiler(Vocabulary(*self._source))
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
        self._threads().submit(self._ready)

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

            vocabulary = self._ready().vocabulary
            table = np.zeros((len(asked), -(-vocabulary.size // 32)), np.int32)
            if self._masks is None:
                self._masks = LLExecutor(num_threads=max(1, (os.cpu_count() or 2) // 2))
            matchers = [(states[i].asked(), row) for row, i in enumerate(asked)]
            fill_next_token_bitmask_par(self._masks, matchers, table)
            rows = table.view(np.uint8)[:, : vocabulary.mask_bytes]
            for row, i in enumerate(asked):
                found[i] = states[i].finish_mask(rows[row])
        self._mask_seconds += monotonic() - begun
        return [mask for mask in found if mask is not None]

    def close(self) -> None:
        """End the threads; programs still being compiled are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


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
