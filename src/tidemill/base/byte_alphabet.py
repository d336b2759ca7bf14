"""The characters by which byte-level vocabularies write bytes."""

from __future__ import annotations


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: character -> byte.

    Source: the byte encoder of Radford et al. 2019; bytes that are printable Latin-1 stand for
    themselves, the others are numbered from U+0100 in order.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in kept}
    moved = (byte for byte in range(256) if byte not in set(kept))
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(moved)})
    return alphabet
