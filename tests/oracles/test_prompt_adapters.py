"""Prompt tuning and P-tuning through the engine, compared with PEFT over tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.family_cases import make_case
from helpers.tiny_text import tokenizer_json
from oracles.test_adapters import TOKENS, case_of
from oracles.test_served_adapters import greedy

from tidemill import LLM, SamplingParams
from tidemill.loading import open_model

peft = pytest.importorskip("peft")

# Longer than a block of 16 with its vectors, and a window (Mistral's, Gemma 2's) shorter.
PROMPT = TOKENS[0].tolist() * 2
FAMILIES = [
    "Llama 1 to 3", "Mistral", "Qwen3", "Gemma 2", "Granite 3", "Granite 3 MoE", "GPT-2",
    "GPT-NeoX, Pythia", "BLOOM", "DeepSeek-V2",
]  # fmt: skip
# Windows, and rope in pairs (Command-R).
PREFIXED = [
    "Llama 1 to 3", "Mistral", "Qwen3", "Gemma 2", "Command-R", "GPT-2", "GPT-NeoX, Pythia",
]  # fmt: skip
TOLERANCE = {"torch": 1e-4, "native": 1e-3}
GREEDY = SamplingParams(
    temperature=0.0, max_tokens=64, min_tokens=64, logprobs=0, prompt_logprobs=0
)


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tuning": (peft.PromptTuningConfig, {}),
    "encoder": (peft.PromptEncoderConfig, {"encoder_hidden_size": 24}),
    "prefix": (peft.PrefixTuningConfig, {}),
}


def prompt_adapter(model: Any, folder: Path, kind: str = "tuning", vectors: int = 21) -> Any:
    """A random prompt adapter of PEFT's on the model, saved to `folder`."""
    made, settings = KINDS[kind]
    if kind == "prefix":  # PEFT derives them from other families' sizes wrongly
        spec = open_model(folder.parent / "base").spec
        first = spec.attentions()[0]
        settings = {"num_attention_heads": first.kv_heads}
        settings["token_dim"] = first.kv_heads * first.head_dim
    config = made(task_type="CAUSAL_LM", num_virtual_tokens=vectors, **settings)
    torch.manual_seed(7)
    tuned = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for parameter in tuned.prompt_encoder.parameters():
            parameter.normal_(0.0, 0.5)
    tuned.save_pretrained(folder)
    return tuned


def logprobs_of(model: Any, tokens: list[int], front: int) -> np.ndarray:
    """Of each token but the first, under the tokens before it."""
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens))
        ).logits[0, front:]
    found = torch.log_softmax(logits.float(), -1)[:-1]
    return found.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()


CASES = [(family, "tuning") for family in FAMILIES] + [("Qwen3", "encoder")]
CASES += [(family, "prefix") for family in PREFIXED]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_in_a_batch_as_peft_computes(family: str, kind: str, tmp_path: Path) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    without = logprobs_of(model, PROMPT, 0)
    tuned = prompt_adapter(model, tmp_path / "soft", kind)
    front = 0 if kind == "prefix" else 21
    expected = logprobs_of(tuned, PROMPT, front)
    assert np.abs(expected - without).max() > 0.05
    (tmp_path / "base" / "tokenizer.json").write_bytes(tokenizer_json())
    for backend, tolerance in TOLERANCE.items():
        with LLM(
            tmp_path / "base", backend=backend, dtype="float32", kv_memory=2**22,
            packed_cache="off", block_size=16, adapters={"soft": tmp_path / "soft"},
        ) as llm:  # fmt: skip
            names = ["soft", None, "soft"]
            for _ in range(2):  # the second time with cached prefixes
                found = llm.generate([PROMPT] * 3, GREEDY, adapter=names)
                soft, plain, again = [list(out.outputs[0].token_ids) for out in found]
                assert soft == again == greedy(tuned, PROMPT, soft, front), backend
                assert plain == greedy(model, PROMPT, plain), backend
            out = found[0]
            assert [*out.prompt_token_ids] == PROMPT and out.prompt_logprobs is not None
            assert len(out.prompt_logprobs) == len(PROMPT) and out.prompt_logprobs[0] is None
            told = [one.logprob for one in out.prompt_logprobs[1:] if one is not None]
            told += [one.logprob for one in out.outputs[0].logprobs or ()]
            expected = logprobs_of(tuned, [*PROMPT, *soft], front)
            np.testing.assert_allclose(told, expected, atol=tolerance, rtol=0)
