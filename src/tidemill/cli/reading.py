"""How `tidemill run` reads a turn: a line, a pasted text, or lines between triple quotes."""

from __future__ import annotations

import contextlib
import re
import sys

QUOTES = '"""'

# A text, or the argument of a command, that begins with triple quotes.
_QUOTED = re.compile(r'\s*((?:/[a-z]+\s+(?:[a-z]+\s+)?)?)"""', re.ASCII)


def edit_lines() -> None:
    """Let `input` edit lines, and take a paste of several as one (bracketed paste)."""
    with contextlib.suppress(ImportError):
        import readline

        # CPython turns it off for its own prompt.
        if sys.stdin.isatty() and "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")


def read_turn() -> str | None:
    r"""What the person typed, None at the end of input and empty after Ctrl-C.

    A line that ends in a backslash goes on in the next. Triple quotes at the beginning of a text or
    of a command's argument open one that goes on to the next ones; they are not part of it.
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
    """Lines as one text, without backslashes at their ends or the quotes around them."""
    text = "\n".join(lines)
    if (opened := _QUOTED.match(text)) is None:
        return "\n".join([*(line.removesuffix("\\") for line in lines[:-1]), lines[-1]])
    inner, _, rest = text[opened.end() :].partition(QUOTES)
    return opened[1] + inner.strip("\n") + rest
