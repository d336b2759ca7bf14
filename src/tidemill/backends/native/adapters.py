"""Passes adapters to the core: each change by the core's id of what it changes.

An adapter is filled outside of steps; `Executor.load_adapter` then puts it into a slot at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tidemill.backends.native import _core
from tidemill.base.errors import TidemillError, unsupported
from tidemill.models import tensors as names
from tidemill.models.adapters import Changes, Float32, Product
from tidemill.models.spec import DecoderSpec

# Norms that the core reads by token. Those of recurrent layers and of layers' inputs are not.
_NORM = re.compile(r"(?:embed|final|attn|mlp|attn_post|mlp_post|[qk]|(?:q|kv)_down)_norm$")
_EXPERTS_NORM = re.compile(r"\.mlp\.(?:router|experts|experts_post|shared_post)_norm$")


class AdapterLoader:
    """Loads adapters into the slots of a core.

    Args:
        core: with the model built.
        spec: the model.
        matrices, vectors: the core's ids by canonical name.
    """

    def __init__(
        self,
        core: _core.Executor,
        spec: DecoderSpec,
        matrices: Mapping[str, int],
        vectors: Mapping[str, int],
    ) -> None:
        self._core = core
        self._matrices = {n: i for n, i in matrices.items() if n != names.EMBED}
        if spec.generates and spec.tied_embeddings and names.EMBED in matrices:
            self._matrices[names.LM_HEAD] = matrices[names.EMBED]
        for name in (names.POSITIONS, names.TYPES, names.LAYER_INPUTS):
            self._matrices.pop(name, None)  # rows of these are looked up, not multiplied
        self._vectors = vectors

    def load(self, slot: int, changes: Changes) -> int:
        """See backends.base.Backend.load_adapter."""
        for name in (*changes.products, *changes.replaced, *changes.added):
            self._check(name, low_rank=name in changes.products)
        adapter = self._core.new_adapter()
        if need := _nbytes(changes, wide=self._core.float32_compute):
            adapter.reserve(need)
        for name, product in changes.products.items():
            self._change(adapter, name, product)
        for name, values in changes.replaced.items():
            self._replace(adapter, name, np.ascontiguousarray(values, np.float32))
        for name, values in changes.added.items():
            matrix = self._matrices[_weight_of(name)]
            adapter.shift_product(self._core, matrix, -1, np.ascontiguousarray(values, np.float32))
        self._core.load_adapter(slot, adapter)
        return adapter.bytes()

    def _check(self, name: str, *, low_rank: bool) -> None:
        """Raise UNSUPPORTED for a tensor whose change the core does not compute."""
        if name == names.EMBED or name in self._matrices:
            return
        computed = _weight_of(name) in self._matrices or _is_norm(name)
        if low_rank or name not in self._vectors or not computed:
            raise _not_computed(name)

    def _bias(self, weight: str) -> int:
        return self._vectors.get(weight.removesuffix("weight") + "bias", -1)

    def _change(self, adapter: _core.Adapter, name: str, product: Product) -> None:
        a, b = (np.ascontiguousarray(m, np.float32) for m in (product.a, product.b))
        gain, input_gain = _vector(product.gain), _vector(product.input_gain)
        if name == names.EMBED:
            adapter.change_embedding(a, b, product.scale, gain, input_gain)
            return
        adapter.change_product(
            self._core, self._matrices[name], self._bias(name), a, b, product.scale, gain,
            input_gain,
        )  # fmt: skip

    def _replace(self, adapter: _core.Adapter, name: str, values: Float32) -> None:
        if name == names.EMBED:
            adapter.replace_embedding(values)
        elif name in self._matrices:
            adapter.replace_product(self._core, self._matrices[name], values)
        elif _is_norm(name):
            adapter.replace_vector(self._core, self._vectors[name], values)
        else:
            matrix = self._matrices[_weight_of(name)]
            adapter.shift_product(self._core, matrix, self._vectors[name], values)


def _nbytes(changes: Changes, *, wide: bool) -> int:
    """Bytes of all low-rank changes in the core's form."""
    total = 0
    for name, product in changes.products.items():
        size = _core.adapter_product_bytes
        if name == names.EMBED:
            size = _core.adapter_embedding_bytes
        elif product.input_gain is not None:  # becomes a whole matrix
            continue
        total += size(wide, len(product.b), product.a.shape[1], product.rank)
    return total


def _is_norm(name: str) -> bool:
    stem = name.rpartition(".")[0]
    if ".rec." in name:
        return False
    return bool(_EXPERTS_NORM.search(stem) or _NORM.fullmatch(stem.rsplit(".", 1)[-1]))


def _weight_of(bias: str) -> str:
    return bias.removesuffix("bias") + "weight"


def _vector(values: Float32 | None) -> Float32 | None:
    return None if values is None else np.ascontiguousarray(values, np.float32)


def _not_computed(name: str) -> TidemillError:
    return unsupported(
        name,
        f"{name}: the native backend does not compute this change of an adapter beside its base: "
        "use --backend torch, or merge it (tidemill convert --merge)",
    )
