"""What is measured through a server is what torch computes from the same files."""

import pytest
import torch

from training import tokenizer as bpe
from training.companions.measure import draft_agreement, merge_lora, merged
from training.data.mixture import corpus
from training.export import ASSETS, load_model
from training.render import prompt_text, target_text
from training.serving import served


@torch.no_grad()
def test_the_drafts_agreement_through_a_server_is_torchs():
    tokenizer, draft = bpe.load(ASSETS / "tokenizer.json"), load_model(ASSETS / "draft")
    rows, same = [], 0
    for example in corpus("agreement", 4):
        prompt = tokenizer.encode(prompt_text(example)).ids
        ids = tokenizer.encode(target_text(example)).ids
        best = draft.logits(draft(torch.tensor([prompt + ids]))[0, len(prompt) - 1 : -1])
        same += int((best.argmax(-1) == torch.tensor(ids)).sum())
        rows.append((prompt, ids))
    with served(ASSETS / "draft") as url:
        found = draft_agreement(ASSETS, url, rows)
    total = sum(len(ids) for _, ids in rows)
    assert found["tokens"] == total
    assert found["agreement"] == pytest.approx(same / total)


def test_a_merged_folder_holds_the_adapters_weights_unrounded():
    model = load_model(ASSETS)
    merge_lora(model, ASSETS / "lora-verse")
    with merged(ASSETS, ASSETS / "lora-verse") as folder:
        again = load_model(folder)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_server_that_cannot_start_says_what_it_said(tmp_path):
    with pytest.raises(RuntimeError, match="did not start"), served(tmp_path):
        pass
