"""The visible output of one choice: detokenization and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.text.detokenizer import Detokenizer
from tidemill.text.stops import StopMatcher, StopSet
from tidemill.text.tokenizer import Tokenizer


class OutputText:
    """Assembles a choice's text from its tokens.

    Attributes:
        tokens: number of tokens consumed, including the one that completed a stop string. Tokens
            pushed after it are ignored.
        stopped: a stop string matched; the text is complete.
        stop_string: the one that matched, or None.
        offsets: with `track`, for each consumed token the number of output characters decoded
            before it (stop strings not yet removed).
        pieces: with `track`, the bytes of each consumed token, special tokens included.

    Args:
        tokenizer: the vocabulary.
        stop: stop strings; a `StopSet` if several choices share them.
        include_stop: the stop string that matches is part of the text.
        min_tokens: stop strings completed before this many tokens are ordinary text.
        skip_special_tokens: special tokens add no text.
        spaces_between_special_tokens: see `SamplingParams`.
        kept: special tokens that add text all the same; see `Tokenizer.pieces`.
        at_start: the output begins a text (a chat message) instead of continuing a prompt; see
            `Detokenizer`.
        track: record `offsets` and `pieces`, for logprobs.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] | StopSet = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
        at_start: bool = False,
        track: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=skip_special_tokens,
            kept=kept,
            at_start=at_start,
            unspaced=None if spaces_between_special_tokens else tokenizer.unspaced_specials(),
        )
        self._matcher = StopMatcher(stop, include=include_stop) if stop else None
        self._min_tokens = min_tokens
        self._track = track
        self._decoded = 0
        self.tokens = 0
        self.offsets: list[int] = []
        self.pieces: list[bytes] = []

    @property
    def stopped(self) -> bool:
        """True once a stop string matched."""
        return self._matcher is not None and self._matcher.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that matched, or None."""
        return self._matcher.matched if self._matcher is not None else None

    def push(self, token_ids: Sequence[int], *, hide_last: bool = False) -> tuple[str, bool]:
        """Add accepted tokens; return the text that may be shown, and whether it has stopped.

        Args:
            token_ids: newly accepted tokens, in order.
            hide_last: the last token ended the choice (an end token or stop token id): it counts
                but adds no text.
        """
        if self._matcher is None and not self._track:
            self.tokens += len(token_ids)
            return self._detokenizer.push(token_ids[:-1] if hide_last else token_ids), False
        shown: list[str] = []
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            if self.stopped:
                break
            shown.append(self._push_one(token_id, hide_last and index == last))
        return "".join(shown), self.stopped

    def _push_one(self, token_id: int, hidden: bool) -> str:
        self.tokens += 1
        if self._track:
            self.offsets.append(self._decoded)
            self.pieces.append(self._tokenizer.token_bytes(token_id))
        if hidden:
            return ""
        text = self._detokenizer.push((token_id,))
        self._decoded += len(text)
        if self._matcher is None or not text:
            return text
        return self._matcher.push(text, armed=self.tokens >= self._min_tokens)[0]

    def finish(self) -> str:
        """End the choice; return the text held back, which is empty after a stop string."""
        text = self._detokenizer.finish()
        if self._matcher is None:
            return text
        if self.stopped:
            return ""
        # A final U+FFFD (an incomplete character) may still complete a stop string.
        shown, _ = self._matcher.push(text, armed=self.tokens >= self._min_tokens)
        return shown + self._matcher.finish()
