"""The window of penalties (`repeat_last_n`) of APIs that have one: ours are over the whole text."""

from __future__ import annotations

from tidemill.server.dialects.members import unsupported


def penalties_are_off(
    window: int | None, repeat: float | None, presence: float | None, frequency: float | None
) -> bool:
    """Whether a window turns all penalties off: it is 0, or there are none that it could be of.

    Args:
        window: `repeat_last_n`; -1 is the whole text.
        repeat, presence, frequency: the penalties, as sent.

    Raises:
        InvalidField: the penalties would have to be over a part of the text.
    """
    if window is None or window == -1:
        return False
    if window != 0 and (presence or frequency or repeat not in (None, 1)):
        invalid = unsupported(
            "this server's penalties are over the whole text: send repeat_last_n -1, or leave the "
            "penalties out"
        )
        invalid.path = "repeat_last_n"
        raise invalid
    return True
