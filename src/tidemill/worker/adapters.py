"""AdapterLoader: adapters from files into a backend's slots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tidemill.backends.base import MAX_ADAPTERS, Backend, Float32
from tidemill.base.errors import ErrorKind, TidemillError, unsupported
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import AdapterUse
from tidemill.contract.wire import AdapterInfo
from tidemill.models import tensors as names
from tidemill.models.adapters import Adapter, Changes, Product
from tidemill.models.quantization import to_float32
from tidemill.worker.machine import available_memory
from tidemill.worker.prefixes import PrefixBlocks, blocks_of
from tidemill.worker.prefixes import nbytes as prefix_bytes

if TYPE_CHECKING:
    from tidemill.loading.parts import ModelFiles

_SHARE_OF_FREE_MEMORY = 8


class AdapterLoader:
    """Reads adapters, verifies them against the base model's files and loads them.

    Args:
        backend: the base model's.
        config: of the engine.

    Attributes:
        soft_prompts: float32 [vectors, hidden_size] of the prompt adapters, by slot; the backend
            knows nothing of these slots. One of prefix tuning has none of these vectors.
        prefixes: keys and values of adapters of prefix tuning, by slot.
    """

    def __init__(self, backend: Backend, config: EngineConfig) -> None:
        self._backend = backend
        self._config = config
        self._base: ModelFiles | None = None  # opened for the first adapter
        self.soft_prompts: dict[int, Float32] = {}
        self.prefixes: dict[int, PrefixBlocks] = {}

    def room(self) -> tuple[int, int]:
        """See `Executor.adapter_room`."""
        free = available_memory() // _SHARE_OF_FREE_MEMORY
        return self._config.adapter_memory or free, MAX_ADAPTERS

    def load(self, slot: int, uses: tuple[AdapterUse, ...]) -> AdapterInfo:
        """See `Executor.load_adapters`."""
        if self._config.tensor_parallel > 1 or self._config.stages > 1:
            raise unsupported(
                "adapter",
                "adapters need a model in one process: no tensor_parallel, no pipeline_parallel",
            )
        adapters = [self._read(use) for use in uses]
        if any(adapter.of_prompt for adapter in adapters):
            return self._load_prompt(slot, adapters, uses)
        changes = [a.changes(self._weight) for a in adapters]
        if len(uses) > 1 or uses[0].scale != 1.0:
            changes = [_summed(changes, adapters, uses)]
        nbytes = self._backend.load_adapter(slot - 1, changes[0])
        [first, *_] = adapters
        return AdapterInfo(
            digest=first.digest.hex(),
            rank=max(adapter.rank for adapter in adapters),
            nbytes=nbytes,
            targets=len(first.targets),
            invocation=first.invocation or (),
        )

    def unload(self, slot: int) -> None:
        """See `Executor.unload_adapters`."""
        self.prefixes.pop(slot, None)
        if self.soft_prompts.pop(slot, None) is None:
            self._backend.unload_adapter(slot - 1)

    def _load_prompt(
        self, slot: int, adapters: list[Adapter], uses: tuple[AdapterUse, ...]
    ) -> AdapterInfo:
        """Load a prompt adapter, which is one that is used alone."""
        for adapter, use in zip(adapters, uses, strict=True):
            if adapter.of_prompt and (len(uses) > 1 or use.scale != 1.0):
                raise _no_sum(use, "it is a prompt adapter")
        [adapter] = adapters
        if (prefix := adapter.prefix) is not None:
            blocks = blocks_of(prefix, self._backend)
            self.prefixes[slot] = blocks
            self.soft_prompts[slot] = np.zeros((0, self._backend.spec.hidden_size), np.float32)
            taken, count = prefix_bytes(blocks), prefix.count
        else:
            assert adapter.vectors is not None
            self.soft_prompts[slot] = adapter.vectors
            taken, count = adapter.vectors.nbytes, len(adapter.vectors)
        return AdapterInfo(
            digest=adapter.digest.hex(),
            nbytes=taken,
            virtual_tokens=count,
            prefix=prefix is not None,
        )

    def _read(self, use: AdapterUse) -> Adapter:
        from tidemill.loading.adapters.source import open_adapter  # few engines need it
        from tidemill.loading.checkpoint import open_model

        if self._base is None:
            self._base = open_model(self._config.model, self._config.backend)
        adapter = open_adapter(Path(use.path), self._base)
        if use.digest and adapter.digest.hex() != use.digest:
            raise TidemillError(
                ErrorKind.MODEL_FILE,
                f"the files of the adapter {use.name!r} have changed since it was loaded: load it "
                "again under its name",
                param="adapter",
            )
        return adapter

    def _weight(self, name: str) -> Float32:
        """The base's tensor, which DoRA needs."""
        assert self._base is not None
        tensors = self._base.tensors
        if name == names.LM_HEAD and name not in tensors:
            name = names.EMBED
        return to_float32(tensors[name])


def _summed(
    changes: list[Changes], adapters: list[Adapter], uses: tuple[AdapterUse, ...]
) -> Changes:
    """The sum of changes, each times its scale.

    Raises:
        TidemillError: UNSUPPORTED for changes that are no sums: DoRA, replaced tensors.
    """
    pairs: dict[str, list[Product]] = {}
    added: dict[str, Float32] = {}
    for change, adapter, use in zip(changes, adapters, uses, strict=True):
        for name, product in change.products.items():
            if product.gain is not None or product.input_gain is not None:
                raise _no_sum(use, "it has magnitudes (DoRA)")
            pairs.setdefault(name, []).append(replace(product, scale=product.scale * use.scale))
        if change.replaced:
            raise _no_sum(use, f"it replaces {next(iter(change.replaced))}")
        if adapter.invocation:
            raise _no_sum(use, "it is activated by tokens")
        for name, vector in change.added.items():
            part = vector * np.float32(use.scale)
            added[name] = added[name] + part if name in added else part
    return Changes({name: _stacked(parts) for name, parts in pairs.items()}, {}, added)


def _stacked(parts: list[Product]) -> Product:
    """Several products of one matrix as one of the sum of their ranks."""
    if len(parts) == 1:
        return parts[0]
    a = np.concatenate([part.a for part in parts])
    b = np.concatenate([part.b * np.float32(part.scale) for part in parts], axis=1)
    return Product(a, b, 1.0)


def _no_sum(use: AdapterUse, why: str) -> TidemillError:
    return unsupported(
        "lora",
        f"the adapter {use.name!r} is neither scaled nor added to others: {why}; use it alone and "
        "with scale 1",
    )
