"""Prompts of a recurrent model find the states that others have left, and give the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drive import request
from helpers.real_engine import VOCAB, real_engine

from tidemill.contract.history import Miss
from tidemill.engine.offline import InprocEngine

BLOCK = 16  # of real_engine


def _tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(6, VOCAB, count).tolist()


def _ask(engine: InprocEngine, name: str, prompt: list[int]) -> tuple[list[int], list[float], int]:
    """Tokens, their log-probabilities, and how many tokens of the prompt were cached."""
    before = engine.stats.cached_tokens
    tokens: list[int] = []
    logprobs: list[float] = []
    asked = request(name, prompt, 40, seed=1, logprobs=1)
    for output in engine.run([asked]):
        assert output.error is None, output.error
        tokens += output.token_ids
        logprobs += [entry.logprob for entry in output.logprobs or ()]
    return tokens, logprobs, engine.stats.cached_tokens - before


@pytest.mark.parametrize(
    ("backend", "model"),
    [
        ("native", "recurrent"),
        ("native", "state alone"),
        ("native", "mixers beside"),
        ("torch", "recurrent"),
    ],
)
@pytest.mark.parametrize("step", [512, 24])
def test_prompts_start_where_others_parted(backend: str, model: str, step: int) -> None:
    system = _tokens(70, 1)
    prompts = [system + _tokens(30, seed) for seed in (2, 3, 4)]
    plain = real_engine(backend, model=model, prefix_caching=False)
    want = [_ask(plain, f"r{i}", prompt) for i, prompt in enumerate(prompts)]
    turn = prompts[2] + want[2][0] + _tokens(5, 9)
    want.append(_ask(plain, "turn", turn))
    want.append(_ask(plain, "again", turn))
    plain.close()
    assert [cached for *_, cached in want] == [0] * 5
    engine = real_engine(backend, model=model, max_step_tokens=step)
    got = [_ask(engine, f"r{i}", prompt) for i, prompt in enumerate(prompts)]
    got += [_ask(engine, "turn", turn), _ask(engine, "again", turn)]
    engine.close()
    # The second finds blocks and no state, and leaves one there; the third starts behind it.
    shared = len(system) // BLOCK * BLOCK
    answered = (len(prompts[2]) + 40 - 1) // BLOCK * BLOCK
    whole = (len(turn) - 1) // BLOCK * BLOCK
    assert [cached for *_, cached in got] == [0, 0, shared, answered, whole]
    assert [tokens for tokens, *_ in got] == [tokens for tokens, *_ in want]
    if backend == "native":  # to the bit
        assert [logprobs for _, logprobs, _ in got] == [logprobs for _, logprobs, _ in want]


def test_a_block_without_a_state_is_told_as_the_cause() -> None:
    system, found = _tokens(70, 1), []
    engine = real_engine("native", model="recurrent")
    for i in range(3):
        asked = request(f"r{i}", system + _tokens(30, 2 + i), 2, explain=True)
        histories = [one.history for one in engine.run([asked]) if one.history is not None]
        assert histories[0].prefix is not None
        found.append((histories[0].prefix.miss, histories[0].prefix.cached))
    engine.close()
    shared = len(system) // BLOCK * BLOCK
    assert found == [(Miss.NEW, 0), (Miss.STATE, 0), (Miss.PARTED, shared)]


def test_few_snapshots_are_bounded_and_right() -> None:
    prompts = [_tokens(40 + i, 20 + i) for i in range(8)]
    plain = real_engine("native", model="recurrent", prefix_caching=False)
    want = [_ask(plain, f"r{i}", prompt)[:2] for i, prompt in enumerate(prompts)]
    plain.close()
    engine = real_engine("native", model="recurrent", snapshots=1, num_blocks=24)
    for turn in range(2):
        got = [_ask(engine, f"{turn}-{i}", prompt)[:2] for i, prompt in enumerate(prompts)]
        assert got == want
    engine.close()
