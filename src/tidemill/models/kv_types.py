"""Storage of one token's K or V of one KV head, by the cache's element type."""

from __future__ import annotations

INT4_GROUP = 32
"""Values of K per scale and minimum in an int4 cache (``csrc/kernels/kernels.h``, kKvGroup)."""

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def scales_shape(kv_dtype: str, width: int, *, key: bool) -> tuple[int, ...] | None:
    """Shape of the float32 scales that exported blocks carry per token and KV head.

    Args:
        kv_dtype: ``float32``, ``bfloat16``, ``int8`` or ``int4``.
        width: values of the vector.
        key: whether the vector is a K.

    Returns:
        None without scales; () for int8; (groups, 2) for int4: scale and minimum of each group.
    """
    if kv_dtype == "int4":
        return (-(-width // INT4_GROUP) if key else 1, 2)
    return () if kv_dtype == "int8" else None


def vector_bytes(kv_dtype: str, width: int, *, key: bool) -> int:
    """Bytes of one vector with its scales: int8 has a float32, int4 a pair of bfloat16 per group.

    Arguments as for `scales_shape`.
    """
    if kv_dtype != "int4":
        return width * _ELEMENT_BYTES[kv_dtype] + (4 if kv_dtype == "int8" else 0)
    groups = -(-width // INT4_GROUP)
    return width // 2 + 4 * groups if key else 16 * groups + 4
