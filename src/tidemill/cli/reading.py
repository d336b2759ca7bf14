"""Input of `tidemill run`: a line, a pasted text, or lines between triple quotes."""

from __future__ import annotations

import contextlib
import re
import sys

QUOTES = '"""'

# A text or a command's argument that starts with triple quotes.
_QUOTED = re.compile(r'\s*((?:/[a-z]+\s+(?:[a-z]+\s+)?)?)"""', re.ASCII)


def edit_lines() -> None:
    """Enable line editing in `input` and multi-line paste (bracketed paste)."""
    with contextlib.suppress(ImportError):
        import readline

        # CPython disables bracketed paste for its own prompt.
        if sys.stdin.isatty() and "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")


def read_turn() -> str | None:
    r"""Read one turn; None at end of input, empty after Ctrl-C.

    A trailing backslash continues the line. Triple quotes at the start of a text or of a command's
    argument open a multi-line text that ends at the next triple quotes; the quotes are removed.
    """
    lines: list[str] = []
    while True:
        try:
            line = input("... " if lines else ">>> ")
        except EOFError:
            print()
            return _joined(lines) if lines else None
        except KeyboardInterrupt:
            print("\n(/exit leaves)")
            return ""
        lines.append(line)
        text = "\n".join(lines)
        if (opened := _QUOTED.match(text)) is not None:
            if QUOTES in text[opened.end() :]:
                return _joined(lines)
        elif not line.endswith("\\"):
            return _joined(lines)


def _joined(lines: list[str]) -> str:
    """Join the lines without continuation backslashes and surrounding triple quotes."""
    text = "\n".join(lines)
    if (opened := _QUOTED.match(text)) is None:
        return "\n".join([*(line.removesuffix("\\") for line in lines[:-1]), lines[-1]])
    inner, _, rest = text[opened.end() :].partition(QUOTES)
    return opened[1] + inner.strip("\n") + rest
