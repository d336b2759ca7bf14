"""How much of the KV cache a beam search may take."""

from __future__ import annotations


def beam_blocks(block_size: int, width: int, shared: int, known: int) -> int:
    """Blocks of `width` beams of `known` tokens that share the blocks of their first `shared`
    tokens alone."""
    common = shared // block_size
    return common + width * (-(-known // block_size) - common)


def longest_beam(block_size: int, blocks: int, width: int, shared: int) -> int:
    """Most tokens of each of `width` beams that fit into so many blocks; see `beam_blocks`."""
    common = shared // block_size
    return block_size * (common + max(0, blocks - common) // width)
