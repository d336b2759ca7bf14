"""Text as it is trained on is text as it is served."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import tokenizer as bpe
from training.batches import assemble, encode
from training.data.mixture import corpus
from training.data.source import Source
from training.export import ASSETS
from training.render import SPECIAL_TOKENS, prompt_text, target_text

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer():
    return bpe.load(ASSETS / "tokenizer.json")


@pytest.fixture(scope="module")
def reference():
    return transformers.AutoTokenizer.from_pretrained(ASSETS)


def test_template_and_renderer_write_the_same_text(reference):
    for example in corpus("template", 300):
        rendered = reference.apply_chat_template(
            example.prompt, tools=example.tools, tokenize=False, add_generation_prompt=True,
            enable_thinking=example.thinking,
        )  # fmt: skip
        assert rendered == prompt_text(example)


def test_reasoning_is_off_unless_asked_for(reference):
    messages = [{"role": "user", "content": "hello"}]
    plain = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert plain.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_old_reasoning_is_dropped(reference):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    text = reference.apply_chat_template(messages, tokenize=False)
    assert "old" not in text
    assert "<|im_start|>assistant\nb<|im_end|>" in text


def test_prompt_and_answer_tokenise_apart_as_together(tokenizer):
    for example in corpus("boundary", 300):
        prompt, target = prompt_text(example), target_text(example)
        apart = tokenizer.encode(prompt).ids + tokenizer.encode(target).ids
        assert tokenizer.encode(prompt + target).ids == apart


def test_names_nearly_always_have_one_spelling(tokenizer):
    """The exceptions begin with a piece that is also a common word, such as ``A``."""
    source, same = Source(3, evaluation=True), 0
    for _ in range(200):
        name = source.invented()
        pieces = tokenizer.encode(name).ids
        marks = (" ", '"', "_", ' "', "(", "`")
        ends = [tokenizer.encode(mark + name).ids[-len(pieces) :] for mark in marks]
        same += all(end == pieces for end in ends)
    assert same >= 190


def test_digits_and_special_tokens_stand_alone(tokenizer):
    assert len(tokenizer.encode("2048").ids) == 4
    assert all(len(tokenizer.encode(t).ids) == 1 for t in SPECIAL_TOKENS)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_any_text_survives(text):
    tokenizer = bpe.load(ASSETS / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_learning_is_deterministic():
    texts = [prompt_text(e) + target_text(e) for e in corpus("bpe", 200)]
    first = bpe.learn(texts, {"red"}, size=800, spaced=50).to_str()
    assert first == bpe.learn(texts, {"red"}, size=800, spaced=50).to_str()


def test_batches_weigh_answers_fully(tokenizer):
    rows = encode(tokenizer, list(corpus("batch", 8)))
    batch = assemble(rows, 0.0, 0.2, seed=0)
    assert len(batch.wanted) == sum(len(ids) - prompt for ids, prompt in rows)
    assert batch.weight.eq(1).all()
    row, place = batch.where[0].tolist()
    assert rows[row][0][place + 1] == batch.wanted[0]
