"""How many KV blocks fit a number of bytes."""

from __future__ import annotations

from tidemill.base.errors import ErrorKind, TidemillError


def blocks_from_bytes(budget: int, bytes_per_token: int, block_size: int) -> int:
    """Blocks that `budget` bytes hold.

    Args:
        budget: bytes for the KV cache.
        bytes_per_token: KV bytes of one token over all layers.
        block_size: tokens per block.

    Raises:
        TidemillError: kind RESOURCE when not even one block fits.
    """
    per_block = bytes_per_token * block_size
    count = budget // per_block
    if count < 1:
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"one KV block takes {per_block} bytes and only {budget} are there for the cache; "
            "free memory, use a smaller model, --kv-dtype int8 or a smaller --block-size",
            param="kv_memory",
        )
    return count


def useful_blocks(max_num_seqs: int, max_model_len: int, block_size: int) -> int:
    """Blocks that running sequences can use at most: more would never be filled by them."""
    return max_num_seqs * -(-max_model_len // block_size)
