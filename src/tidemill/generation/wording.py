"""Tokens that a request names by their texts. Few requests do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.encoding import encode_text
from tidemill.generation.pace import Pace
from tidemill.generation.request import Model, Parts, TokenTexts

MAX_TEXT_CHARS = 1024
BANNED = -100.0


async def with_texts(
    model: Model, sampling: SamplingParams, texts: TokenTexts, pace: Pace
) -> SamplingParams:
    """The parameters with the token ids of texts; see `TokenTexts`.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    bias: dict[int, float] = {}
    for text, value in texts.biased:
        bias |= dict.fromkeys(await _ids(model, text, "logit_bias", pace), value)
    values: dict[str, Any] = {}
    # A single token is banned by its logit, and a sequence where its last token would follow.
    sequences = await _banned(model, texts.banned, pace)
    bans = {ids[0]: BANNED for ids in sequences if len(ids) == 1}
    if texts.no_ends:
        bans |= dict.fromkeys(model.info.eos_token_ids, BANNED)
    if longer := tuple(ids for ids in sequences if len(ids) > 1):
        values["bad_words_ids"] = (*sampling.bad_words_ids, *longer)
    values["logit_bias"] = {**bias, **sampling.logit_bias, **bans}
    return sampling.with_values(values).validate(model.info.vocab_size)


async def _banned(model: Model, words: Sequence[str], pace: Pace) -> list[tuple[int, ...]]:
    """The token ids of each word, as it is written at a beginning and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip(" ")):
            found[tuple(await _ids(model, text, "bad_words", pace))] = None
    return list(found)


async def with_breakers(model: Model, sampling: SamplingParams, pace: Pace) -> SamplingParams:
    """The parameters with the token ids of DRY's breakers: of each text the last token of it after
    a letter, since many tokenizers begin a text in their own way.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    name = "dry_sequence_breakers"
    texts = sampling.dry_sequence_breakers
    found = [(await _ids(model, "a" + text, name, pace))[-1] for text in texts]
    return sampling.with_values({"dry_breaker_ids": tuple(dict.fromkeys(found))})


async def _ids(model: Model, text: str, param: str, pace: Pace) -> Sequence[int]:
    if not text or len(text) > MAX_TEXT_CHARS:
        raise bad_request(param, f"{param}: texts have 1 to {MAX_TEXT_CHARS} characters")
    ids = await pace.short(len(text), model.tokenizer.encode, text, add_special=False)
    await pace.pause()  # there may be thousands
    return ids


async def joined(
    model: Model, source: Parts, param: str, pace: Pace, *, add_special: bool
) -> list[int]:
    """The token ids of a prompt of several parts; those that were given are not checked.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`: a text is far too long.
    """
    found: list[int] = []
    for index, part in enumerate(source.parts):
        if isinstance(part, str):
            special = add_special and index == 0
            found += await encode_text(model, part, param, pace, add_special=special)
        else:
            found += part
    return found
