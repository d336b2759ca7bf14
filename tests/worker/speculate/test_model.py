"""A draft model's proposals: read in parts, from shared prefixes, after rejected drafts, after
failures; and how often coupled draws agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import make_spec, make_tensors
from helpers.sampling_reference import race_times
from helpers.tiny_checkpoints import make_checkpoint

from tidemill.backends.base import Backend, StepInputs
from tidemill.backends.native import load
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.plan import MOST_CONFIDENT, NewSequence
from tidemill.contract.sampling import SamplingParams
from tidemill.loading import bundled_models, open_model
from tidemill.worker.load import load_worker
from tidemill.worker.speculate import model, rounds
from tidemill.worker.speculate.drafter import NOTHING, Proposal, Wanted
from tidemill.worker.speculate.model import ModelDrafter

VOCAB, BLOCKS, CONTEXT = 131, 9, 96
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 2


def make_backend() -> Backend:
    spec = make_spec(vocab=VOCAB, hidden=64, heads=4, kv_heads=2, head_dim=16, layers=2)
    return load(spec, make_tensors(spec, "F32"), options(max_positions=CONTEXT))


class Counted:
    """A backend that counts the tokens of its steps, and fails when told."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.tokens: list[int] = []
        self.fails = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def submit(self, inputs: StepInputs) -> object:
        if self.fails:
            raise TidemillError(ErrorKind.INTERNAL, "broken")
        self.tokens.append(len(inputs.token_ids))
        return self._backend.submit(inputs)


@pytest.fixture
def backend() -> Iterator[Counted]:
    made = make_backend()
    made.allocate_cache((BLOCKS,))
    yield Counted(made)
    made.close()


@pytest.fixture
def drafter(backend: Counted, monkeypatch: pytest.MonkeyPatch) -> ModelDrafter:
    monkeypatch.setattr(rounds, "UNLIKELY", -1e9)  # a random model is sure of nothing
    return ModelDrafter(backend, CONTEXT, BLOCKS, VOCAB)  # type: ignore[arg-type]


def new(seq_id: int, tokens: list[int], **sampling: object) -> NewSequence:
    params = SamplingParams(**{"temperature": 0.0, "seed": 1, **sampling})  # type: ignore[arg-type]
    return NewSequence(
        seq_id=seq_id, request_id="r", choice=0, token_ids=tuple(tokens),
        prompt_len=min(len(tokens), len(PROMPT)), sampling=params,
    )  # fmt: skip


def begin(drafter: ModelDrafter, seq_id: int, tokens: list[int], cached: int = 0, **how: object):
    drafter.add(new(seq_id, tokens, **how), cached)


def ask(drafter: ModelDrafter, tokens: list[int], most: int = 3, seq_id: int = 1) -> Proposal:
    (proposal,) = drafter.propose([Wanted(seq_id, np.array(tokens, np.int32), most)])
    return proposal


def greedy(tokens: list[int], count: int) -> list[int]:
    """What the draft model says by itself."""
    driver = BackendDriver(make_backend())
    (found,) = driver.greedy([tokens], count)
    driver.backend.close()
    return found


def test_drafts_are_what_the_model_says(drafter: ModelDrafter, backend: Counted) -> None:
    text = [*PROMPT, 7]
    begin(drafter, 1, text)
    want = greedy(text, 9)
    proposal = ask(drafter, text)
    assert list(proposal.token_ids) == want[:3] and len(proposal.confidence) == 3
    assert all(0 <= c <= MOST_CONFIDENT for c in proposal.confidence)
    assert backend.tokens == [41, 1, 1]
    # All came true, and the target sampled one more: the last draft and that one are read.
    text += want[:4]
    assert list(ask(drafter, text, 1).token_ids) == want[4:5]
    assert backend.tokens[3:] == [2]
    # Drafts that did not come true: their positions are computed again.
    text = [*text, (want[4] + 1) % VOCAB]
    assert list(ask(drafter, text, 4).token_ids) == greedy(text, 4)
    assert list(ask(drafter, text, 4).token_ids) == greedy(text, 4), "asked again"
    text += [11, 12, 13, 14]
    assert list(ask(drafter, text, 2).token_ids) == greedy(text, 2), "others drafted meanwhile"


def test_long_texts_are_read_in_parts(
    drafter: ModelDrafter, backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "CATCH_UP", 15)
    monkeypatch.setattr(model, "AT_ONCE", 9)
    text = [*PROMPT, 7]
    begin(drafter, 1, text)
    assert ask(drafter, text) == NOTHING and backend.tokens == [], "the first token waits not"
    text.append(8)
    assert ask(drafter, text).token_ids == () and ask(drafter, text).token_ids == ()
    assert backend.tokens == [16, 16]
    assert list(ask(drafter, text).token_ids) == greedy(text, 3)
    assert backend.tokens == [16, 16, 10, 1, 1]


def test_unlikely_chains_end_early(
    drafter: ModelDrafter, backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [*PROMPT, 7]
    for seq_id in (1, 2):
        begin(drafter, seq_id, text)
    unsure = Wanted(1, np.array(text, np.int32), 6, least=MOST_CONFIDENT)
    sure = Wanted(2, np.array(text, np.int32), 4)
    found = drafter.propose([unsure, sure])
    assert found[0] == NOTHING and list(found[1].token_ids) == greedy(text, 4)
    # The first is known to be unsure when the second step is on its way.
    assert backend.tokens == [82, 2, 1, 1]
    monkeypatch.setattr(rounds, "UNLIKELY", -0.1)
    backend.tokens.clear()
    assert len(ask(drafter, text, 6, seq_id=2).token_ids) == 2 and backend.tokens == [1, 1]


def test_several_sequences_in_one_step(drafter: ModelDrafter, backend: Counted) -> None:
    texts = [[*PROMPT[:5], i] for i in range(3)]
    for i, text in enumerate(texts):
        begin(drafter, i, text)
    wanted = [Wanted(i, np.array(text, np.int32), i + 1) for i, text in enumerate(texts)]
    found = [list(one.token_ids) for one in drafter.propose(wanted)]
    assert found == [greedy(text, i + 1) for i, text in enumerate(texts)]
    assert backend.tokens == [18, 2, 1]


def test_prefixes_are_shared_as_far_as_the_target_shares_them(
    drafter: ModelDrafter, backend: Counted
) -> None:
    text = [*PROMPT, 7]
    begin(drafter, 1, text)
    ask(drafter, text, 1)
    for seq_id, cached, computed in ((2, 0, 41), (3, 17, 25), (4, 40, 9), (5, 41, 9)):
        begin(drafter, seq_id, text, cached)
        backend.tokens.clear()
        assert list(ask(drafter, text, 2, seq_id).token_ids) == greedy(text, 2)
        assert backend.tokens == [computed, 1]
        drafter.forget(seq_id)
    drafter.empty_cache()


def test_without_blocks_there_are_no_drafts(drafter: ModelDrafter, backend: Counted) -> None:
    text = [*PROMPT, 7]
    for seq_id in (1, 2, 3, 4):
        begin(drafter, seq_id, text)
    for seq_id in (1, 2, 3):
        assert ask(drafter, text, seq_id=seq_id).token_ids
    assert ask(drafter, text, seq_id=4) == NOTHING
    drafter.forget(1)
    assert ask(drafter, text, seq_id=4).token_ids
    for seq_id in (2, 3):
        drafter.forget(seq_id)
    found = ask(drafter, text, 70, seq_id=4).token_ids
    assert found == tuple(greedy(text, CONTEXT - 41)), "as far as its context goes"


def test_a_failed_step_leaves_nothing_behind(drafter: ModelDrafter, backend: Counted) -> None:
    text = [*PROMPT, 7]
    begin(drafter, 1, text)
    backend.fails = True
    with pytest.raises(TidemillError, match="broken"):
        ask(drafter, text)
    drafter.forget(1)
    backend.fails = False
    begin(drafter, 1, text)
    assert list(ask(drafter, text).token_ids) == greedy(text, 3)


def test_tokens_that_the_draft_model_lacks(backend: Counted) -> None:
    wider = ModelDrafter(backend, CONTEXT, BLOCKS, VOCAB + 9)  # type: ignore[arg-type]
    text = [*PROMPT, VOCAB + 1]
    begin(wider, 1, text, logit_bias={VOCAB + 2: 1.0}, bad_words_ids=((VOCAB + 3, 1),))
    assert ask(wider, text) == NOTHING
    begin(wider, 2, PROMPT, logit_bias={VOCAB + 2: 1.0}, bad_words_ids=((VOCAB + 3, 1),))
    assert ask(wider, PROMPT, seq_id=2).token_ids
    narrower = ModelDrafter(backend, CONTEXT, BLOCKS, 0)  # type: ignore[arg-type]
    begin(narrower, 1, PROMPT)
    assert ask(narrower, PROMPT).token_ids == ()


def test_a_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = make_checkpoint("llama", tmp_path / "other")
    brook = bundled_models()["brook"]
    config = EngineConfig(model=str(brook), served_name="b", speculate=f"draft={other}")
    with pytest.raises(TidemillError, match=r"other cannot draft for .*brook: .*vocabular") as e:
        load_worker(config)
    assert e.value.kind is ErrorKind.CONFIG and e.value.param == "speculate"


@pytest.mark.parametrize("setting", ["draft=", "medusa="])
@pytest.mark.parametrize("bad", [False, True])
def test_a_file_that_is_no_drafter_is_the_settings_fault(
    tmp_path: Path, setting: str, *, bad: bool
) -> None:
    file = tmp_path / "x.gguf"
    if bad:
        file.write_text("no model")
    speculate = f"{setting}{file}"
    config = EngineConfig(
        model=str(bundled_models()["brook"]), served_name="b", speculate=speculate
    )
    with pytest.raises(TidemillError, match=r"the (draft model|Medusa heads): .*x\.gguf") as caught:
        load_worker(config)
    kind = ErrorKind.MODEL_FILE if bad else ErrorKind.NOT_FOUND
    assert caught.value.kind is kind and caught.value.param == "speculate"


def logits_of(path: Path, tokens: list[int]) -> np.ndarray:
    files = open_model(path)
    backend = load(files.spec, files.tensors, options(max_positions=512))
    found = BackendDriver(backend).all_logits(tokens)
    backend.close()
    return found.astype(np.float64)


def test_coupled_draws_agree_nearly_as_often_as_any_can() -> None:
    """Against the bound of rejection sampling, sum(min(p, q)), for brook and its draft model. With
    common exponential races, two models draw the same token with probability
    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (Daliri et al. 2024)."""
    brook = bundled_models()["brook"]
    text = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\nOnce "
    text += "upon a time there was a fox who lived in a wood. One day the fox met a bear."
    from tidemill.text.tokenizer import Tokenizer

    tokens = [*Tokenizer(open_model(brook).tokenizer).encode(text, add_special=False)]
    both = [np.exp(x - x.max(-1, keepdims=True)) for x in
            (logits_of(brook, tokens), logits_of(brook / "draft", tokens))]  # fmt: skip
    p, q = (x / x.sum(-1, keepdims=True) for x in both)
    bound = np.minimum(p, q).sum(-1)
    agree = np.empty(len(tokens))
    for t in range(len(tokens)):
        keep = np.minimum(p[t], q[t]) > 1e-9
        a, b = p[t][keep], q[t][keep]
        pairs = np.maximum(p[t][None] / a[:, None], q[t][None] / b[:, None]).sum(1)
        agree[t] = (1 / pairs).sum()
    assert agree.mean() >= 0.9 * bound.mean()
    # The sampler's own noise, in double precision.
    most = int(np.argsort(bound)[len(bound) // 4])
    draws = 2000
    same = 0
    for seed in range(draws):
        noise = race_times(seed, 0, most, p.shape[1])
        same += int((noise / p[most]).argmin() == (noise / q[most]).argmin())
    spread = np.sqrt(agree[most] * (1 - agree[most]) / draws)
    assert abs(same / draws - agree[most]) < 5 * spread + 1e-3
