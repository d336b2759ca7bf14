"""Greedy answers with drafts, beside assisted generation and prompt lookup of transformers."""

from __future__ import annotations

import pytest
import torch
import transformers
from helpers.constrained import Brook

from tidemill.loading import bundled_models

BROOK = bundled_models()["brook"]
PROMPTS = ("Tell me a story about a fox.", "Repeat after me: one two three one two three one")


@pytest.mark.parametrize("drafter", [f"draft={BROOK / 'draft'}", "lookup"])
def test_greedy_tokens_are_those_of_transformers(drafter: str) -> None:
    load = transformers.AutoModelForCausalLM.from_pretrained
    target = load(BROOK, dtype=torch.float32).eval()
    how = {"prompt_lookup_num_tokens": 5}
    if drafter != "lookup":
        how = {"assistant_model": load(BROOK / "draft", dtype=torch.float32).eval()}
    engine = Brook(speculate=drafter, dtype="float32")
    for prompt in PROMPTS:
        ids = torch.tensor([engine.prompt(prompt)])
        with torch.no_grad():
            theirs = target.generate(ids, max_new_tokens=60, do_sample=False, **how)
        want = theirs[0, ids.shape[1] :].tolist()
        (answer,) = engine.ask(prompt, max_tokens=60)
        ours = [*answer.tokens, *([] if answer.stop_token is None else [answer.stop_token])]
        assert ours == want
    assert engine.stats().drafts_accepted > 0
    engine.close()
