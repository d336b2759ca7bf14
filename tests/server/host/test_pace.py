"""Where the server's preparation of requests runs."""

from __future__ import annotations

import threading

from tidemill.server.host.pace import LOOP
from tidemill.text.tokenizer import SHORT_TEXT_CHARS


async def test_long_texts_are_worked_on_in_a_thread() -> None:
    def work(text: str, *, sign: str) -> tuple[str, int]:
        return text + sign, threading.get_ident()

    here = threading.get_ident()
    for text in ("short", "long text " * SHORT_TEXT_CHARS):
        result, thread = await LOOP.short(len(text), work, text, sign="!")
        assert result == text + "!"
        assert (thread == here) == (text == "short")
