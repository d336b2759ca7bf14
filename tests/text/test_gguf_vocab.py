"""GGUF vocabularies: llama.cpp's test vectors, and trained vocabularies against the originals."""

from __future__ import annotations

import hashlib
import io
import json
import random
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.formats import spm_file
from tidemill.loading.formats.gguf import read_file
from tidemill.text.gguf_library import tokenizer_from_gguf
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.word_rules import WORD_RULES

from .conftest import byte_level, sample_texts

BYTE_LEVEL = [name for name, rule in WORD_RULES.items() if not rule.raw]
SEPARATOR = "\n__ggml_vocab_test__\n"


def byte_level_metadata(pre: str = "gpt-2", **extra: Any) -> dict[str, Any]:
    library = byte_level()
    merges = json.loads(library.to_str())["model"]["merges"]
    count = library.get_vocab_size()
    added = {i: t.special for i, t in library.get_added_tokens_decoder().items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [library.id_to_token(i) for i in range(count)],
        "tokenizer.ggml.token_type": [
            {None: 1, True: 3, False: 4}[added.get(i)] for i in range(count)
        ],
        "tokenizer.ggml.merges": [" ".join(m) for m in merges],
        "tokenizer.ggml.bos_token_id": library.token_to_id("<s>"),
        "tokenizer.ggml.eos_token_id": library.token_to_id("</s>"),
        **extra,
    }


@pytest.fixture(scope="module")
def sp_model() -> sentencepiece.SentencePieceProcessor:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(t.replace("🦙", " ") for t in sample_texts(300)),
        model_writer=written,
        model_type="bpe",
        vocab_size=620,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_by_whitespace=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def sp_metadata(model: sentencepiece.SentencePieceProcessor, **extra: Any) -> dict[str, Any]:
    ids = range(model.get_piece_size())

    def kind(i: int) -> int:
        if model.is_unknown(i):
            return 2
        return 3 if model.is_control(i) else 6 if model.is_byte(i) else 1

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [kind(i) for i in ids],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        **extra,
    }


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "phi-3", "qwen2"])
def test_vectors_of_llama_cpp(shared_vocab: Path, name: str) -> None:
    path = shared_vocab / f"ggml-vocab-{name}.gguf"
    metadata = {k: v for k, v in read_file(path).metadata.items() if k.startswith("tokenizer.")}
    if path.stat().st_size < 2**20:  # the outside reader takes long for the large ones
        fields = gguf.GGUFReader(path).fields
        outside = {k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")}
        scalars = (str, int, float)
        assert {k: v if isinstance(v, scalars) else list(v) for k, v in metadata.items()} == outside
    tokenizer = Tokenizer(TokenizerData(gguf=metadata))
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        *texts, rest = file.read().split(SEPARATOR)
    assert not rest
    lines = Path(f"{path}.out").read_text().splitlines()
    expected = [[int(i) for i in line.split()] for line in lines]
    assert len(texts) == len(expected) > 40
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.notes == []


def test_byte_level_equals_the_tokenizer_it_came_from() -> None:
    library = byte_level()
    tokenizer = Tokenizer(
        TokenizerData(gguf=byte_level_metadata(**{"tokenizer.ggml.add_bos_token": True}))
    )
    for text in [*sample_texts(100, seed=4), "", "a<|im end|> b<tool call>c"]:
        assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.special_ids == {library.token_to_id(t) for t in
                                     ["<unk>", "<s>", "</s>", "<|im end|>"]}  # fmt: skip
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.special_id("eos_token") == library.token_to_id("</s>")


def test_sentencepiece_equals_sentencepiece(sp_model: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = Tokenizer(TokenizerData(gguf=sp_metadata(sp_model)))
    for text in [*sample_texts(300, seed=5), "", "🦙 x", "      ", "a      b", "\u0000"]:
        ids = sp_model.encode(text)
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.encode(text) == [sp_model.bos_id(), *ids]
        assert tokenizer.decode(ids) == sp_model.decode(ids) == text


def test_without_the_dummy_space(sp_model: sentencepiece.SentencePieceProcessor) -> None:
    metadata = sp_metadata(sp_model, **{"tokenizer.ggml.add_space_prefix": False})
    tokenizer = Tokenizer(TokenizerData(gguf=metadata))
    with_space = Tokenizer(TokenizerData(gguf=sp_metadata(sp_model)))
    ids = tokenizer.encode(" hello", add_special=False)
    assert ids == with_space.encode("hello", add_special=False)
    assert tokenizer.decode(ids) == " hello"


def test_start_and_end_tokens_follow_the_metadata() -> None:
    def around(pre: str, **extra: Any) -> tuple[bool, bool]:
        metadata = byte_level_metadata(pre, **extra)
        tokenizer = Tokenizer(TokenizerData(gguf=metadata))
        ids = tokenizer.encode("hello")
        bos, eos = tokenizer.special_id("bos_token"), tokenizer.special_id("eos_token")
        return ids[0] == bos, ids[-1] == eos

    assert around("gpt-2") == (False, False)
    assert around("llama-bpe") == (True, False)
    assert around("llama-bpe", **{"tokenizer.ggml.add_bos_token": False}) == (False, False)
    assert around("gpt-2", **{"tokenizer.ggml.add_eos_token": True}) == (False, True)


def test_every_word_rule_keeps_the_text() -> None:
    text = sample_texts(1, seed=6)[0]
    for name in BYTE_LEVEL:
        tokenizer = Tokenizer(TokenizerData(gguf=byte_level_metadata(name)))
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.notes == []


def test_whole_words_win_over_merges() -> None:
    metadata = byte_level_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"][10] = "zzzzz"
    vocab = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"])}
    kept = [m for m in metadata["tokenizer.ggml.merges"] if m.replace(" ", "") in vocab]
    metadata["tokenizer.ggml.merges"] = [m for m in kept if all(p in vocab for p in m.split(" "))]
    tokenizer = Tokenizer(TokenizerData(gguf=metadata))
    assert tokenizer.encode("zzzzz", add_special=False) == [10]
    assert Library(models.BPE(vocab, [])).encode("zzzzz").ids != [10]


def test_unnamed_word_rule_is_said() -> None:
    (note,) = Tokenizer(TokenizerData(gguf=byte_level_metadata("default"))).notes
    assert "tokenizer.ggml.pre" in note


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model": "rwkv"}, ErrorKind.UNSUPPORTED, "rwkv"),
        ({"pre": "no-such-rule"}, ErrorKind.UNSUPPORTED, "no-such-rule"),
        ({"tokens": None}, ErrorKind.MODEL_FILE, "tokenizer.ggml.tokens"),
        ({"tokens": []}, ErrorKind.MODEL_FILE, "empty"),
        ({"merges": None}, ErrorKind.MODEL_FILE, "tokenizer.ggml.merges"),
        ({"merges": ["a nosuchtoken"]}, ErrorKind.MODEL_FILE, "nosuchtoken"),
        ({"merges": ["q q"]}, ErrorKind.MODEL_FILE, "'q q', whose parts or result"),
        ({"merges": ["ab"]}, ErrorKind.MODEL_FILE, "'ab'"),
        ({"token_type": [1]}, ErrorKind.MODEL_FILE, "1 entries"),
        ({"bos_token_id": 10**6}, ErrorKind.MODEL_FILE, "1000000"),
        ({"model": "llama"}, ErrorKind.MODEL_FILE, "tokenizer.ggml.scores"),
    ],
)
def test_bad_metadata_is_a_clear_error(change: dict[str, Any], kind: ErrorKind, words: str) -> None:
    metadata = byte_level_metadata()
    for key, value in change.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    metadata = {k: v for k, v in metadata.items() if v is not None}
    with pytest.raises(TidemillError, match=words) as caught:
        Tokenizer(TokenizerData(gguf=metadata))
    assert caught.value.kind is kind


@pytest.fixture(scope="module")
def unigram() -> tuple[bytes, sentencepiece.SentencePieceProcessor]:
    """A unigram model that normalizes as SentencePiece does by default (NFKC, blanks trimmed)."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_texts(300)),
        model_writer=written,
        model_type="unigram",
        vocab_size=70,
        character_coverage=0.98,
        minloglevel=2,
    )
    proto = written.getvalue()
    return proto, sentencepiece.SentencePieceProcessor(model_proto=proto)


def test_unigram_equals_sentencepiece(
    unigram: tuple[bytes, sentencepiece.SentencePieceProcessor], tmp_path: Path
) -> None:
    proto, model = unigram
    (tmp_path / "tokenizer.model").write_bytes(proto)
    metadata = spm_file.read_file(tmp_path / "tokenizer.model")
    assert metadata["tokenizer.ggml.model"] == "t5"
    plain = Tokenizer(TokenizerData(gguf=metadata))
    around = {"tokenizer.ggml.add_eos_token": True}
    ended = Tokenizer(TokenizerData(gguf={**metadata, **around}))
    for text in [*sample_texts(300, seed=5), "", "  a  b  ", "\u2460 ﬁ \uff21", "🦙 x"]:
        ids = model.encode(text)
        assert plain.encode(text) == ids, text
        assert ended.encode(text) == [*ids, model.eos_id()]
        if model.unk_id() not in ids:  # sentencepiece writes a mark for it
            assert plain.decode(ids) == model.decode(ids), text


def test_sentencepiece_files_equal_sentencepiece(
    sp_model: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sp_model.serialized_model_proto())
    metadata = spm_file.read_file(tmp_path / "tokenizer.model")
    expected = sp_metadata(sp_model)
    for key in ("model", "tokens", "scores", "token_type", "bos_token_id", "unknown_token_id"):
        name = f"tokenizer.ggml.{key}"
        assert metadata[name] == expected[name], key
    tokenizer = Tokenizer(TokenizerData(gguf=metadata))
    for text in [*sample_texts(50, seed=8), "", " a  b "]:
        assert tokenizer.encode(text) == sp_model.encode(text)


def test_wordpiece_equals_the_tokenizer_it_came_from() -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    for lower in (True, False):
        library = Library(models.WordPiece(unk_token="[UNK]"))
        library.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=lower)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(
            vocab_size=300, special_tokens=special, show_progress=False
        )
        library.train_from_iterator(sample_texts(200), trainer)
        tokens = [library.id_to_token(i) for i in range(library.get_vocab_size())]
        # As converters write it.
        stored = [t if t in special else t[2:] if t.startswith("##") else "▁" + t for t in tokens]
        metadata = {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.tokens": stored,
            "tokenizer.ggml.token_type": [3 if t in special else 1 for t in tokens],
            "tokenizer.ggml.unknown_token_id": 1,
            "tokenizer.ggml.cls_token_id": 2,
            "tokenizer.ggml.seperator_token_id": 3,
            "tokenizer.ggml.normalizer.lowercase": lower,
        }
        tokenizer = Tokenizer(TokenizerData(gguf=metadata))
        for text in [*sample_texts(200, seed=5), "", "Ünïté, Wheel!", "[CLS] x"]:
            ids = library.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, add_special=False) == ids, text
            assert tokenizer.encode(text) == [2, *ids, 3]
            assert tokenizer.decode(ids) == library.decode(ids)


def varied(count: int) -> list[str]:
    """Texts of single characters from everywhere, so that every rule has something to cut."""
    rng = random.Random(3)
    pool = (
        "aZ éßЖж日本語가 नमस्ते ไทย 0123456789٣ '\"`~!@#$%^&*()-_=+[]{}\\|;:,<.>/? …。، "
        "\n\r\t\u00a0\u3000 'S 'll 'Re ½ 🦙ǅ"
    )
    return ["".join(rng.choice(pool) for _ in range(60)) for _ in range(count)]


def test_word_rules_cut_as_they_did() -> None:
    """Compared with llama.cpp once, kimi-k2, qwen and o200k with tiktoken (docs/model-files.md); a
    change of any rule shows here."""
    digest, metadata = hashlib.blake2b(digest_size=8), byte_level_metadata()
    for name in sorted(BYTE_LEVEL):
        backend, _ = tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": name})
        cut = [backend.pre_tokenizer.pre_tokenize_str(text) for text in varied(20)]
        digest.update(repr([name, [[span for _, span in words] for words in cut]]).encode())
    assert digest.hexdigest() == "98a23d478f6af97a"


@pytest.mark.parametrize(
    ("name", "count", "own"),
    [
        ("tiny_aya", 2, [r"\d{1,3}(?=(?:\d{3})*\b)"]),
        ("superbpe", 2, [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
        ("afmoe", 2, [r"\p{N}+", r"(?=(\p{N}{3})+(?!\p{N}))"]),
    ],
)
def test_digits_are_grouped_as_by_the_tokenizers_own_expressions(
    name: str, count: int, own: list[str]
) -> None:
    """Theirs take the square of a number's length; ours must not, a prompt may be one number."""

    def cutter(patterns: list[str]) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        )

    ours, theirs = cutter(list(WORD_RULES[name].patterns[:count])), cutter(own)
    rng = random.Random(7)
    for _ in range(3000):
        text = "".join(rng.choice("1234567890012345678٣½Ⅳa_ .\n") for _ in range(rng.randrange(30)))
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), text
    for tail in ("", "a", "½"):
        started = time.process_time()
        ours.pre_tokenize_str("1" * 100_000 + tail)
        assert time.process_time() - started < 5  # the expressions above take minutes


def gemma_metadata() -> tuple[Library, dict[str, Any]]:
    """A tokenizer made as Gemma's is, and what a converter writes of it."""
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=names, show_progress=False)
    library.train_from_iterator([t.replace("🦙", "") for t in sample_texts(300)], trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in special]
    library = Library.from_str(json.dumps(state))
    tokens = [library.id_to_token(i) for i in range(library.get_vocab_size())]
    return library, {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            3 if t in special else 6 if t in names else 1 for t in tokens
        ],
        "tokenizer.ggml.merges": [" ".join(m) for m in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }


def test_merges_over_characters_equal_the_tokenizer_they_came_from() -> None:
    library, metadata = gemma_metadata()
    tokenizer = Tokenizer(TokenizerData(gguf=metadata))
    named = metadata | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gemma4"}
    other = Tokenizer(TokenizerData(gguf=named))
    for text in [*sample_texts(100, seed=4), *varied(20), "", "a<eos> b", "\n\n\n x"]:
        ids = library.encode(text).ids
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.encode(text) == other.encode(text) == [2, *ids]
        assert "<eos>" in text or tokenizer.decode(ids) == text


@pytest.mark.parametrize("model", ["gpt2", "library"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("padding_token_id", 4294967295),
        ("padding_token_id", -1),
        ("padding_token_id", 10**6),  # nothing is filled up here
        ("eos_token_id", 4294967295),
        ("unknown_token_id", -1),
    ],
)
def test_an_id_that_says_there_is_no_token(model: str, key: str, value: int) -> None:
    metadata = byte_level_metadata()
    if model == "library":  # a text that is there twice leaves the vocabulary to the library
        metadata["tokenizer.ggml.tokens"] += ["twice", "twice"]
        metadata["tokenizer.ggml.token_type"] += [1, 1]
    plain = Tokenizer(TokenizerData(gguf=metadata))
    tokenizer = Tokenizer(TokenizerData(gguf={**metadata, f"tokenizer.ggml.{key}": value}))
    assert tokenizer.encode("hello tide") == plain.encode("hello tide")
    (note,) = set(tokenizer.notes) - set(plain.notes)
    assert f"tokenizer.ggml.{key} ({value})" in note


def test_another_id_beyond_the_vocabulary_is_an_error() -> None:
    metadata = byte_level_metadata(**{"tokenizer.ggml.eos_token_id": 10**6})
    with pytest.raises(TidemillError, match="eos_token_id is 1000000") as caught:
        Tokenizer(TokenizerData(gguf=metadata))
    assert caught.value.kind == ErrorKind.MODEL_FILE


# The published tokenizers of these bring text to form C first: Qwen's (3.5's, too), GPT-NeoX's with
# those made from it, and Cohere's.
NORMALIZED = {
    *("qwen", "qwen2", "megrez", "kormo", "f2llmv2"),
    *("olmo", "mpt", "modern-bert"),
    *("command-r", "tiny_aya", "cohere2moe"),
}


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_which_rules_bring_text_to_form_c(pre: str) -> None:
    tokenizer = Tokenizer(TokenizerData(gguf=byte_level_metadata(pre)))
    composed, apart = "caf\u00e9 \u00c5", "cafe\u0301 A\u030a"
    assert (tokenizer.encode(composed) == tokenizer.encode(apart)) is (pre in NORMALIZED)
