"""Drafts of MTP layers: the answers of single steps, token for token, and drafts that come true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.test_speculation import batch, told
from helpers.constrained import Brook
from helpers.mtp_checkpoint import case_of, make_mtp, with_tokenizer

from tidemill.loading import bundled_models, open_model

VOCAB = open_model(str(bundled_models()["brook"])).spec.vocab_size
TIGHT = {"kv_memory": 3 * 2**19, "max_model_len": 256, "block_size": 16, "prefix_caching": False}


@pytest.fixture(scope="module", params=[("Glm4Moe", 1), ("DeepseekV3", 1), ("Qwen3Next", 1)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix, number = request.param
    path = tmp_path_factory.mktemp(prefix)
    make_mtp(case_of(prefix, number), path, agrees=True, vocab_size=VOCAB)
    return with_tokenizer(path)


def test_answers_are_those_of_single_steps(folder: Path) -> None:
    def engine(**how: Any) -> Brook:
        return Brook(path=folder, packed_cache="off", dtype="float32", **how)

    plain = engine(prefix_caching=False, max_model_len=256)
    requests = batch(plain)
    want = [told([plain.run([one])[0]])[0] for one in requests]
    plain.close()
    for how in ({"max_model_len": 256}, TIGHT):
        drafting = engine(speculate="mtp", **how)
        assert told(drafting.run(requests)) == want
        assert told(drafting.run(requests)) == want, "with prefixes found again"
        stats = drafting.stats()
        assert stats.drafts_accepted > 100
        assert (stats.preemptions > 0) == (how is TIGHT)
        drafting.close()
