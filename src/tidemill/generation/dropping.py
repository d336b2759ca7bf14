"""Which messages of a conversation may be left out where it does not fit into the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_INSTRUCTIONS = ("system", "developer")


def cuts_of(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """Sets of messages to leave out, by index, each larger than the one before it.

    Instructions stay, and so does the last user's message. First go whole turns, the oldest first,
    so that what is left begins with a user; then steps after the last user's message: a message of
    the assistant with the results of its calls. The last step stays.
    """
    places = [i for i, m in enumerate(messages) if m.get("role") not in _INSTRUCTIONS]
    users = [i for i in places if messages[i].get("role") == "user"]
    cuts = [tuple(i for i in places if i < user) for user in users]
    last = users[-1] if users else -1
    steps = [i for i in places if i > last and messages[i].get("role") == "assistant"]
    before = [i for i in places if i < last]
    cuts += [(*before, *(i for i in places if last < i < step)) for step in steps[1:]]
    return [cut for cut in cuts if cut]
