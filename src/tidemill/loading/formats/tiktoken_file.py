"""Files of tiktoken ranks: one line per token, with its bytes in base64 and its rank.

Such a file contains neither the rule that splits text into words nor special tokens; both depend on
the model it belongs to. The vocabulary is converted to byte-level BPE in the terms of a GGUF file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.base.byte_alphabet import byte_level_alphabet
from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.jsonfile import is_present, read_bytes

_KEY = "tokenizer.ggml."
_NORMAL, _CONTROL = 1, 3
_MAX_TOKENS = 2**20
_MAX_TOKEN_BYTES = 512


@dataclass(frozen=True, slots=True)
class RanksFile:
    """Properties of a kind of ranks file that the file does not state.

    Attributes:
        rule: word rule, see `text.word_rules`.
        special: the special tokens after the ranks, in order.
        reserved: total number of special token slots; unnamed ones are ``<|reserved_token_ID|>``.
    """

    rule: str
    special: tuple[str, ...] = ()
    reserved: int = 0


_QWEN = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *(f"<|extra_{i}|>" for i in range(205)),
)
# tokenizer_class of tokenizer_config.json -> its kind of ranks file.
_KINDS = {
    "TikTokenTokenizer": RanksFile("kimi-k2", reserved=256),
    "QWenTokenizer": RanksFile("qwen", _QWEN),
}
# File names that identify the kind.
_NAMED = {"qwen.tiktoken": _KINDS["QWenTokenizer"], "o200k_base.tiktoken": RanksFile("o200k")}


def find_ranks(folder: Path) -> Path | None:
    """A folder's ranks file: ``tiktoken.model`` or the only ``*.tiktoken``."""
    named = folder / "tiktoken.model"
    found = [named] if is_present(named) else sorted(folder.glob("*.tiktoken"))
    return found[0] if len(found) == 1 else None


def read_ranks(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A ranks file as GGUF's tokenizer metadata.

    Args:
        path: the file.
        settings: tokenizer_config.json, which names the class and the special tokens.

    Raises:
        TidemillError: MODEL_FILE for a damaged file, UNSUPPORTED for a file of unknown kind.
    """
    kind = _NAMED.get(path.name) or _KINDS.get(str(settings.get("tokenizer_class")))
    if kind is None:
        raise unsupported(
            "tokenizer_class",
            f"{path.name} does not say how text is cut into words, and tokenizer_class "
            f"{str(settings.get('tokenizer_class'))[:60]!r} is not one of {', '.join(_KINDS)}; "
            "add the model's tokenizer.json",
        )
    ranks = _parsed(path)
    special = _special(kind, len(ranks), settings)
    alphabet = {byte: char for char, byte in byte_level_alphabet().items()}
    words = ["".join(alphabet[byte] for byte in token) for token in ranks]
    tokens = [*words, *special]
    found: dict[str, Any] = {
        _KEY + "model": "gpt2",
        _KEY + "pre": kind.rule,
        _KEY + "tokens": tokens,
        _KEY + "merges": _merges(words),
        _KEY + "token_type": [_NORMAL] * len(words) + [_CONTROL] * len(special),
        _KEY + "add_bos_token": False,
        _KEY + "add_eos_token": False,
    }
    for role, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")):
        if settings.get(role) in special:
            found[f"{_KEY}{key}_token_id"] = len(words) + special.index(str(settings[role]))
    return found


def _parsed(path: Path) -> list[bytes]:
    """The tokens by rank, 0, 1, 2 and so on, each once."""
    tokens: list[bytes] = []
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        if not line.strip():
            continue
        parts = line.split()
        try:
            token, rank = base64.b64decode(parts[0], validate=True), int(parts[1])
        except (binascii.Error, ValueError, IndexError) as error:
            raise model_file_error(
                f"{path.name}: line {number} is not a token in base64 and its rank"
            ) from error
        if rank != len(tokens) or not 0 < len(token) <= _MAX_TOKEN_BYTES or rank >= _MAX_TOKENS:
            raise model_file_error(
                f"{path.name}: line {number}: ranks must count up from 0, below {_MAX_TOKENS}, for "
                f"tokens of 1 to {_MAX_TOKEN_BYTES} bytes"
            )
        tokens.append(token)
    known = set(tokens)
    if len(known) != len(tokens) or not {bytes([b]) for b in range(256)} <= known:
        raise model_file_error(f"{path.name}: a token stands there twice, or a single byte is none")
    return tokens


def _special(kind: RanksFile, first: int, settings: Mapping[str, Any]) -> list[str]:
    """The special tokens after the first `first` ranks, in order."""
    named = {first + i: token for i, token in enumerate(kind.special)}
    stated = settings.get("added_tokens_decoder")
    for key, value in stated.items() if isinstance(stated, dict) else ():
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(content, str) or not str(key).isdigit():
            raise model_file_error("tokenizer_config.json: added_tokens_decoder is not id: token")
        if not first <= int(key) < _MAX_TOKENS:
            raise model_file_error(
                f"tokenizer_config.json: added token {content[:40]!r} has the id {str(key)[:20]}, "
                f"and ids from {first} on are free"
            )
        named[int(key)] = content
    end = max([first + kind.reserved, *(i + 1 for i in named)])
    return [named.get(i, f"<|reserved_token_{i}|>") for i in range(first, end)]


def _merges(words: list[str]) -> list[str]:
    """All splits of a token into two tokens, by the token's rank: tiktoken merges the adjacent pair
    that forms the token of the lowest rank."""
    rank = {word: i for i, word in enumerate(words)}
    merges = []
    for word in words:
        ways = [
            (rank[word[:cut]], rank[word[cut:]], cut)
            for cut in range(1, len(word))
            if word[:cut] in rank and word[cut:] in rank
        ]
        merges += [f"{word[:cut]} {word[cut:]}" for _, _, cut in sorted(ways)]
    return merges
