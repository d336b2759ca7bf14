"""Inputs that are longer than what may be read, cut between tokens. Few requests ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.base.errors import bad_request
from tidemill.contract.resolve import check_input
from tidemill.generation.encoding import HEAD_CHARS, check_ids
from tidemill.generation.pace import Pace
from tidemill.generation.request import Cut, Model, Parts, Source
from tidemill.generation.wording import joined

if TYPE_CHECKING:
    from tidemill.text.vectors import Input


async def cut_source(
    model: Model,
    source: Source,
    param: str,
    most: int,
    cut: Cut,
    pace: Pace,
    *,
    add_special: bool = True,
) -> tuple[tuple[int, ...], bool]:
    """Token ids of one input, at most `most`, and whether some were left out.

    The tokens that the tokenizer puts around a text are kept; given ids are cut as they are.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`.
    """
    if not source:
        raise bad_request(param, f"{param} is empty")
    if isinstance(source, Parts):
        source = await joined(model, source, param, pace, add_special=add_special)
    if not isinstance(source, str):
        kept = _side(source, most, cut)
        await check_ids(kept, model.info.vocab_size, param, pace)
        return tuple(kept), len(kept) < len(source)
    prefix, suffix = model.tokenizer.affixes if add_special else ((), ())
    room = most - len(prefix) - len(suffix)
    if room < 1:
        raise bad_request(
            param,
            f"{param} cannot be cut to {most} tokens: the tokenizer adds "
            f"{len(prefix) + len(suffix)} of its own; allow more",
        )
    ids, whole = await _beginning(model, source, room, cut, pace)
    check_input(len(ids), model.info.max_model_len, param=param)
    return (*prefix, *ids, *suffix), not whole


async def cut_text(model: Model, text: str, most: int, cut: Cut, pace: Pace) -> tuple[str, bool]:
    """A text of which at most `most` tokens are left, and whether some were left out."""
    ids, whole = await _beginning(model, text, most, cut, pace)
    return (text, False) if whole else (_text(model, ids), True)


async def cut_second(
    model: Model, text: str, most: int, cut: Cut, pair: Callable[[str], Input], pace: Pace
) -> tuple[Input, bool]:
    """A pair whose second text is cut until the pair has at most `most` tokens, and whether it was
    cut; it may still be too long: because of the first text."""
    ids, whole = await _beginning(model, text, most, cut, pace)
    made = await pace.call(pair, text if whole else _text(model, ids))
    # The text of fewer tokens can have one more than those: each round takes what is too much.
    while (excess := len(made.token_ids) - most) > 0 and excess < len(ids):
        ids, whole = _side(ids, len(ids) - excess, cut), False
        made = await pace.call(pair, _text(model, ids))
    return made, not whole


async def _beginning(
    model: Model, text: str, most: int, cut: Cut, pace: Pace
) -> tuple[Sequence[int], bool]:
    """The first or last tokens of a text, at most `most`, and whether they are all.

    No more of a long text is tokenized than is needed (see `encoding.encode_text`).
    """
    encode, size = model.tokenizer.encode, HEAD_CHARS
    while size < len(text):
        part = text[:size] if cut is Cut.END else text[-size:]
        ids = await pace.short(size, encode, part, add_special=False)
        # Factor 2: at the cut, the tokens may differ from those of the whole text.
        if len(ids) > 2 * most:
            return _side(ids, most, cut), False
        size *= 4
    ids = await pace.short(len(text), encode, text, add_special=False)
    return _side(ids, most, cut), len(ids) <= most


def _side(ids: Sequence[int], most: int, cut: Cut) -> Sequence[int]:
    if len(ids) <= most:
        return ids
    return ids[:most] if cut is Cut.END else ids[len(ids) - most :]


def _text(model: Model, ids: Sequence[int]) -> str:
    # A character of several tokens may be cut: U+FFFD stands for what is left of it.
    return model.tokenizer.decode(ids, skip_special_tokens=False).strip("\ufffd")
