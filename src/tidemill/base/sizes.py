"""Sizes in bytes as people write them."""

from __future__ import annotations

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_NAMES = ("TiB", "GiB", "MiB", "KiB")


def parse_size(text: str) -> int:
    """``4GiB``, ``512M``, ``1.5g`` or plain bytes to a number of bytes; units are powers of 1024.

    Raises:
        ValueError: not a size, or not above 0; without a message.
    """
    stripped = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = stripped[-1:] if stripped[-1:].isalpha() else ""
    try:
        count = int(float(stripped.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError from None
    if count < 1:
        raise ValueError
    return count


def exact_size(count: int) -> str:
    """The shortest text that `parse_size` reads as `count`: ``4GiB``, else plain bytes."""
    for power, name in zip((40, 30, 20, 10), _NAMES, strict=True):
        if count and count % 2**power == 0:
            return f"{count // 2**power}{name}"
    return str(count)
