"""When the vocabulary for constrained output is read."""

from __future__ import annotations

import pytest

from tidemill.contract.program import Grammar, OutputProgram
from tidemill.grammar.service import TOKEN_BYTES, WARM_SHARE, GrammarService
from tidemill.loading.checkpoint import open_model
from tidemill.loading.named import locate


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
