"""Encodings of vectors in a torch KV cache: one class per kind of element type."""

from __future__ import annotations

from typing import Protocol

import torch

from tidemill.backends.torch.place import DTYPES
from tidemill.models.kv_types import INT4_GROUP


class Codec(Protocol):
    """Encodes float32 vectors [count, heads, width] for the cache, and decodes them.

    Attributes:
        dtype: type of the stored elements.
        held: elements stored per vector.
        scales: shape of the scales per vector; None without scales.
        scale_dtype: type of the scales.
    """

    dtype: torch.dtype
    held: int
    scales: tuple[int, ...] | None
    scale_dtype: torch.dtype

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Elements and scales of vectors."""
        ...

    def decode(self, data: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """float32 values of elements and scales."""
        ...

    def portable(self, data: torch.Tensor) -> torch.Tensor:
        """Elements as `backends.base.ExportedBlocks` carries them, [..., width]."""
        ...

    def packed(self, data: torch.Tensor) -> torch.Tensor:
        """The stored form of elements returned by `portable`."""
        ...


class FloatCodec:
    """float32 or bfloat16."""

    scales: tuple[int, ...] | None = None
    scale_dtype = torch.float32

    def __init__(self, dtype: torch.dtype, width: int) -> None:
        self.dtype = dtype
        self.held = width

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Codec`."""
        return x.to(self.dtype), None

    def decode(self, data: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """See `Codec`."""
        return data.float()

    def portable(self, data: torch.Tensor) -> torch.Tensor:
        """See `Codec`: bfloat16 as its bits."""
        return data.view(torch.uint16) if data.dtype == torch.bfloat16 else data

    def packed(self, data: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return data.view(torch.bfloat16) if self.dtype == torch.bfloat16 else data


class Int8Codec:
    """round(x / scale) with scale = max|x| / 127 per vector."""

    dtype = torch.int8
    scales: tuple[int, ...] | None = ()
    scale_dtype = torch.float32

    def __init__(self, width: int) -> None:
        self.held = width

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Codec`."""
        values = x.float()
        scale = values.abs().amax(dim=-1) / 127.0
        inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
        return (values * inverse[..., None]).round().clamp(-127, 127).to(torch.int8), scale

    def decode(self, data: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """See `Codec`."""
        assert scale is not None
        return data.float() * scale[..., None]

    def portable(self, data: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return data

    def packed(self, data: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return data


class Int4Codec:
    """round((x - minimum) / scale), 0 to 15, two per byte; scale and minimum per group in bfloat16,
    the minimum rounded down and the scale up, so that no value is cut off.

    K has groups of 32 values, V is one group.
    """

    dtype = torch.uint8
    scale_dtype = torch.bfloat16

    def __init__(self, width: int, *, key: bool) -> None:
        self._width = width
        self._group = INT4_GROUP if key else width
        self.held = -(-width // 2)
        self._groups = -(-width // self._group)
        self.scales: tuple[int, ...] | None = (self._groups, 2)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Codec`."""
        values = x.float()
        spare = self._groups * self._group - self._width
        # Padding with the group's last value moves neither end of the last group's range.
        padded = torch.cat([values, values[..., -1:].expand(*values.shape[:-1], spare)], dim=-1)
        groups = padded.reshape(*values.shape[:-1], self._groups, self._group)
        minimum = _bfloat16_below(groups.amin(dim=-1))
        scale = -_bfloat16_below(-(groups.amax(dim=-1) - minimum) / 15.0)
        inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
        codes = ((groups - minimum[..., None]) * inverse[..., None]).round().clamp(0, 15)
        flat = codes.to(torch.uint8).flatten(-2)[..., : self._width]
        return self.packed(flat), torch.stack([scale, minimum], dim=-1).to(torch.bfloat16)

    def decode(self, data: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """See `Codec`."""
        assert scale is not None
        wide = scale.float().repeat_interleave(self._group, dim=-2)[..., : self._width, :]
        return self.portable(data).float() * wide[..., 0] + wide[..., 1]

    def portable(self, data: torch.Tensor) -> torch.Tensor:
        """See `Codec`: one byte per value."""
        return torch.stack([data & 15, data >> 4], dim=-1).flatten(-2)[..., : self._width]

    def packed(self, data: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        even, odd = data[..., ::2], data[..., 1::2]
        if odd.shape[-1] < even.shape[-1]:
            odd = torch.cat([odd, torch.zeros_like(even[..., :1])], dim=-1)
        return even | odd << 4


def _bfloat16_below(x: torch.Tensor) -> torch.Tensor:
    """The largest bfloat16 that is not above x, as float32."""
    near = x.to(torch.bfloat16)
    down = torch.nextafter(near, torch.full_like(near, -torch.inf))
    return torch.where(near.float() > x, down, near).float()


def codec(kv_dtype: str, width: int, *, key: bool) -> Codec:
    """The codec of a cache of `kv_dtype` for K (`key`) or V of `width` values."""
    if kv_dtype == "int4":
        return Int4Codec(width, key=key)
    if kv_dtype == "int8":
        return Int8Codec(width)
    return FloatCodec(DTYPES[kv_dtype], width)
