"""Both executors against transformers on a tiny checkpoint: logits, and greedy tokens.

Everything is float32. Prompts of several lengths are batched, paged over scattered blocks, and cut
into chunks, so that what is compared is what serving does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers.backend_driver import BackendDriver, options, sampling_inputs
from helpers.family_cases import Case, make_case
from helpers.references import prompt, reference_greedy, reference_logits

from tidemill.backends import native, torch
from tidemill.loading import open_model

EXECUTORS = {"native": native, "torch": torch}
# Of the logits' standard deviation: float32 sums of different orders, and exp by polynomials.
TOLERANCE = 1e-3
GREEDY_TOKENS = 64
_CHUNKS = (None, 7)


@dataclass(frozen=True)
class Outcome:
    """What one executor did with one case.

    Attributes:
        error: largest difference of a logit, over the logits' standard deviation.
        tokens: greedy tokens that agree with transformers', of all that were asked for.
        asked: how many those are.
        verified: steps that verify drafts gave the same tokens; of models with a state per
            sequence, else not tried.
    """

    error: float
    tokens: int
    asked: int
    verified: bool = True

    @property
    def good(self) -> bool:
        """Whether it counts as the same model."""
        return self.error <= TOLERANCE and self.tokens == self.asked and self.verified


def compare(case: Case, folder: Path) -> dict[str, Outcome]:
    """Executor -> outcome."""
    import torch as pytorch

    pytorch.set_num_threads(1)
    model = make_case(case, folder)
    text, prompts = prompt(75), [prompt(5, seed=1), prompt(33, seed=2), prompt(40, seed=3)]
    if "longrope" in case.about:  # transformers changes its factors where a context grows past
        prompts[0] = prompt(20, seed=1)
    logits = reference_logits(model, text)
    greedy = [reference_greedy(model, p, GREEDY_TOKENS) for p in prompts]
    files = open_model(folder)
    context = min(256, files.spec.max_positions)
    found = {}
    for name, backend in EXECUTORS.items():
        loaded = backend.load(files.spec, files.tensors, options(threads=2, max_positions=context))
        found[name] = _run(BackendDriver(loaded), text, prompts, logits, greedy)
        loaded.close()
    return found


def _run(driver: BackendDriver, text: list[int], prompts: list[list[int]], logits: Any,
         greedy: list[list[int]]) -> Outcome:  # fmt: skip
    scale = float(logits.std())
    error = max(
        float(np.abs(driver.all_logits(text, chunk) - logits).max()) / scale for chunk in _CHUNKS
    )
    made = driver.greedy(prompts, GREEDY_TOKENS)
    agree = sum(
        a == b
        for mine, theirs in zip(made, greedy, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
    verified = not driver.backend.spec.state_bytes or _verifies(driver, prompts, made)
    return Outcome(error, agree, len(prompts) * GREEDY_TOKENS, verified)


def _verifies(driver: BackendDriver, prompts: list[list[int]], made: list[list[int]]) -> bool:
    """Whether steps with 5 drafts for each prompt, of which 0 to 5 are right, sample the same."""
    sequences = [driver.sequence(p) for p in prompts]
    driver.run([(s, len(s.tokens) - 1) for s in sequences])
    vocab, asked = driver.backend.spec.vocab_size, len(made[0])
    for step in range(asked):
        rows, drafts = [], []
        for i, (sequence, begun) in enumerate(zip(sequences, prompts, strict=True)):
            at, right = len(sequence.tokens) - len(begun), (step + i) % 6
            coming = made[i][at : at + 5]
            coming[right:] = [(token + 1) % vocab for token in coming[right:]]
            sequence.tokens += coming
            rows.append((sequence, 1 + len(coming)))
            drafts.append(len(coming))
        sampling = sampling_inputs(sum(drafts) + len(rows))
        sampled = driver.run(rows, sample=True, sampling=sampling, drafts=drafts).sampled.tolist()
        for sequence, count in zip(sequences, drafts, strict=True):
            mine, sampled = sampled[: count + 1], sampled[count + 1 :]
            accepted = [token for token in mine if token >= 0]
            del sequence.tokens[len(sequence.tokens) - count :]
            sequence.computed = len(sequence.tokens) + len(accepted) - 1
            sequence.tokens += accepted
        if all(len(s.tokens) - len(p) > asked for s, p in zip(sequences, prompts, strict=True)):
            break
    return all(
        sequence.tokens[len(begun) :][:asked] == tokens
        for sequence, begun, tokens in zip(sequences, prompts, made, strict=True)
    )
