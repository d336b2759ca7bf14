"""The training model is transformers' Qwen3; exports and companions are what they claim."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tidemill.worker.speculate.eagle_files import read_eagle  # noqa: E402
from tidemill.worker.speculate.eagle_layer import EagleLayer  # noqa: E402
from training import tokenizer as bpe  # noqa: E402
from training.companions import adapters, eagle, medusa  # noqa: E402
from training.companions.measure import greedy  # noqa: E402
from training.data.mixture import corpus  # noqa: E402
from training.export import (  # noqa: E402
    ASSETS,
    average,
    gguf_name,
    load_model,
    save_gguf,
    save_model,
)
from training.model import Decoder, Shape, parameters_of  # noqa: E402
from training.optim import orthogonalise  # noqa: E402
from training.render import prompt_text  # noqa: E402
from training.train import Plan, batch_loss, learning_rate  # noqa: E402

SMALL = Shape(
    vocab_size=3072, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return bpe.load(ASSETS / "tokenizer.json")


def some_batch(tokenizer, count=6):
    from training.batches import assemble, encode

    return assemble(encode(tokenizer, list(corpus("model", count))), 0.0, 0.0, 0)


@torch.no_grad()
def test_logits_equal_transformers(tokenizer):
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(ASSETS, dtype=torch.float32).eval()
    mine = load_model(ASSETS)
    for example in corpus("same", 3):
        ids = torch.tensor([tokenizer.encode(prompt_text(example)).ids])
        assert torch.allclose(mine.logits(mine(ids)), theirs(ids).logits, atol=1e-4)


@torch.no_grad()
def test_cache_changes_nothing():
    torch.manual_seed(0)
    model, ids = Decoder(SMALL), torch.randint(0, 3072, (1, 20))
    whole = model(ids)
    cache = model.new_cache()
    parts = [model(ids[:, :12], cache=cache)]
    parts += [model(ids[:, i : i + 1], cache=cache, start=i) for i in range(12, 20)]
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)


def test_attention_for_training_equals_the_fused_one(tokenizer):
    torch.manual_seed(0)
    model = Decoder(SMALL)
    ids = torch.randint(0, 3072, (2, 30))
    trained = model(ids)
    with torch.no_grad():
        assert torch.allclose(model(ids), trained, atol=1e-5)


def test_a_few_steps_lower_the_loss(tokenizer):
    from training.optim import Optimizer

    torch.manual_seed(0)
    model, batch = Decoder(SMALL), some_batch(tokenizer)
    optimizer, losses = Optimizer(model), []
    for _ in range(8):
        loss = batch_loss(model, batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step(1.0)
    assert losses[-1] < 0.8 * losses[0]


def test_muon_orthogonalises():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 24, 48)))
    assert values.min() > 0.5 and values.max() < 1.4


def test_schedule_warms_up_holds_and_decays(tmp_path):
    plan = Plan(tmp_path, 1)
    assert learning_rate(0.0, plan) < 0.1
    assert learning_rate(0.3, plan) == 1.0
    assert learning_rate(1.0, plan) == 0.0


def test_export_loads_back_and_fits_the_package(tmp_path, tokenizer):
    torch.manual_seed(0)
    model = Decoder(SMALL)
    save_model(tmp_path, model, tokenizer)
    again = load_model(tmp_path)
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name].bfloat16().float())
    size = sum(f.stat().st_size for f in ASSETS.rglob("*") if f.is_file())
    assert size <= 14e6
    shape = json.loads((ASSETS / "config.json").read_text())
    names = Shape.__dataclass_fields__
    assert parameters_of(Shape(**{k: v for k, v in shape.items() if k in names})) <= 5.5e6


def test_gguf_holds_every_tensor(tmp_path, tokenizer):
    gguf = pytest.importorskip("gguf")
    model = Decoder(SMALL)
    save_gguf(tmp_path / "m.gguf", model, tokenizer, half=False)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    names = {t.name for t in reader.tensors}
    assert names == {gguf_name(n) for n in model.state_dict()}
    count = reader.fields["tokenizer.ggml.tokens"].data
    assert len(count) == tokenizer.get_vocab_size()


def test_lora_starts_as_nothing_and_merges_as_it_ran(tmp_path, tokenizer):
    from training.companions.measure import merge_lora

    torch.manual_seed(0)
    model, plain = Decoder(SMALL), Decoder(SMALL)
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(0, 3072, (1, 12))
    before = model(ids)
    added = adapters.add_lora(model)
    assert torch.allclose(model(ids), before)
    tensors = {}
    with torch.no_grad():
        for name, module in added.items():
            module.b.normal_(std=0.02)
            for p in (module.a, module.b):
                p.copy_(p.bfloat16())
            tensors[f"base_model.model.{name}.lora_A.weight"] = module.a
            tensors[f"base_model.model.{name}.lora_B.weight"] = module.b
    config = {"r": adapters.RANK, "lora_alpha": adapters.ALPHA}
    adapters.write(tmp_path, "adapter_model.safetensors", tensors, config)
    merge_lora(plain, tmp_path)
    assert torch.allclose(plain(ids), model(ids), atol=1e-4)


def test_medusa_heads_start_as_a_softer_next_token(tokenizer):
    torch.manual_seed(0)
    model = Decoder(SMALL)
    heads = torch.nn.ModuleList(medusa.Head(64) for _ in range(4))
    hidden = torch.randn(2, 64)
    assert torch.allclose(heads[0](hidden), 0.3 * hidden, atol=1e-6)
    loss = medusa.medusa_loss(model, heads, some_batch(tokenizer))
    loss.backward()
    assert all(h.linear.weight.grad is not None for h in heads)


def test_eagle_is_trained_as_it_drafts(tokenizer, tmp_path):
    """Pass j at position u is the draft j + 1 of a chain that begins at u - j."""
    torch.manual_seed(0)
    shape = replace(SMALL, num_hidden_layers=6)
    brook, head = Decoder(shape), eagle.Head(shape)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(weight.bfloat16())
    ids = torch.arange(3, 15)[None]
    streams, _ = eagle.streams_of(brook, ids)
    embedded = brook.model.embed_tokens(ids)[:, 1:]
    cos, sin = brook.rope(torch.arange(11))
    passes, found = [], []
    g = head.fc(streams[:, :-1])
    for _ in range(4):
        g = head(g, embedded, cos, sin, passes)
        found.append(g[0].detach().numpy())
        g = eagle.moved(g, 1)
    eagle.save(tmp_path, head, shape)
    files = read_eagle(tmp_path, SimpleNamespace(hidden_size=64, layers=range(6)), "brook")
    layer = EagleLayer(files, 64, {})
    each = streams[0].detach().numpy().reshape(12, 3, 64).transpose(1, 0, 2)
    states, tokens = layer.states(each), embedded[0].detach().numpy()
    for begin in (0, 1, 6):
        cache = layer.cache(0)
        layer.read([cache], [begin], states[:begin], tokens[:begin])
        x = states[begin : begin + 1]
        for j in range(4):
            at = begin + j
            x = layer.draft([cache], np.array([at]), x, tokens[at : at + 1])
            np.testing.assert_allclose(x[0], found[j][at], atol=1e-3)
    loss = eagle.eagle_loss(brook, head, some_batch(tokenizer))
    loss.backward()
    assert all(p.grad is not None for p in head.parameters())


def test_soft_prompt_of_no_vectors_changes_nothing(tokenizer):
    torch.manual_seed(0)
    model, batch = Decoder(SMALL), some_batch(tokenizer)
    soft = adapters.soft_loss(model, torch.empty(0, 64), batch)
    assert torch.allclose(soft, batch_loss(model, batch), atol=1e-3)


def test_greedy_equals_the_argmax_of_one_pass(tokenizer):
    torch.manual_seed(0)
    model = Decoder(SMALL)
    ids = greedy(model, [5, 6, 7], end=-1, limit=6)
    scores = model.logits(model(torch.tensor([[5, 6, 7, *ids]])))[0, 2:-1]
    assert scores.argmax(-1).tolist() == ids


def test_draft_is_a_tenth_of_brook():
    from training.companions.draft import draft_shape

    brook = json.loads((ASSETS / "config.json").read_text())
    names = Shape.__dataclass_fields__
    size = parameters_of(Shape(**{k: v for k, v in brook.items() if k in names}))
    assert parameters_of(draft_shape(brook["vocab_size"])) <= size / 10


def test_an_average_lies_between_two_models():
    torch.manual_seed(0)
    first, second = Decoder(SMALL), Decoder(SMALL)
    name, before = next((n, p.clone()) for n, p in first.named_parameters())
    theirs = second.state_dict()[name]
    average(first, second, 0.75)
    assert torch.allclose(first.state_dict()[name], 0.75 * before + 0.25 * theirs)
