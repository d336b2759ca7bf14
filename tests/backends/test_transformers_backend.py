"""The transformers backend under the scheduler: sharing, preemption, cancellation, retries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.foreign_checkpoints import generated, make
from helpers.real_server import RealServer
from helpers.tiny_text import tokenizer_data

from tidemill.backends.transformers import backend as module
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.sampling import SamplingParams
from tidemill.llm import LLM
from tidemill.loading.checkpoint import open_model
from tidemill.text.tokenizer import Tokenizer

PROMPTS = [[(5 * i + n) % 250 for i in range(n)] for n in (3, 17, 40, 71)]
# One that goes on in pieces, one whose past is a cache of attention and of recurrent layers.
KINDS = ("codegen", "jamba")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp("foreign") / request.param)


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    opened = opened_llm(folder)
    yield opened
    opened.close()


def opened_llm(folder: Path, **settings: Any) -> LLM:
    chosen = {"threads": 1, "kv_memory": 2**23, "backend": "transformers", **settings}
    return LLM(folder, **chosen)


def greedy(count: int, **values: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count, min_tokens=count, **values)


def answers(llm: LLM, params: SamplingParams) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params)]


def test_an_uncovered_model_is_run_by_transformers_and_says_so(tmp_path: Path) -> None:
    folder = make("codegen", tmp_path / "codegen")
    lines: list[str] = []
    llm = LLM(folder, threads=1, kv_memory=2**22, progress=lines.append)
    try:
        assert llm.info.backend == "transformers"
        assert "CodeGenForCausalLM is run by transformers" in "\n".join(lines)
    finally:
        llm.close()
    with pytest.raises(TidemillError, match="--backend transformers may run it"):
        LLM(folder, backend="native")
    assert open_model(folder, "auto").spec.foreign is not None
    with pytest.raises(TidemillError, match="not supported"):
        open_model(folder)


def test_a_preempted_sequence_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    wanted = generated(folder, PROMPTS, 60)
    roomy = opened_llm(folder, block_size=16)
    each = roomy.info.kv_bytes_per_token
    roomy.close()
    llm = opened_llm(
        folder, block_size=16, kv_memory=16 * 16 * each, max_model_len=160,
        recurrent_sequences=4, recurrent_snapshots=0,
    )  # fmt: skip
    try:
        assert answers(llm, greedy(60)) == wanted
        assert llm.stats.preemptions > 0
        held = [len(p.tokens) for p in backend_of(llm)._pasts if p.cache is not None]
        assert sum(held) <= 16 * 16, "what finished sequences left is not dropped"
    finally:
        llm.close()


def backend_of(llm: LLM) -> module.TransformersBackend:
    found: Any = llm
    return found._engine._core._executor._runner.backend


def test_choices_seeds_and_logprobs(llm: LLM) -> None:
    drawn = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=12, ignore_eos=True, logprobs=2)
    first, second = (llm.generate([PROMPTS[1]], drawn)[0] for _ in range(2))
    tokens = [tuple(c.token_ids) for c in first.outputs]
    assert len(set(tokens)) == 3
    assert tokens == [tuple(c.token_ids) for c in second.outputs]
    for choice in first.outputs:
        for token, entry in zip(choice.token_ids, choice.logprobs, strict=True):
            assert entry.token_id == token and entry.logprob <= entry.top[0][1] + 1e-6
    asked = llm.generate([PROMPTS[1]], greedy(1, prompt_logprobs=1))[0].prompt_logprobs
    assert asked is not None and len(asked) == len(PROMPTS[1]) and asked[0] is None


def test_prompt_logprobs_are_those_of_the_model(folder: Path, llm: LLM) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPTS[2]])).logits[0]
    wanted = torch.log_softmax(logits.double(), -1)[range(len(PROMPTS[2]) - 1), PROMPTS[2][1:]]
    found = llm.generate([PROMPTS[2]], greedy(1, prompt_logprobs=0))[0].prompt_logprobs
    assert found is not None
    np.testing.assert_allclose(
        [e.logprob for e in found if e is not None], wanted.numpy(), atol=1e-3
    )


def test_a_left_stream_frees_its_blocks(llm: LLM) -> None:
    wanted = answers(llm, greedy(20))
    stream = llm.stream(PROMPTS[0], greedy(150))
    next(stream)
    stream.close()
    assert answers(llm, greedy(20)) == wanted


def test_a_failed_step_comes_again_from_the_tokens(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache that a failed step has written into is made again from the tokens it covered."""
    backend = backend_of(llm)
    states = np.array([[-1, 0]], np.int32)
    run(backend, PROMPTS[1], 0, states)
    after = run(backend, [9, 8], len(PROMPTS[1]), np.array([[0, 1]], np.int32))
    again = run(backend, [9, 8], len(PROMPTS[1]), np.array([[0, 1]], np.int32))
    np.testing.assert_allclose(after, again, rtol=1e-4, atol=1e-4)
    assert backend._pasts[0].cache is None and backend._pasts[1].cache is not None


def run(backend: Any, tokens: list[int], context: int, states: Any) -> Any:
    from helpers.backend_driver import sampling_inputs

    from tidemill.backends.base import LOGITS_LAST, StepInputs

    count = len(tokens)
    blocks = np.arange(8, dtype=np.int32)[None] + 8 * (int(states[0, 1]) // 2)
    inputs = StepInputs(
        step_id=0,
        token_ids=np.array(tokens, np.int32),
        row_start=np.array([0, count], np.int32),
        context_len=np.array([context], np.int32),
        block_tables=(blocks,),
        logits=np.array([LOGITS_LAST], np.uint8),
        sample=np.zeros(1, np.uint8),
        await_mask=np.zeros(1, np.uint8),
        target_ids=np.full(count, -1, np.int32),
        target_logprobs=np.full(1, -1, np.int32),
        copies=(np.zeros((0, 2), np.int32),),
        sampling=sampling_inputs(0),
        states=states,
        return_logits=True,
    )
    return backend.submit(inputs).result().logits


def test_embeddings_are_what_the_output_layer_reads(folder: Path, llm: LLM) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = model.base_model(torch.tensor([PROMPTS[3]])).last_hidden_state[0, -1]
    [found] = llm.embed([PROMPTS[3]])
    vector = np.asarray(found)
    np.testing.assert_allclose(
        vector / np.linalg.norm(vector), (wanted / wanted.norm()).numpy(), atol=1e-4
    )


def test_what_cannot_be_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    for settings, name in (
        ({"quantize": "q8_0"}, "quantize"),
        ({"kv_dtype": "int8"}, "kv_dtype"),
        ({"device": "nowhere"}, "device"),
    ):
        with pytest.raises(TidemillError) as caught:
            opened_llm(folder, **settings)
        assert caught.value.kind is ErrorKind.CONFIG and caught.value.param == name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "nobody_knows", "auto_map": {"AutoModel": "m.M"}}, "is never run"),
        ({"n_layer": 3}, "are missing in the checkpoint"),
        ({"n_embd": 64, "rotary_dim": 8}, "have other shapes"),
        ({"n_layer": "two"}, "'n_layer' must be an integer"),
        ({"vocab_size": -1}, "'vocab_size' must be an integer"),
        ({"architectures": ["T5ForMaskedLM"]}, "not a causal language model"),
        ({"activation_function": "no_such"}, "cannot build CodeGenForCausalLM"),
    ],
)
def test_a_config_that_is_not_the_models(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = make("codegen", tmp_path / "codegen", **changes)
    with pytest.raises(TidemillError, match=words):
        opened_llm(folder)


def test_a_key_that_no_family_reads(tmp_path: Path) -> None:
    """A covered architecture with an unknown setting: refused here, run there."""
    from helpers.tiny_checkpoints import make_checkpoint
    from helpers.tiny_text import tokenizer_json

    folder = make_checkpoint("llama", tmp_path / "llama")
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "new_trick": 3}))
    llm = LLM(folder, threads=1, kv_memory=2**22)
    try:
        assert llm.info.backend == "transformers"
        assert [list(o.outputs[0].token_ids) for o in llm.generate([[5, 6, 7]], greedy(12))] == (
            generated(folder, [[5, 6, 7]], 12)
        )
    finally:
        llm.close()


def test_over_http(tmp_path: Path) -> None:
    folder = make("persimmon", tmp_path / "persimmon")
    text = "a tide mill turns"
    prompt = [256, *text.encode()]
    wanted = generated(folder, [prompt], 24)
    with RealServer(str(folder), "--kv-memory", "16MiB", "--threads", "1") as server:
        [card] = server.http.get("/v1/models").json()["data"]
        assert card["backend"] == "transformers" and card["dtype"] == "float32"
        body = {"model": card["id"], "prompt": text, "temperature": 0, "max_tokens": 24}
        body |= {"min_tokens": 24}
        answer = server.http.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == Tokenizer(tokenizer_data()).decode(wanted[0])
        assert "is run by transformers" in server.text
