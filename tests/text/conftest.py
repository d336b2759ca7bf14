"""Small tokenizers trained on the spot, one of each kind."""

from __future__ import annotations

import json
import random

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.text.tokenizer import Tokenizer

_WORDS = (
    "hello world the of to and in tide mill wheel river Wasser Mühle "
    "日本語 приве́т naïve 🦙 👩‍👩‍👧 12 345 6789 don't it's x==y {}();"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|im end|>"]


def sample_texts(count: int, seed: int = 0) -> list[str]:
    """Texts with many scripts, runs of spaces and emoji."""
    rng = random.Random(seed)
    words = _WORDS.split()
    blanks = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n "]
    return [
        "".join(rng.choice(words) + rng.choice(blanks) for _ in range(rng.randrange(1, 40)))
        for _ in range(count)
    ]


def byte_level() -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(sample_texts(300), trainer)
    library.add_tokens(["<tool call>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    return library


def metaspace() -> Library:
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*SPECIAL, *(f"<0x{b:02X}>" for b in range(256))],
        show_progress=False,
    )
    library.train_from_iterator([t.replace("🦙", "") for t in sample_texts(300)], trainer)
    # The trainer makes byte tokens special; in a real vocabulary they are ordinary pieces.
    state = json.loads(library.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in SPECIAL]
    return Library.from_str(json.dumps(state))


LIBRARIES = {"byte_level": byte_level, "metaspace": metaspace}


@pytest.fixture(scope="session", params=sorted(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]()


@pytest.fixture(scope="session")
def tokenizer(library: Library) -> Tokenizer:
    return load(library)


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return load(byte_level())


@pytest.fixture(scope="session")
def space_tokenizer() -> Tokenizer:
    return load(metaspace())


def load(library: Library, **options: object) -> Tokenizer:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    data = TokenizerData(tokenizer_json=library.to_str().encode(), special=special, **options)
    return Tokenizer(data)
