"""Native byte-level BPE compared with the tokenizers library: words, merges, marks, files."""

from __future__ import annotations

import json
import random
import string
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles.character_categories import CATEGORIES
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from tidemill.base import _texts
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.formats.gguf import read_file
from tidemill.text.gguf_library import tokenizer_from_gguf
from tidemill.text.library_vocabulary import LibraryVocabulary
from tidemill.text.merged_vocabulary import MergedVocabulary, open_merged
from tidemill.text.vocabulary import Vocabulary
from tidemill.text.word_rules import WORD_RULES

from .conftest import byte_level, sample_texts
from .test_gguf_vocab import byte_level_metadata

# Rules that need what ours do not have: scripts, intersections, anchors, looking behind.
LIBRARYS_RULES = {"kimi-k2", "deepseek-llm", "afmoe", "tiny_aya", "cohere2moe", "superbpe"}
OUR_RULES = sorted(
    name for name, r in WORD_RULES.items() if not r.raw and name not in LIBRARYS_RULES
)
_COMMON = "abz AZ'' \n\r\t019 .,!?-_éßжЖ日本語가नमस्तेไทย٣½Ⅳ…。\u00a0\u3000\u0301\u200d\u017f\u212a🦙"


def texts(count: int, seed: int) -> Iterator[str]:
    """Texts of common characters and of any there are, in runs."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(40)):
            code = rng.randrange(0x110000)
            rare = chr(code) if not 0xD800 <= code < 0xE000 else "'s"
            parts.append(
                rng.choice([*_COMMON, "'Re", "'LL", "  ", rare]) * rng.choice([1, 1, 1, 4])
            )
        yield "".join(parts)


def merged(data: TokenizerData) -> MergedVocabulary:
    found = open_merged(data)
    assert found is not None
    return found


def of_library(library: Library) -> TokenizerData:
    return TokenizerData(tokenizer_json=library.to_str().encode())


def assert_same(ours: Vocabulary, theirs: Vocabulary, samples: Iterator[str] | list[str]) -> None:
    for text in samples:
        for literally in (False, True):
            expected = theirs.encode(text, literally=literally)
            assert ours.encode(text, literally=literally) == expected, text
    assert ours.encode_pair("a <s>b", "c d") == theirs.encode_pair("a <s>b", "c d")
    assert ours.decoder is not None and theirs.decoder is not None
    assert ours.decoder["type"] == theirs.decoder["type"]
    for part in ("size", "added", "prefix", "suffix", "notes"):
        assert getattr(ours, part) == getattr(theirs, part), part
    for index in range(-1, theirs.size + 2):
        token = theirs.id_to_token(index)
        assert ours.id_to_token(index) == token
        if token is not None:
            assert ours.token_to_id(token) == theirs.token_to_id(token)
    assert ours.token_to_id("no such token") is None
    assert ours.id_to_token(2**64) is None


@pytest.mark.parametrize("name", OUR_RULES)
def test_a_word_rule_gives_the_librarys_ids(name: str) -> None:
    data = TokenizerData(gguf=byte_level_metadata(name))
    samples = [*texts(60, seed=OUR_RULES.index(name)), *sample_texts(5)]
    assert_same(merged(data), LibraryVocabulary(data), samples)


@pytest.mark.parametrize("name", sorted(LIBRARYS_RULES))
def test_other_word_rules_are_left_to_the_library(name: str) -> None:
    assert open_merged(TokenizerData(gguf=byte_level_metadata(name))) is None


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_half_a_million_characters_by_a_real_vocabulary(shared_vocab: Path, name: str) -> None:
    metadata = read_file(shared_vocab / f"ggml-vocab-{name}.gguf").metadata
    data = TokenizerData(gguf={k: v for k, v in metadata.items() if k.startswith("tokenizer.")})
    text = (shared_vocab / "ggml-vocab-qwen2.gguf.inp").read_text()
    rng = random.Random(1)
    drawn = "".join(texts(8000, seed=5))
    places = [rng.randrange(len(text)) for _ in range(0, len(drawn), 40)]
    mixed = drawn + "".join(text[place : place + 50] for place in places)
    assert len(mixed) > 500_000
    ours, theirs = merged(data), LibraryVocabulary(data)
    assert ours.encode(mixed, literally=False) == theirs.encode(mixed, literally=False)
    assert ours.encode(mixed, literally=True) == theirs.encode(mixed, literally=True)
    assert (ours.size, ours.added) == (theirs.size, theirs.added)


def test_categories_are_those_of_the_librarys_expressions() -> None:
    """Of every character there is: whether the place of its category has each bit."""
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    names = [name for name in CATEGORIES if name != "Cs"]
    places = [
        "".join(rf"\p{{{name}}}" for name in names if CATEGORIES.index(name) >> bit & 1)
        for bit in range(5)
    ]
    for expression in [*(f"[{names}]" for names in places), r"\s", r"\d", r"\S"]:
        theirs = normalizers.Replace(Regex(expression), "").normalize_str(every)
        ours = _kept(_byte_vocabulary([(expression, False)]), every)
        rest = set(every) - set(theirs)
        assert ours == "".join(c for c in every if c in rest), expression


def _kept(vocabulary: MergedVocabulary, text: str) -> str:
    """What a rule whose gaps are left out keeps of a text."""
    data = bytes(vocabulary.encode(text, literally=False))
    return data.decode()


def _byte_vocabulary(cuts: list[tuple[str, bool]]) -> MergedVocabulary:
    """A vocabulary whose token ids are bytes."""
    library = Library(models.BPE(_bytes(), []))
    library.pre_tokenizer = _splits(cuts)
    library.decoder = decoders.ByteLevel()
    return merged(of_library(library))


def _bytes() -> dict[str, int]:
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printing]
    letters = {b: chr(b) for b in printing} | {b: chr(256 + i) for i, b in enumerate(others)}
    return {letters[b]: b for b in range(256)}


def _splits(cuts: list[tuple[str, bool]]) -> pre_tokenizers.PreTokenizer:
    splits = [
        pre_tokenizers.Split(Regex(pattern), "isolated" if gaps else "removed", invert=not gaps)
        for pattern, gaps in cuts
    ]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _paired(cuts: list[tuple[str, bool]]) -> Library:
    """Any two neighbours of a word join, the first ones first: where it is cut shows in the ids."""
    alphabet = _bytes()
    letters = [alphabet_letter for alphabet_letter in alphabet if alphabet_letter in "ab1.ĠĊÃ©"]
    pairs = [(left, right) for left in letters for right in letters]
    vocab = alphabet | {left + right: 256 + i for i, (left, right) in enumerate(pairs)}
    library = Library(models.BPE(vocab, pairs))
    library.pre_tokenizer = _splits(cuts)
    library.decoder = decoders.ByteLevel()
    return library


def _expression(rng: random.Random, depth: int = 0) -> str:
    atoms = [
        "a", "b", "1", r"\.", " ", "é", r"\n", r"\s", r"\S", r"\d", r"\p{L}", r"\p{N}", r"\P{L}",
        r"[ab]", r"[^a\s]", r"[a-b1é]", r"[\p{L}\p{N}]", r"[^\r\n\p{L}]", r"\x{E9}", r"[\n ]",
        "(?i:a)" if depth > 5 else "(?i:d)", "(?!a)b", "(?=b)b", r"a(?!\S)",
    ]  # fmt: skip
    parts = []
    for _ in range(rng.randrange(1, 4)):
        atom = rng.choice(atoms)
        if depth < 2 and rng.random() < 0.3:
            atom = f"(?:{_expression(rng, depth + 1)})"
        suffix = rng.choice(["", "", "", "?", "*", "+", "{2}", "{1,3}", "{2,}"])
        if suffix in "?*+" and suffix and atom[0] in "[\\" and rng.random() < 0.2:
            suffix += "+"
        parts.append(atom + suffix)
    found = "".join(parts)
    return f"{found}|{_expression(rng, depth + 1)}" if rng.random() < 0.3 else found


def test_random_expressions_cut_as_the_librarys() -> None:
    rng = random.Random(4)
    compared = 0
    for _ in range(1200):
        cuts = [(_expression(rng), rng.random() < 0.8) for _ in range(rng.choice([1, 1, 2]))]
        try:
            library = _paired(cuts)
        except Exception:  # the library's own is a bare one: it repeats what only looks ahead
            continue
        ours = open_merged(of_library(library))
        if ours is None:  # it can match nothing, or repeats what can
            continue
        compared += 1
        for _ in range(8):
            text = "".join(rng.choice("ab1. \né") for _ in range(rng.randrange(1, 25)))
            expected = library.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, literally=False) == expected, (cuts, text)
    assert compared > 400


@pytest.mark.parametrize(
    "expression",
    [
        "a*", "", "a|", r"\bab", r"(?<=a)b", r"\w+", r"[[:alpha:]]", r"[a-z&&[^b]]", "(?i:k)",
        "a+?", "^a", "a$", ".", r"\p{Han}", r"\p{Foo}", "(a", "a)", "[a", "a{2", "a**", "(?i:st)",
        "[]a]", "(?i:[^s])", "(?>a)", "(?m:.)", r"\1", "a{65}", "[^]", r"\x{110000}", r"\xE9",
        "(?i:é)", "*", "(((((((((((((((((((((((((((((((((a)))))))))))))))))))))))))))))))))",
        "a{0}", r"\p{L", "\\",
        "(?:(?:(?:a{2}b){64}){64}){64}",
    ],
)  # fmt: skip
def test_expressions_beyond_ours_are_left_to_the_library(expression: str) -> None:
    data = byte_level_metadata("gpt-2")
    found = open_merged(TokenizerData(gguf=data))
    assert found is not None
    assert not found._encoder.set_cuts([("a", True), (expression, True)])
    assert found.encode("hello world", literally=False)  # with the cuts it had


def test_merges_of_long_words_are_the_librarys() -> None:
    library = byte_level()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    data = of_library(library)
    rng = random.Random(2)
    samples = ["".join(sample_texts(4, seed=s)) for s in range(20)]
    samples += ["".join(rng.choice("helo wrd") for _ in range(n)) for n in range(1, 140)]
    assert_same(merged(data), LibraryVocabulary(data), [*samples, "l" * 3000, " " * 500])


def test_a_million_of_one_character_takes_no_second_and_no_giving_up() -> None:
    for name in ("qwen2", "gpt-4o", "deepseek-v3", "exaone-moe"):
        vocabulary = merged(TokenizerData(gguf=byte_level_metadata(name)))
        for character in " a1\n.é'":
            start = time.perf_counter()
            ids = vocabulary.encode(character * 10**6, literally=False)
            assert ids and time.perf_counter() - start < 5, (name, character)


def test_an_expression_that_never_ends_is_an_error() -> None:
    vocabulary = _byte_vocabulary([(r"(?:a+)+b|(?:a|a)+c", True)])
    with pytest.raises(TidemillError, match="failed on this text of 200 characters") as caught:
        vocabulary.encode("a" * 200, literally=False)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    assert vocabulary.encode("ab", literally=False) == list(b"ab")


def test_text_that_is_no_unicode_is_an_error() -> None:
    for name in ("gpt-2", "qwen2"):
        vocabulary = merged(TokenizerData(gguf=byte_level_metadata(name)))
        for text in ("a\ud800", "é\udfff", "\udc80"):
            with pytest.raises(TidemillError, match="lone surrogate"):
                vocabulary.encode(text, literally=False)


def test_text_is_normalized_between_marks() -> None:
    library = byte_level()
    library.normalizer = normalizers.NFC()
    library.add_special_tokens([AddedToken("e\u0301>", special=True, normalized=False)])
    document = json.loads(library.to_str())
    for token in document["added_tokens"]:
        token["normalized"] = False
    data = TokenizerData(tokenizer_json=json.dumps(document).encode())
    samples = [
        "e\u0301", "Mu\u0308hle", "\u0958 \u212b", "a<|im end|>\u0338b", "<|im end|>\u0301e\u0301>",
        "x\u1112\u1161\u11ab", "e\u0301e\u0301>\u0301", "<s>\u0338<s>e\u0323\u0302",
        *(f"{t}e\u0301{t}" for t in texts(80, seed=9)),
    ]  # fmt: skip
    assert_same(merged(data), LibraryVocabulary(data), samples)


def test_marks_are_found_as_the_library_finds_them() -> None:
    library = byte_level()
    library.add_tokens(["ab", "abc", "bcd", "<s", "é", " x "])
    library.add_special_tokens(["<s><s>", "cd", "\n\n", "</"])
    library.add_tokens([AddedToken(t, normalized=False) for t in ("bb", "dd<", "<|im")])
    data = of_library(library)
    rng = random.Random(8)
    parts = [
        "a",
        "b",
        "c",
        "d",
        "<s>",
        "</s>",
        "<",
        "é",
        " x ",
        " ",
        "\n",
        "<|im end|>",
        "<tool call>",
    ]
    samples = ["".join(rng.choice(parts) for _ in range(rng.randrange(1, 12))) for _ in range(600)]
    assert_same(merged(data), LibraryVocabulary(data), samples)


def _without(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            document = document[int(name) if name.isdigit() else name]
        document[last] = value

    return change


def _set_ids(document: dict[str, Any]) -> None:
    document["added_tokens"][-1]["id"] += 1


@pytest.mark.parametrize(
    "change",
    [
        _without("model.unk_token", "<unk>"),
        _without("model.continuing_subword_prefix", "##"),
        _without("model.end_of_word_suffix", "</w>"),
        _without("model.byte_fallback", True),
        _without("normalizer", {"type": "Lowercase"}),
        _without("pre_tokenizer.add_prefix_space", True),
        _without("pre_tokenizer", {"type": "Whitespace"}),
        _without("pre_tokenizer", None),
        _without("decoder", None),
        _without("added_tokens.0.lstrip", True),
        _without("added_tokens.1.single_word", True),
        _without("post_processor", {"type": "BertProcessing", "sep": ["a", 2], "cls": ["b", 1]}),
        _set_ids,
    ],
)  # fmt: skip
def test_what_is_not_known_is_left_to_the_library(change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(byte_level().to_str())
    change(document)
    assert open_merged(TokenizerData(tokenizer_json=json.dumps(document).encode())) is None


@pytest.mark.parametrize(
    "processor",
    [
        None,
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<s> $A </s> <s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)]
        ),
        processors.Sequence([
            processors.ByteLevel(),
            processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)]),
        ]),
    ],
)  # fmt: skip
def test_what_stands_around_a_text(processor: processors.PostProcessor | None) -> None:
    library = byte_level()
    library.post_processor = processor  # type: ignore[assignment]
    data = of_library(library)
    assert_same(merged(data), LibraryVocabulary(data), ["", "a b"])


@pytest.mark.parametrize(
    "cutter",
    [
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(False), pre_tokenizers.ByteLevel(False)]),
        _splits([(r"\p{N}{1,3}", True), (r"[a-z]+|\S|\s+", False)]),
    ],
)
def test_ways_to_cut(cutter: pre_tokenizers.PreTokenizer) -> None:
    library = byte_level()
    library.pre_tokenizer = cutter
    data = of_library(library)
    digits = "".join(map(chr, range(0x80, 0x3000)))
    assert_same(merged(data), LibraryVocabulary(data), [*texts(100, seed=11), digits])


def test_files_are_read_however_they_are_written() -> None:
    library = byte_level()
    document = json.loads(library.to_str())
    old = json.loads(library.to_str())
    old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
    reordered = dict(reversed(document.items()))
    reordered["model"] = dict(reversed(reordered["model"].items()))
    theirs = LibraryVocabulary(of_library(library))
    for written in (document, old, reordered):
        for options in ({}, {"ensure_ascii": False}, {"indent": 3}, {"separators": (",", ":")}):
            content = json.dumps(written, **options).encode()
            ours = merged(TokenizerData(tokenizer_json=memoryview(content)))
            assert_same(ours, theirs, sample_texts(5))


def test_a_damaged_file_is_left_to_the_library_or_read_alike() -> None:
    """Bytes changed anywhere: never other ids than the library's, and its errors."""
    content = byte_level().to_str().encode()
    rng = random.Random(6)
    opened = 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice(string.printable.encode())
        data = TokenizerData(tokenizer_json=bytes(damaged))
        ours = open_merged(data)
        if ours is None:
            continue
        opened += 1
        theirs = LibraryVocabulary(data)
        for text in sample_texts(3, seed=opened):
            assert ours.encode(text, literally=False) == theirs.encode(text, literally=False)
    assert opened > 15


def test_lists_in_memory_that_cannot_be_read_are_left_to_the_library() -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"][-1] = "\ud800"
    assert open_merged(TokenizerData(gguf=metadata)) is None
    twice = byte_level_metadata()
    twice["tokenizer.ggml.tokens"][-1] = twice["tokenizer.ggml.tokens"][-2]
    assert open_merged(TokenizerData(gguf=twice)) is None
    assert tokenizer_from_gguf(twice)[1]


def test_other_threads_run_while_a_large_vocabulary_is_opened() -> None:
    """The API process opens the vocabulary of a model that is loaded while it serves others."""
    texts = {f"w{index:06d}": index for index in range(200_000)}
    content = memoryview(json.dumps({"model": {"vocab": texts, "merges": []}}).encode())

    def longest_gap() -> float:
        """Of a thread that wants to run, as a part of five calls."""
        begun, ended = threading.Event(), threading.Event()
        gaps = [0.0]

        def watch() -> None:
            begun.set()
            last = time.perf_counter()
            while not ended.is_set():
                time.sleep(0)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

        watcher = threading.Thread(target=watch)
        watcher.start()
        begun.wait()
        start = time.perf_counter()
        for _ in range(5):
            spans = _texts.find_model(content)
            assert spans is not None
            assert _texts.Encoder.of_json(content, *spans, False) is not None
        took = time.perf_counter() - start
        ended.set()
        watcher.join()
        return max(gaps) / took

    # A call that holds the lock takes a fifth. A busy machine may stop the thread, but not always.
    assert min(longest_gap() for _ in range(10)) < 0.1
