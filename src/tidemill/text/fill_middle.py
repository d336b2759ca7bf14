"""Fill in the middle: what stands before and after a gap, by the marks of a model's vocabulary.

Models are trained on texts whose parts were moved around such marks (Bavarian et al. 2022,
"Efficient Training of Language Models to Fill in the Middle"). The marks are told by their
spelling, as llama.cpp tells them; a vocabulary that has all marks of a row is taken to belong to a
model that knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.text.tokenizer import Tokenizer

# prefix, suffix, middle: the order of a prompt. Without a middle mark the suffix comes first.
_SPELLED = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)
# Before each file of the same project that precedes the prompt.
_FILES = ("<|file_sep|>", "<file_sep>")
# What a model writes after the middle, other than its end token.
_ENDS = (
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<fim_pad>",
    "<file_sep>",
    "▁<EOT>",
    "<EOT>",
)


@dataclass(frozen=True, slots=True)
class FillMarks:
    """The marks of one vocabulary, as token ids.

    Attributes:
        start: what the tokenizer puts before every text.
        prefix, suffix: before these parts.
        middle: after them; None: the suffix comes first, and the output follows the prefix.
        file: before another file's name; None: other files stand before the gap's prefix.
        ends: tokens that end the output.
    """

    start: tuple[int, ...]
    prefix: int
    suffix: int
    middle: int | None
    file: int | None
    ends: tuple[int, ...]

    def prompt(
        self, prefix: Sequence[int], suffix: Sequence[int], *, before: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The prompt whose output fills the gap.

        Args:
            prefix, suffix: tokens around the gap, without special ones.
            before: other files.
        """
        head = (*self.start, *before)
        if self.middle is None:
            return (*head, self.suffix, *suffix, self.prefix, *prefix)
        return (*head, self.prefix, *prefix, self.suffix, *suffix, self.middle)


def fill_marks(tokenizer: Tokenizer) -> FillMarks | None:
    """The marks of a vocabulary; None where it has none."""
    find = tokenizer.token_to_id
    for names in _SPELLED:
        prefix, suffix = find(names[0]), find(names[1])
        middle = None if names[2] is None else find(names[2])
        if prefix is None or suffix is None or (middle is None and names[2] is not None):
            continue
        bos = tokenizer.special_id("bos_token")
        start = (bos,) if bos is not None and tokenizer.adds("bos_token") else ()
        found = (find(mark) for mark in _ENDS)
        ends = tuple(t for t in found if t is not None and t in tokenizer.special_ids)
        file = next((token for mark in _FILES if (token := find(mark)) is not None), None)
        return FillMarks(start, prefix, suffix, middle, file, ends)
    return None
