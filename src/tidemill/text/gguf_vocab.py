"""Reads and validates the vocabulary in a GGUF file's metadata.

Format: the GGUF specification, section "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.base.errors import model_file_error, unsupported
from tidemill.base.tokenizer_data import NO_TOKEN
from tidemill.text.word_rules import WORD_RULES, WordRule

PREFIX = "tokenizer.ggml."
# Values of tokenizer.ggml.token_type.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
SPECIAL_TYPES = frozenset({UNKNOWN, CONTROL})
# Types of an array's entries; strings unless listed.
_ENTRIES: dict[str, set[type]] = {
    "token_type": {int}, "scores": {int, float}, "precompiled_charsmap": {int},
}  # fmt: skip

# The specification's key -> the role's name in tokenizer_config.json.
_ROLES = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
    "separator_token_id": "sep_token",
    "seperator_token_id": "sep_token",  # misspelt by old converters
    "cls_token_id": "cls_token",
    "mask_token_id": "mask_token",
    "eot_token_id": "eot_token",
    "eom_token_id": "eom_token",
}

_DEFAULT_NOTE = (
    "the GGUF file does not name its word rule (tokenizer.ggml.pre is missing or 'default'): "
    "GPT-2's is used, and token ids may differ from the original model's; "
    "convert the file again with a current converter"
)


class Affixes(NamedTuple):
    """Special tokens added around plain text, unless the metadata overrides them."""

    bos: bool = False
    eos: bool = False
    sep: bool = False


def left_out(gguf: Mapping[str, Any]) -> dict[str, int]:
    """Special-token keys whose id means "no token", with that id.

    A padding id beyond the vocabulary counts too, because padding is never used here.
    """
    found: dict[str, int] = {}
    for key in _ROLES:
        value = gguf.get(PREFIX + key)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        beyond = key == "padding_token_id" and not 0 <= value < len(stored(gguf, "tokens"))
        if value in NO_TOKEN or beyond:
            found[PREFIX + key] = value
    return found


def left_out_notes(gguf: Mapping[str, Any]) -> list[str]:
    """A note for the log about the keys of `left_out`, if any."""
    absent = ", ".join(f"{key} ({value})" for key, value in left_out(gguf).items())
    return [f"special token ids of the GGUF file that name no token: {absent}"] if absent else []


def special_tokens(gguf: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role (``bos_token``), from the ids in the metadata.

    Raises:
        TidemillError: kind MODEL_FILE if an id is not in the vocabulary.
    """
    tokens, absent = stored(gguf, "tokens"), left_out(gguf)
    found: dict[str, str] = {}
    for key, role in _ROLES.items():
        value = gguf.get(PREFIX + key)
        if value is None or PREFIX + key in absent:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(tokens):
            raise model_file_error(
                f"{PREFIX}{key} is {value!r:.40}, but the vocabulary has {len(tokens)} tokens",
                param=PREFIX + key,
            )
        found[role] = tokens[value]
    return found


def stored(gguf: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A required list of the vocabulary, as stored in the metadata."""
    value = gguf.get(PREFIX + name)
    if value is None:
        raise model_file_error(
            f"the GGUF file has no {PREFIX}{name}: it contains no vocabulary; "
            "use a file converted with its tokenizer",
            param=PREFIX + name,
        )
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise model_file_error(f"{PREFIX}{name} is not an array", param=PREFIX + name)
    return value


def array(gguf: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    """An array of the metadata as a list; empty if it is absent and `length` is given."""
    if length is not None and gguf.get(PREFIX + name) is None:
        return []
    values = list(stored(gguf, name))
    if length is not None and len(values) != length:
        raise model_file_error(
            f"{PREFIX}{name} has {len(values)} entries for {length} tokens", param=PREFIX + name
        )
    if not set(map(type, values)) <= _ENTRIES.get(name, {str}):
        raise model_file_error(
            f"{PREFIX}{name} contains entries of the wrong type", param=PREFIX + name
        )
    return values


def token_types(gguf: Mapping[str, Any], count: int) -> list[int]:
    """The type of each of `count` tokens; all are ordinary if the metadata has no types."""
    return array(gguf, "token_type", count) or [1] * count


def marked(types: Sequence[int]) -> list[tuple[int, bool]]:
    """Tokens matched in the text before pre-tokenization: id, and whether special."""
    kinds = {USER_DEFINED: False} | dict.fromkeys(SPECIAL_TYPES, True)
    return [(i, kinds[kind]) for i, kind in enumerate(types) if kind in kinds]


def word_rule(gguf: Mapping[str, Any]) -> tuple[WordRule, list[str]]:
    """The pre-tokenization rule of a vocabulary with merges, and notes for the log.

    Raises:
        TidemillError: UNSUPPORTED for an unknown rule.
    """
    kind = gguf[PREFIX + "model"]
    name = "gemma4" if kind == "gemma4" else str(gguf.get(PREFIX + "pre", "default"))
    if name == "default":
        return WORD_RULES["gpt-2"], [_DEFAULT_NOTE]
    rule = WORD_RULES.get(name)
    if rule is None:
        raise unsupported(
            PREFIX + "pre",
            f"the GGUF file's pre-tokenizer {name!r} is not supported; "
            f"supported are {', '.join(sorted(WORD_RULES))}",
        )
    return rule, []


def unknown_merge(line: str) -> Exception:
    """The error for a merge whose parts or result are not tokens."""
    return model_file_error(
        f"{PREFIX}merges contains {line!r}, whose parts or result are not in the vocabulary",
        param=PREFIX + "merges",
    )


def affix_tokens(gguf: Mapping[str, Any], default: Affixes) -> tuple[str | None, str | None]:
    """The tokens before and after plain text, where the metadata (or the kind) requires them.

    A required separator replaces the end token.
    """
    special = special_tokens(gguf)
    bos, eos, sep = (special.get(role) for role in ("bos_token", "eos_token", "sep_token"))
    bos = special.get("cls_token", bos) if default.sep else bos
    first = bos if gguf.get(PREFIX + "add_bos_token", default.bos) else None
    last = eos if gguf.get(PREFIX + "add_eos_token", default.eos) else None
    if gguf.get(PREFIX + "add_sep_token", default.sep) and sep is not None:
        last = sep
    return first, last
