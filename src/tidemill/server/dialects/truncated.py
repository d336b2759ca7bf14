"""The header of an answer that names the inputs of which a part was left out."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

TRUNCATED_HEADER = "x-tidemill-truncated"
"""Absent where all inputs were read whole."""

NAMED_AT_MOST = 32
"""Inputs that the header names; the others are counted."""


def name_truncated(request: Request, names: Sequence[str]) -> None:
    """Have a header of the response name inputs, such as ``input[2]``; none without any."""
    if not names:
        return
    shown = ", ".join(names[:NAMED_AT_MOST])
    more = len(names) - NAMED_AT_MOST
    shown += f" and {more} more" if more > 0 else ""
    request.state.answer_headers = {TRUNCATED_HEADER: shown}
