"""Models that no family describes, against transformers' own generate."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.foreign_checkpoints import CASES, VOCAB, generated, make

from tidemill.contract.sampling import SamplingParams
from tidemill.llm import LLM

TOKENS = 64
PROMPTS = [[(7 * i + 3 * n) % 250 for i in range(n)] for n in (1, 5, 23, 47, 90)]


@pytest.mark.parametrize("name", CASES)
def test_greedy_answers_are_those_of_generate(name: str, tmp_path: Path) -> None:
    """Five prompts of different lengths at once, prefilled in pieces, 64 tokens each. The end
    token is banned on both sides."""
    folder = make(name, tmp_path / name)
    wanted = generated(folder, PROMPTS, TOKENS)
    said: list[str] = []
    llm = LLM(
        folder, backend="transformers", threads=1, kv_memory=2**26, max_step_tokens=32,
        max_num_seqs=8, progress=said.append,
    )  # fmt: skip
    try:
        assert llm.info.backend == "transformers" and llm.info.vocab_size == VOCAB
        assert llm.info.dtype == "float32" and not llm.info.prefix_caching
        assert any("is run by transformers" in line for line in said)
        params = SamplingParams(
            temperature=0.0, max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=False
        )
        found = [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params)]
        assert found == wanted
    finally:
        llm.close()
