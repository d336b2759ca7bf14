"""A paged KV cache in torch tensors."""

from __future__ import annotations

import numpy as np
import torch

from tidemill.backends.base import ExportedBlocks, Int32, UInt8
from tidemill.backends.torch.kv_codec import Codec, codec
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.spec import DecoderSpec


class _Paged:
    """K or V of one layer: the elements and scales of its codec, per slot and head."""

    def __init__(self, slots: int, heads: int, held: Codec, device: str) -> None:
        self.codec = held
        self.data = torch.zeros(slots, heads, held.held, dtype=held.dtype, device=device)
        self.scale = (
            None
            if held.scales is None
            else torch.zeros(slots, heads, *held.scales, dtype=held.scale_dtype, device=device)
        )

    def write(self, slots: torch.Tensor, x: torch.Tensor) -> None:
        self.data[slots], scale = self.codec.encode(x)
        if self.scale is not None and scale is not None:
            self.scale[slots] = scale

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """float32 [count, heads, dim]."""
        return self.codec.decode(
            self.data[slots], None if self.scale is None else self.scale[slots]
        )


class PagedCache:
    """The KV cache of all layers, in the block geometry of `spec.cache_groups()`."""

    def __init__(
        self, spec: DecoderSpec, num_blocks: tuple[int, ...], block_size: int, kv_dtype: str,
        device: str,
    ) -> None:  # fmt: skip
        self._block_size = block_size
        self._kv_dtype = kv_dtype
        self.groups = spec.cache_groups()
        self.group_of = {layer: g for g, group in enumerate(self.groups) for layer in group.layers}
        self._keys: dict[int, _Paged] = {}
        self._values: dict[int, _Paged] = {}
        mixers = spec.cached()
        try:
            for layer, g in self.group_of.items():
                mixer = mixers[layer]
                size = (num_blocks[g] * block_size, mixer.kv_heads)
                for paged, width, key in (
                    (self._keys, mixer.head_dim, True),
                    (self._values, mixer.v_dim, False),
                ):
                    paged[layer] = _Paged(*size, codec(kv_dtype, width, key=key), device)
        except RuntimeError as error:  # torch reports exhausted memory so
            raise TidemillError(
                ErrorKind.RESOURCE,
                f"the KV cache of {num_blocks} blocks does not fit into memory; give a smaller "
                "--kv-memory",
                param="kv_memory",
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        paged = (*self._keys.values(), *self._values.values())
        tensors = [t for p in paged for t in (p.data, p.scale) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store K and V ([count, kv_heads, their width]) of tokens at flat slots."""
        self._keys[layer].write(slots, k)
        self._values[layer].write(slots, v)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V at flat slots as float32, with the cache's rounding."""
        return self._keys[layer].read(slots), self._values[layer].read(slots)

    def _slots(self, blocks: torch.Tensor) -> torch.Tensor:
        inside = torch.arange(self._block_size, device=blocks.device)
        return (blocks[:, None] * self._block_size + inside).flatten()

    def copy(self, group: int, pairs: Int32) -> None:
        """Copy blocks (source, target), in order."""
        for source, target in pairs.tolist():
            for layer in self.groups[group].layers:
                for paged in (self._keys[layer], self._values[layer]):
                    for t in (paged.data, paged.scale):
                        if t is not None:
                            size = self._block_size
                            t[target * size : (target + 1) * size] = t[
                                source * size : (source + 1) * size
                            ]

    def export(self, group: int, blocks: Int32) -> ExportedBlocks:
        """Read blocks out; see `ExportedBlocks`."""
        exported = ExportedBlocks(self._kv_dtype, [], [])
        shape = (len(blocks), self._block_size)
        for layer in self.groups[group].layers:
            parts = (
                (self._keys[layer], exported.keys, exported.key_scales),
                (self._values[layer], exported.values, exported.value_scales),
            )
            for paged, data_out, scale_out in parts:
                slots = self._slots(torch.as_tensor(blocks, device=paged.data.device).long())
                data = paged.codec.portable(paged.data[slots].cpu())
                data_out.append(data.numpy().reshape(*shape, *data.shape[1:]))
                if paged.scale is not None:
                    scale = paged.scale[slots].float().cpu().numpy()
                    scale_out.append(scale.reshape(*shape, *scale.shape[1:]))
        return exported

    def restore(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """Write blocks exported earlier.

        Raises TidemillError when they were exported from a cache of another type.
        """
        if data.kv_dtype != self._kv_dtype:
            raise TidemillError(
                ErrorKind.BAD_REQUEST,
                f"blocks of KV type {data.kv_dtype} do not fit a cache of {self._kv_dtype}",
            )
        for i, layer in enumerate(self.groups[group].layers):
            parts = (
                (self._keys[layer], data.keys, data.key_scales),
                (self._values[layer], data.values, data.value_scales),
            )
            for paged, arrays, scales in parts:
                device = paged.data.device
                slots = self._slots(torch.as_tensor(blocks, device=device).long())
                flat = torch.as_tensor(np.ascontiguousarray(arrays[i])).flatten(0, 1)
                paged.data[slots] = paged.codec.packed(flat).to(device)
                if paged.scale is not None:
                    scale = torch.as_tensor(scales[i]).flatten(0, 1)
                    paged.scale[slots] = scale.to(device, paged.scale.dtype)

    def _tensors(self, group: int) -> list[torch.Tensor]:
        """What a group's layers hold, each [slots, ...]."""
        layers = self.groups[group].layers
        paged = [one for layer in layers for one in (self._keys[layer], self._values[layer])]
        return [t for one in paged for t in (one.data, one.scale) if t is not None]

    def block_bytes(self) -> tuple[int, ...]:
        """See backends.base.Backend."""
        size = self._block_size
        return tuple(
            sum(t[:size].numel() * t.element_size() for t in self._tensors(group))
            for group in range(len(self.groups))
        )

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None:
        """See backends.base.Backend."""
        at, size = 0, self._block_size
        for block in blocks.tolist():
            for t in self._tensors(group):
                part = t[block * size : (block + 1) * size].contiguous().view(torch.uint8)
                out[at : at + part.numel()] = part.flatten().cpu().numpy()
                at += part.numel()

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None:
        """See backends.base.Backend."""
        at, size = 0, self._block_size
        for block in blocks.tolist():
            for t in self._tensors(group):
                part = t[block * size : (block + 1) * size].view(torch.uint8)
                piece = torch.from_numpy(data[at : at + part.numel()].copy())
                part.copy_(piece.view(part.shape))
                at += part.numel()
