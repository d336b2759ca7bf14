"""When an output that repeats itself is ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.base.errors import bad_request

MAX_PATTERN = 512
MAX_COUNT = 1_000_000


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ends an output at the first token after which, for a pattern of p tokens with
    min_pattern_size <= p <= max_pattern_size, its last p * min_count tokens are that pattern
    `min_count` times. Every output token counts, the thinking's too; nothing ends before
    `min_tokens`. The ended output has the finish reason ``length`` and the stop reason
    ``repetition``.

    Attributes:
        max_pattern_size: longest pattern, 1 to 512 tokens.
        min_pattern_size: shortest pattern.
        min_count: repetitions, at least 2.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 1

    @classmethod
    def of(cls, name: str, members: Mapping[str, Any]) -> RepetitionDetection:
        """The rule with these members; its values are not checked.

        Raises:
            TidemillError: kind BAD_REQUEST, a member is missing or unknown.
        """
        try:
            return cls(**members)
        except TypeError as error:
            raise bad_request(name, f"{name}: {error}") from None

    def check(self, name: str) -> None:
        """Raise BAD_REQUEST, naming the member, unless every value is in its range."""
        for member, low, high in (
            ("max_pattern_size", 1, MAX_PATTERN),
            ("min_pattern_size", 1, MAX_PATTERN),
            ("min_count", 2, MAX_COUNT),
        ):
            value: object = getattr(self, member)
            if type(value) is not int or not low <= value <= high:
                at = f"{name}.{member}"
                raise bad_request(
                    at, f"{at} must be a whole number from {low} to {high}, got {str(value)[:80]}"
                )
        if self.min_pattern_size > self.max_pattern_size:
            at = f"{name}.min_pattern_size"
            raise bad_request(
                at,
                f"{at} ({self.min_pattern_size}) must not exceed max_pattern_size "
                f"({self.max_pattern_size})",
            )
