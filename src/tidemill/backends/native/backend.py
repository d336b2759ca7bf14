"""NativeBackend: `backends.base.Backend` over the C++ core."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import (
    BackendMemory,
    BackendOptions,
    BackendProfile,
    CandidateArrays,
    ExportedBlocks,
    Int32,
    LogprobArrays,
    MachineRates,
    PackedWeights,
    StepInputs,
    StepOutputs,
    UInt8,
)
from tidemill.backends.native import _core, paging
from tidemill.backends.native.adapters import AdapterLoader
from tidemill.backends.native.layout import read_in_file
from tidemill.backends.native.packing import Packing
from tidemill.backends.native.weights import KV_TYPES, ModelBuilder, check_spec, check_tensors
from tidemill.base.errors import (
    ErrorKind,
    LoadCallback,
    TidemillError,
    bad_request,
    config_error,
    unsupported,
)
from tidemill.base.free_memory import free_memory
from tidemill.models import tensors as names
from tidemill.models.adapters import Changes
from tidemill.models.kv_types import scales_shape
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import TensorMap

_NUMPY_TYPES = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "int8": np.int8,
    "int4": np.uint8,
}
_COMPUTE_TYPES = ("float32", "bfloat16")


class NativeHandle:
    """See backends.base.StepHandle. The GIL is released while `result` waits."""

    def __init__(self, core: _core.Handle) -> None:
        self._core = core
        self._outputs: StepOutputs | None = None

    def set_mask(self, row: int, draft: int, bits: UInt8) -> None:
        """See backends.base.StepHandle."""
        self._core.set_mask(row, draft, np.ascontiguousarray(bits, dtype=np.uint8))

    def done(self, seconds: float = 0.0) -> bool:
        """See backends.base.StepHandle."""
        return self._outputs is not None or self._core.done(seconds)

    def result(self) -> StepOutputs:
        """See backends.base.StepHandle."""
        if self._outputs is None:
            sampled, logprobs, targets, logits, seconds, hidden = self._core.result()
            candidates = self._core.candidates()
            self._outputs = StepOutputs(
                sampled,
                None if logprobs is None else LogprobArrays(*logprobs),
                None if targets is None else LogprobArrays(*targets),
                logits,
                seconds,
                hidden,
                self._core.layer_hidden(),
                None if candidates is None else CandidateArrays(*candidates),
            )
        return self._outputs


class NativeBackend:
    """See backends.base.Backend.

    The results of a row do not depend on the other rows of its batch, on the prefill chunks, or on
    the number of threads: they are equal bit for bit, per build and instruction set.

    A step is in flight until its result is taken or its handle is dropped.
    """

    slices_layers = True

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: TensorMap,
        options: BackendOptions,
        packed: PackedWeights | None = None,
    ) -> None:
        if options.dtype not in _COMPUTE_TYPES:
            raise config_error("dtype", f"dtype must be float32 or bfloat16, got {options.dtype!r}")
        if options.kv_dtype not in KV_TYPES:
            raise config_error("kv_dtype", f"kv_dtype must be one of {', '.join(KV_TYPES)}")
        if options.device != "cpu":
            raise unsupported("device", "the native backend runs on cpu; use --backend torch")
        check_spec(spec)
        check_tensors(spec, tensors)
        self.spec = spec
        self.options = options
        self._part = spec
        self.verifies_drafts = spec.causal
        self._core = _core.Executor(options.threads, options.isa or "", options.dtype == "float32")
        self._packed = packed
        self._kv_dtype = options.kv_dtype
        if (shard := options.shard) is not None:
            from tidemill.backends.native.shards import PartOfTensors, check_splits, part_of_spec

            spec = self.spec = replace(spec, ranks=shard.ranks)
            check_splits(spec, shard.ranks)
            self._core.join(shard.descriptor, shard.rank, shard.ranks)
            in_file = read_in_file(names.EMBED, tensors[names.EMBED], spec, options.quantize)
            tensors = PartOfTensors(spec, tensors, shard, packs_embedding=not in_file)
            self._part = part_of_spec(spec, shard)
        if (stage := options.stage) is not None:
            from tidemill.backends.native.stages import TensorsOfStage, check_stages

            check_stages(spec)
            self._core.join_chain(stage.receives, stage.sends, stage.index, stage.stages)
            tensors = TensorsOfStage(tensors, stage)
            self.slices_layers = False
        builder = ModelBuilder(self._core, self._part, tensors, options, packed)
        builder.build()
        self._rows, self._kept = builder.rows, builder.kept
        self._adapters = AdapterLoader(self._core, spec, builder.matrices, builder.vectors)
        self._matrices = self._core.packed()
        self._is_mapped = builder.kept is not None  # `_matrices`, from a file
        self._allocated: tuple[list[int], int] = ([], 0)
        self._limit: int | None = None
        self._packing = Packing(self._core, builder.unpacked)
        self._packing.when_loaded(lambda error: builder.keep() if error is None else None)
        self._groups = spec.cache_groups()

    def stop_loading(self) -> None:
        """See backends.base.Backend."""
        self._packing.stop()

    def memory(self) -> BackendMemory:
        """See backends.base.Backend. An embedding that is read from its file counts as weight
        bytes."""
        core = self._core
        mapped = sum(array.nbytes for array in self._rows)
        mapped += self._matrices.nbytes if self._is_mapped else 0
        return BackendMemory(
            *(core.weight_bytes(), core.kv_bytes(), core.isa, "cpu"),
            mapped_bytes=mapped,
            promised_bytes=core.unpacked_bytes(),
        )

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See backends.base.Backend. Packing starts in the constructor, in the order of need."""
        return self._packing.when_loaded(on_loaded)

    def allocate_cache(
        self,
        num_blocks: tuple[int, ...],
        kv_dtype: str | None = None,
        states: int = 2,
        *,
        unchecked: bool = False,
    ) -> None:
        """See backends.base.Backend. Replaces an earlier cache; no step may be in flight."""
        kv_dtype = kv_dtype or self.options.kv_dtype
        if kv_dtype != self._kv_dtype:
            self._core.retype_cache(KV_TYPES[kv_dtype])
            self._kv_dtype = kv_dtype
        if len(num_blocks) != len(self._groups):
            raise TidemillError(
                ErrorKind.INTERNAL,
                f"the model has {len(self._groups)} cache groups, got {len(num_blocks)} counts",
            )
        need = sum(n * self._core.block_bytes(g) for g, n in enumerate(num_blocks))
        need += states * self._core.state_bytes()
        promised = self._core.unpacked_bytes()
        free = free_memory() - promised + self._core.kv_bytes()
        if need > free and not unchecked:
            raise TidemillError(
                ErrorKind.RESOURCE,
                f"the KV cache of {list(num_blocks)} blocks needs {need / 2**30:.2f} GiB and "
                f"{free / 2**30:.2f} GiB of memory are free: give a smaller --kv-memory, or an "
                "int8 or int4 cache by --kv-dtype",
                param="kv_memory",
            )
        self._core.allocate_cache(list(num_blocks), states)
        self._allocated, self._limit = (list(num_blocks), states), None

    def limit_cache(self, blocks: int) -> None:
        """See backends.base.Backend."""
        self._core.limit_cache(blocks)
        self._limit = blocks

    def empty_cache(self) -> None:
        """See backends.base.Backend."""
        self._core.allocate_cache(*self._allocated)
        if self._limit is not None:
            self._core.limit_cache(self._limit)

    def release_weights(self) -> None:
        """See backends.base.Backend. Vectors, a thousandth of a model, stay.

        Weights that were packed in this process lie in anonymous memory: a file that holds the same
        bytes is mapped in its place.
        """
        if not self._is_mapped:
            self._map_matrices()
        for array in (self._matrices, *filter(paging.in_file, self._rows)):
            paging.release(array)

    def _map_matrices(self) -> None:
        if not self._packing.ended:
            raise TidemillError(
                ErrorKind.UNAVAILABLE, "the weights are still being loaded", retryable=True
            )
        if self._packed is None:
            raise unsupported(
                "packed_cache",
                "the weights are only in memory, not in a file that could be mapped instead: use a "
                "packed_cache, or unload the model",
            )
        descriptor, offset = self._packed.open_copy(self._matrices)
        try:
            paging.map_file_over(self._matrices, descriptor, offset)
        finally:
            os.close(descriptor)
        self._is_mapped = True

    def restore_weights(self) -> None:
        """See backends.base.Backend. Rows of an embedding in its own file are read when a step
        needs them."""
        paging.populate(self._matrices)

    def submit(self, inputs: StepInputs) -> NativeHandle:
        """See backends.base.Backend. Arrays are copied before it returns.

        Raises TidemillError: INTERNAL for inconsistent inputs and for a third step in flight,
        UNAVAILABLE when closed.
        """
        return NativeHandle(self._core.submit(inputs, self.spec.vocab_size))

    def load_adapter(self, slot: int, changes: Changes) -> int:
        """See backends.base.Backend. Values are kept as bfloat16, as float32 where the backend
        computes in it."""
        return self._adapters.load(slot, changes)

    def unload_adapter(self, slot: int) -> None:
        """See backends.base.Backend. Steps in flight keep what they were submitted with."""
        self._core.load_adapter(slot, None)

    def copy_blocks(self, group: int, pairs: Int32) -> None:
        """See backends.base.Backend."""
        self._core.copy_blocks(group, np.ascontiguousarray(pairs, dtype=np.int32))

    def give_back_blocks(self, group: int, blocks: Int32) -> None:
        """See backends.base.Backend. Whole huge pages (2 MiB of a layer) are given back."""
        self._core.give_back_blocks(group, np.ascontiguousarray(blocks, dtype=np.int32))

    def export_blocks(self, group: int, blocks: Int32) -> ExportedBlocks:
        """See backends.base.Backend."""
        blocks = np.ascontiguousarray(blocks, dtype=np.int32)
        kv_dtype = self.options.kv_dtype
        out = ExportedBlocks(kv_dtype, [], [])
        for layer in self._groups[group].layers:
            shapes = self._portable_shapes(layer, len(blocks))
            keys, values = (np.empty(shape, _NUMPY_TYPES[kv_dtype]) for shape in shapes)
            scale_shapes = self._scale_shapes(shapes)
            key_scales, value_scales = (np.empty(s or (0,), np.float32) for s in scale_shapes)
            self._core.export_layer(
                layer, blocks, _bytes(keys), _bytes(values), key_scales.ravel(),
                value_scales.ravel(),
            )  # fmt: skip
            out.keys.append(keys)
            out.values.append(values)
            if scale_shapes[0] is not None:
                out.key_scales.append(key_scales)
                out.value_scales.append(value_scales)
        return out

    def import_blocks(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """See backends.base.Backend. Raises BAD_REQUEST when the type or a shape differs."""
        if data.kv_dtype != self.options.kv_dtype:
            raise bad_request(
                "kv_dtype",
                f"blocks of KV type {data.kv_dtype} do not fit a cache of {self.options.kv_dtype}",
            )
        blocks = np.ascontiguousarray(blocks, dtype=np.int32)
        dtype, none = _NUMPY_TYPES[data.kv_dtype], np.zeros(0, np.float32)
        for i, layer in enumerate(self._groups[group].layers):
            shapes = self._portable_shapes(layer, len(blocks))
            arrays = [np.ascontiguousarray(a[i]) for a in (data.keys, data.values)]
            for name, array, shape in zip(("keys", "values"), arrays, shapes, strict=True):
                if array.shape != shape or array.dtype != dtype:
                    raise bad_request(
                        name, f"layer {layer}: blocks must be {data.kv_dtype} {shape}"
                    )
            scales = [none, none]
            if self._scale_shapes(shapes)[0] is not None:
                pairs = (data.key_scales, data.value_scales)
                scales = [np.ascontiguousarray(s[i], dtype=np.float32).ravel() for s in pairs]
            self._core.import_layer(layer, blocks, _bytes(arrays[0]), _bytes(arrays[1]), *scales)

    def block_bytes(self) -> tuple[int, ...]:
        """See backends.base.Backend. One piece per block, layer after layer."""
        return tuple(self._core.block_bytes(group) for group in range(len(self._groups)))

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None:
        """See backends.base.Backend. The GIL is released."""
        self._core.read_blocks(group, blocks, out)

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None:
        """See backends.base.Backend. The GIL is released."""
        self._core.write_blocks(group, blocks, data)

    def state_bytes(self) -> int:
        """See backends.base.Backend."""
        return int(self._core.state_bytes())

    def read_state(self, state: int, at: int, out: UInt8) -> None:
        """See backends.base.Backend. The GIL is released."""
        self._core.read_state(state, at, out)

    def write_state(self, state: int, at: int, data: UInt8, tokens: int) -> None:
        """See backends.base.Backend. The GIL is released."""
        self._core.write_state(state, at, data, tokens)

    def checksum(self, data: UInt8) -> int:
        """See backends.base.Backend. At about memory speed; the GIL is released."""
        return _core.checksum(data, 1)

    def _portable_shapes(self, layer: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of K and of V."""
        mixer = self._part.attentions()[layer]
        common = (count, self.options.block_size, mixer.kv_heads)
        return (*common, mixer.head_dim), (*common, mixer.v_dim)

    def _scale_shapes(
        self, shapes: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Shapes of the scales of K and of V for such shapes; None for a type without scales."""
        kv_dtype = self.options.kv_dtype
        key, value = (
            scales_shape(kv_dtype, shape[-1], key=is_key)
            for shape, is_key in zip(shapes, (True, False), strict=True)
        )
        return (
            None if key is None else (*shapes[0][:3], *key),
            None if value is None else (*shapes[1][:3], *value),
        )

    def start_profile(self, events: int) -> None:
        """See backends.base.Backend."""
        self._core.start_profile(events)

    def end_profile(self) -> BackendProfile | None:
        """See backends.base.Backend."""
        from tidemill.backends.native.profiling import read_profile

        found = self._core.end_profile()
        return None if found is None else read_profile(found)

    def machine_rates(self) -> MachineRates | None:
        """See backends.base.Backend."""
        from tidemill.backends.native.profiling import machine_rates

        return machine_rates(self._core)

    def progress(self) -> int:
        """See backends.base.Backend. Counts tiles finished since the start, by packing and by
        steps."""
        return self._core.progress() + self._packing.progress()

    def fail_group(self) -> None:
        """End the steps of the whole group that this backend's shard belongs to. On any thread."""
        self._core.fail_group()

    def close(self) -> None:
        """See backends.base.Backend. Returns when the running step and packing have ended."""
        self._packing.stop()
        self._packing.wait()
        if self._packed is not None:
            self._packed.close()
        self._core.close()


def _bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
