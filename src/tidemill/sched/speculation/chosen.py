"""What a step verifies."""

from __future__ import annotations

from typing import NamedTuple


class Chosen(NamedTuple):
    """What a step verifies.

    Attributes:
        drafts: by sequence; none of one that is missing.
        plain_seconds: predicted seconds of the step without drafts.
        held_out: it would have verified some, and does not, to measure a step without.
        probes: a drafter computes for a stream that would not have asked it.
    """

    drafts: dict[int, int]
    plain_seconds: float = 0.0
    held_out: bool = False
    probes: bool = False


NO_CHOICE = Chosen({})
