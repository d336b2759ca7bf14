"""Brook's tokenizer: byte-level BPE with single digits, learned so that names can be copied.

A name must tokenise the same way after a space, a quote or an underscore; otherwise a small model
has to learn a second spelling of every piece. So merges are learned with spaces split off, and a
space is joined only to whole common words, by merges that rank after all others. The shipped
pre-tokenizer is then the pattern that Qwen2 documents, which engines and GGUF readers know.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.render import SPECIAL_TOKENS

# Qwen2's published splitting pattern: contractions, words with one leading mark, single digits,
# runs of marks, line ends, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Stricter, for learning: nothing is ever joined to letters, and humps of camelCase stand alone.
STRICT = r"\p{Lu}?\p{Ll}+|\p{Lu}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]+|\s"
SPACE = "\u0120"  # how byte-level BPE writes a space


def _base(merges: list[tuple[str, str]], vocab: dict[str, int], split: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    return tokenizer


def learn(texts: Iterable[str], copied: set[str], size: int = 3072, spaced: int = 560) -> Tokenizer:
    """A tokenizer of ``size`` entries, of which ``spaced`` are a space and a common word.

    Words in ``copied`` never take a space along.
    """
    texts = list(texts)
    strict = _base([], {}, STRICT)
    trainer = trainers.BpeTrainer(
        vocab_size=size - spaced - len(SPECIAL_TOKENS) - 2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    strict.train_from_iterator(texts, trainer)
    learned = json.loads(strict.to_str())["model"]
    merges = [tuple(m) for m in learned["merges"]]
    vocab = dict(learned["vocab"])
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(w for w in text.replace("\n", " ").split(" ") if w.isalpha() and w.isascii())
    double, triple = SPACE * 2, SPACE * 3
    wanted = [(SPACE, SPACE), (double, SPACE)]
    common = [w for w, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    wanted += [(SPACE, w) for w in common if w in vocab and w not in copied][:spaced]
    for left, right in wanted:
        joined = left + right
        if joined not in vocab:
            vocab[joined] = len(vocab)
            merges.append((left, right))
    assert triple in vocab
    tokenizer = _base(merges, vocab, SPLIT)
    # As in Qwen3: only the tokens of the chat frame are special; the marks of reasoning and of
    # tool calls are text that a parser must see.
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS[:3]])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS[3:]])
    return tokenizer


def save(tokenizer: Tokenizer, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))


def load(path: Path) -> Tokenizer:
    return tokenizers.Tokenizer.from_file(str(path))
