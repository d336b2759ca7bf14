"""A deep cache for llama.cpp out of a shallow one's saved state."""

from __future__ import annotations

import struct

HEADER = 8  # a magic number and the sequence


def tile_state(state: bytes, depth: int) -> bytes:
    """A sequence's saved state (`llama_kv_cache::state_write`) repeated to `depth` tokens.

    The cache of a plain transformer, in its first stream: positions, then K of every layer with a
    row per token, then V in the same way or, when it is kept transposed, with a row per value.
    """
    streams, cells = struct.unpack_from("<II", state, HEADER)
    if cells == 0 or depth % cells:
        raise ValueError(f"{cells} cells cannot be repeated to {depth}")
    times, at = depth // cells, HEADER + 8
    out = [state[:HEADER], struct.pack("<II", streams, depth)]
    out += [struct.pack("<iIi", position, 1, 0) for position in range(depth)]
    at += 12 * cells
    transposed, layers = struct.unpack_from("<II", state, at)
    out.append(state[at : at + 8])
    at += 8
    for part in ("key", "value"):
        for _ in range(layers):
            if part == "value" and transposed:
                element, rows = struct.unpack_from("<II", state, at + 4)
                out.append(state[at : at + 12])
                at += 12
                width = element * cells
            else:
                (width,) = struct.unpack_from("<Q", state, at + 4)
                out.append(state[at : at + 12])
                at, rows, width = at + 12, 1, width * cells
            for _ in range(rows):
                out.append(state[at : at + width] * times)
                at += width
    rest = state[at:]  # the other streams, which are empty
    if rest != bytes(4 * (streams - 1)):
        raise ValueError("the saved state has another layout than this script knows")
    return b"".join([*out, rest])
