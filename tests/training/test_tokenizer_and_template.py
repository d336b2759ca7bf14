"""Text as it is trained on is text as it is served."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import tokenizer as bpe
from training.batches import DECISION, WIDTHS, assemble, encode, stream, width_of
from training.data import tools
from training.data.mixture import corpus
from training.data.source import Source
from training.export import ASSETS
from training.render import SPECIAL_TOKENS, pieces, prompt_text, target_text

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
    assert len(batch.wanted) == sum(1 for _, weights in rows for w in weights if w)
    assert set(batch.weight.tolist()) <= {1.0, DECISION}
    assert batch.tokens.shape[1] in WIDTHS
    row, place = batch.where[0].tolist()
    assert rows[row][0][place + 1] == batch.wanted[0]


def test_every_turn_is_learned_where_an_example_says_so(tokenizer):
    example = tools.turns(Source("turns"))
    answers = [m for m in example.messages if m["role"] == "assistant"]
    learned = [text for text, wanted in pieces(example) if wanted]
    assert len(learned) == len(answers) >= 3
    assert learned[-1] == target_text(example)
    [(ids, weights)] = encode(tokenizer, [example])
    assert weights.count(DECISION) == len(answers)
    assert tokenizer.decode(
        [i for i, w in zip(ids, weights, strict=True) if w], skip_special_tokens=False
    ) == "".join(learned)


def test_padding_the_predictions_changes_no_sum(tokenizer):
    batch = assemble(encode(tokenizer, list(corpus("padded", 5))), 0.0, 0.0, seed=0)
    padded = batch.padded(64)
    assert len(padded.where) == len(padded.wanted) == len(padded.weight)
    assert len(padded.where) % 64 == 0
    assert padded.weight.sum() == batch.weight.sum()


def test_groups_fill_one_width_and_lose_no_row(tokenizer):
    made = []

    def one():
        made.append(next(examples))
        return made[-1]

    examples = corpus("groups", 10_000)
    groups = stream(tokenizer, one, lambda: 1024, lambda groups: None, pool=200)
    seen = [next(groups) for _ in range(40)]
    for group in seen:
        widths = {width_of(len(ids) - 1) for ids, _ in group}
        assert len(widths) == 1
        assert len(group) == max(1, 1024 // widths.pop())
    known = {tuple(ids) for ids, _ in encode(tokenizer, made)}
    assert all(tuple(ids) in known for group in seen for ids, _ in group)
