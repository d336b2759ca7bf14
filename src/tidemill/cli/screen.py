"""Output of `tidemill run`: Markdown and folded thinking on a terminal, else plain text."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from tidemill.base.clock import monotonic

THINKING = ("fold", "show", "hide")


class Screen(Protocol):
    """Displays one answer."""

    def think(self, text: str) -> None:
        """Append to the thinking."""

    def say(self, text: str) -> None:
        """Append to the answer."""

    def note(self, text: str) -> None:
        """Show a status line."""

    def end(self, note: str = "") -> None:
        """Finish the answer; `note` is set if it was interrupted."""


class PlainScreen:
    """Unformatted streaming text, for pipes and for --plain.

    Args:
        thinking: ``show`` writes it to stderr; other values omit it.
    """

    def __init__(self, thinking: str = "hide") -> None:
        self._thinking = thinking == "show"
        self._said = False

    def think(self, text: str) -> None:
        """See Screen."""
        if self._thinking:
            print(text, end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """See Screen."""
        self._said = True
        print(text, end="", flush=True)

    def note(self, text: str) -> None:
        """See Screen."""
        print(text, file=sys.stderr, flush=True)

    def end(self, note: str = "") -> None:
        """See Screen."""
        if self._said or note:
            print(note, flush=True)


class RichScreen:
    """Markdown, block by block.

    A complete block is printed once and never redrawn, which keeps long answers scrollable. The
    incomplete last block is redrawn as it grows.

    Args:
        thinking: ``fold`` shows a running count and then the duration, ``show`` the whole thinking
            dimmed, ``hide`` nothing.
    """

    def __init__(self, thinking: str = "fold") -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._mode = thinking
        self._live: Any = None
        self._block = ""
        self._thought = 0
        self._since = 0.0

    def think(self, text: str) -> None:
        """See Screen."""
        if self._mode == "hide":
            return
        if not self._since:
            self._since = monotonic()
        self._thought += len(text)
        if self._mode == "show":
            self._console.print(text, style="dim", end="", markup=False, soft_wrap=True)
        else:
            self._show(f"thinking ... {self._thought} characters", style="dim")

    def _end_thinking(self) -> None:
        if not self._since:
            return
        seconds, self._since = monotonic() - self._since, 0.0
        self._clear()
        if self._mode == "show":
            self._console.print()
        else:
            self._console.print(
                f"(thought for {seconds:.1f} s, {self._thought} characters)", style="dim"
            )
        self._thought = 0

    def say(self, text: str) -> None:
        """See Screen."""
        self._end_thinking()
        self._block += text
        while (cut := _block_end(self._block)) > 0:
            self._print_block(self._block[:cut])
            self._block = self._block[cut:]
        if self._block:
            self._show(self._block)

    def _show(self, text: str, style: str = "") -> None:
        """Redraw the incomplete part: its last lines, at most a screenful."""
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=12, transient=True)
            self._live.start()
        rows = max(3, self._console.size.height - 3)
        self._live.update(Text("\n".join(text.splitlines()[-rows:]), style=style))

    def _clear(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.update("")
            live.stop()

    def _print_block(self, text: str) -> None:
        from rich.markdown import Markdown

        self._clear()
        if text.strip():
            self._console.print(Markdown(text.strip("\n")))

    def note(self, text: str) -> None:
        """See Screen."""
        self._end_thinking()
        self._print_block(self._block)
        self._block = ""
        self._console.print(text, style="dim", markup=False)

    def end(self, note: str = "") -> None:
        """See Screen."""
        self._end_thinking()
        block, self._block = self._block, ""
        self._print_block(block)
        self._clear()
        if note:
            self._console.print(note, style="dim", markup=False)


def _block_end(text: str) -> int:
    """Length of the first complete Markdown block in characters; 0 while it is incomplete.

    A block ends at a blank line outside a code fence, or at a closing fence. A list or table
    without blank lines is one block.
    """
    fenced, at = False, 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            if not fenced and line.endswith("\n"):
                return at
        elif not fenced and not line.strip() and line.endswith("\n") and at > len(line):
            return at
    return 0


def screen_for(*, plain: bool, thinking: str | None) -> Screen:
    """Choose the screen for stdout: Markdown on a terminal unless `plain`."""
    if plain or not sys.stdout.isatty():
        return PlainScreen(thinking or "hide")
    return RichScreen(thinking or "fold")
