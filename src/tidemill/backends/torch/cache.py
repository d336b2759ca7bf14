"""A paged KV cache in torch tensors."""

from __future__ import annotations

import numpy as np
import torch

from tidemill.backends.base import ExportedBlocks, Int32
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.spec import DecoderSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


class _Paged:
    """K or V of one layer: [blocks * block_size, kv_heads, head_dim], with scales for int8.

    int8 values are round(x / scale) with scale = max|x| / 127 per token and head.
    """

    def __init__(self, slots: int, heads: int, dim: int, kv_dtype: str, device: str) -> None:
        self.data = torch.zeros(slots, heads, dim, dtype=_DTYPES[kv_dtype], device=device)
        self.scale = (
            torch.zeros(slots, heads, dtype=torch.float32, device=device)
            if kv_dtype == "int8"
            else None
        )

    def write(self, slots: torch.Tensor, x: torch.Tensor) -> None:
        if self.scale is None:
            self.data[slots] = x.to(self.data.dtype)
            return
        values = x.float()
        scale = values.abs().amax(dim=-1) / 127.0
        inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
        self.data[slots] = (values * inverse[..., None]).round().clamp(-127, 127).to(torch.int8)
        self.scale[slots] = scale

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """float32 [count, heads, dim]."""
        values = self.data[slots].float()
        return values if self.scale is None else values * self.scale[slots][..., None]


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
        mixers = spec.attentions()
        try:
            for layer, g in self.group_of.items():
                mixer = mixers[layer]
                size = (num_blocks[g] * block_size, mixer.kv_heads)
                self._keys[layer] = _Paged(*size, mixer.head_dim, kv_dtype, device)
                self._values[layer] = _Paged(*size, mixer.v_dim, kv_dtype, device)
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
        """K and V at flat slots as float32, as the cache rounded them."""
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
                data = paged.data[slots].cpu()
                bits = data.view(torch.uint16) if data.dtype == torch.bfloat16 else data
                data_out.append(bits.numpy().reshape(*shape, *data.shape[1:]))
                if paged.scale is not None:
                    scale_out.append(paged.scale[slots].cpu().numpy().reshape(*shape, -1))
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
                if paged.data.dtype == torch.bfloat16:
                    flat = flat.view(torch.bfloat16)
                paged.data[slots] = flat.to(device)
                if paged.scale is not None:
                    paged.scale[slots] = torch.as_tensor(scales[i]).flatten(0, 1).to(device)
