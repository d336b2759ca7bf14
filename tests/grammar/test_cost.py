"""The cost of adversarial constraints: a second to compile, milliseconds per step.

Measured as the thread's CPU time, which does not depend on other load of the machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from helpers.hostile_schemas import HOSTILE
from llguidance.numpy import fill_next_token_bitmask

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.compiler import Compiler
from tidemill.grammar.vocabulary import Vocabulary
from tidemill.loading import bundled_models, open_model
from tidemill.text.constraints import constraint_of

COMPILE_SECONDS = 3.0
STEP_SECONDS = 0.1


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    files = open_model(bundled_models()["brook"])
    return Compiler(Vocabulary(files.tokenizer, 3072, files.eos_token_ids))


def cost(act: Callable[[], object]) -> float:
    begun = time.thread_time()
    act()
    return time.thread_time() - begun


@pytest.mark.parametrize("name", HOSTILE)
def test_each_part_is_bounded(compiler: Compiler, name: str) -> None:
    constraint = constraint_of(HOSTILE[name])
    assert constraint is not None and constraint.grammar is not None
    grammar: Grammar = constraint.grammar
    begun = time.thread_time()
    try:
        matcher = compiler.matcher(grammar)
    except TidemillError as error:
        assert error.kind is ErrorKind.BAD_REQUEST and error.param
        return
    finally:
        assert time.thread_time() - begun < COMPILE_SECONDS
    table = np.zeros((1, 96), np.int32)
    rng = random.Random(1)
    steps = []
    for _ in range(60):
        steps.append(cost(lambda: fill_next_token_bitmask(matcher, table)))
        allowed = np.unpackbits(table.view(np.uint8), bitorder="little").nonzero()[0]
        if not len(allowed) or matcher.is_error() or matcher.is_stopped():
            break
        token = int(rng.choice(allowed))
        steps.append(cost(lambda token=token: matcher.consume_token(token)))
    assert max(steps) < STEP_SECONDS
