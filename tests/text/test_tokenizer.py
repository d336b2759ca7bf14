"""Ids and texts equal the tokenizers library's; bytes of tokens; special tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tidemill.base.byte_alphabet import byte_level_alphabet
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.text.tokenizer import Tokenizer

from .conftest import byte_level, load, sample_texts


def test_ids_equal_the_librarys_and_decode_back(library: Library, tokenizer: Tokenizer) -> None:
    for text in ["", " ", "a", "  two", *sample_texts(200, seed=1)]:
        assert tokenizer.encode(text) == library.encode(text).ids
        plain = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == plain
        assert tokenizer.decode(plain) == text


def test_ids_equal_transformers(library: Library, tokenizer: Tokenizer) -> None:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Library.from_str(library.to_str()), bos_token="<s>", eos_token="</s>"
    )
    for text in [*sample_texts(50, seed=2), "<s>a<|im end|> b</s>"]:
        assert tokenizer.encode(text) == fast(text)["input_ids"]


def test_decoding_equals_the_librarys(library: Library, tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(10))]
        for skip in (True, False):
            ours = tokenizer.decode(ids, skip_special_tokens=skip)
            theirs = library.decode(ids, skip_special_tokens=skip)
            if library.model.byte_fallback and "\ufffd" in theirs:
                # The library replaces every byte of a run that is not valid as a whole.
                assert "\ufffd" in ours
            else:
                assert ours == theirs


def test_special_tokens_in_text_are_parsed_or_not(tokenizer: Tokenizer) -> None:
    text = "a<|im end|>b"
    special = tokenizer.token_to_id("<|im end|>")
    assert special in tokenizer.encode(text, add_special=False)
    literal = tokenizer.encode(text, add_special=False, parse_special=False)
    assert special not in literal
    assert tokenizer.decode(literal) == text
    # A SentencePiece tokenizer puts its dummy space after a special token too.
    assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == "ab"
    assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special_tokens=False)


@pytest.mark.parametrize("flag", [None, True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_start_token_is_the_original_tokenizers(
    tmp_path: Path, flag: bool | None, adds: bool
) -> None:
    library = byte_level()  # its post-processor adds <s>
    state = json.loads(library.to_str())
    if not adds:
        state["post_processor"] = None
    settings = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    flags = {} if flag is None else {"add_bos_token": flag}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | flags))
    theirs = AutoTokenizer.from_pretrained(tmp_path)("hello")["input_ids"]
    ours = load(Library.from_str(json.dumps(state)), add_bos=flag)
    assert ours.encode("hello") == theirs
    assert ours.starts_with_special(theirs) == adds
    assert len(ours.notes) == (flag is not None and flag != adds)


def test_nothing_is_truncated_or_padded() -> None:
    library = byte_level()
    library.enable_truncation(4)
    library.enable_padding(length=64)
    assert load(library).decode(load(library).encode("hello world " * 20)) == "hello world " * 20


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "naïve 🦙 日本語  x"
    ids = tokenizer.encode(text, add_special=False)
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert joined[tokenizer.strip :] == text
    assert tokenizer.token_bytes(tokenizer.token_to_id("<|im end|>")) == b"<|im end|>"
    assert tokenizer.token_bytes(10**6) == tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_bytes(2**40) == b""
    assert tokenizer.id_to_token(2**40) is None


def test_alphabet_is_the_librarys() -> None:
    from tokenizers import pre_tokenizers

    alphabet = byte_level_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))


def test_metaspace_decoder_and_no_decoder() -> None:
    library = Library(models.WordLevel({"a": 0, "b": 1, "▁c": 2, "d": 3}, unk_token="a"))
    assert load(library).decode([0, 1]) == library.decode([0, 1]) == "a b"
    library.decoder = decoders.Metaspace()
    assert load(library).decode([2, 3, 2]) == library.decode([2, 3, 2]) == "cd c"


def test_bad_tokenizers_are_clear_errors() -> None:
    with pytest.raises(TidemillError, match=r"add its tokenizer\.json") as caught:
        Tokenizer(TokenizerData())
    assert caught.value.kind is ErrorKind.MODEL_FILE
    with pytest.raises(TidemillError, match="cannot be read") as caught:
        Tokenizer(TokenizerData(tokenizer_json=b"{not json"))
    assert caught.value.kind is ErrorKind.MODEL_FILE
    half = byte_level().to_str().encode()[:-20]
    with pytest.raises(TidemillError, match="looks truncated: fetch it again"):
        Tokenizer(TokenizerData(tokenizer_json=half))
    state = json.loads(byte_level().to_str())
    state["decoder"] = {
        "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True,
    }  # fmt: skip
    with pytest.raises(TidemillError, match="CTC") as caught:
        Tokenizer(TokenizerData(tokenizer_json=json.dumps(state).encode()))
    assert caught.value.kind is ErrorKind.UNSUPPORTED


def test_a_panic_of_the_library_is_a_clear_error() -> None:
    # Found by the fuzzer: the prefix said to begin follow-up pieces is longer than they are.
    model = {
        "type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
        "continuing_subword_prefix": "longer",
    }  # fmt: skip
    data = TokenizerData(tokenizer_json=json.dumps({"version": "1.0", "model": model}).encode())
    with pytest.raises(TidemillError, match=r"tokenizer\.json cannot be read: range end") as caught:
        Tokenizer(data)
    assert caught.value.kind is ErrorKind.MODEL_FILE and caught.value.param == "tokenizer.json"


def test_lone_surrogate_is_a_bad_request(tokenizer: Tokenizer) -> None:
    with pytest.raises(TidemillError, match="surrogate") as caught:
        tokenizer.encode("a\ud800b")
    assert caught.value.kind is ErrorKind.BAD_REQUEST
