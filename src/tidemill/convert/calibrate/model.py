"""Quantizes a whole model layer by layer. Each layer is calibrated on the output of the layers
before it, which are already quantized.

Memory holds one layer's weights, its input (float32 [tokens, hidden]), and per matrix H (float32
[k, k], and its factors during rounding). Finished layers are stored in a folder next to the result,
so that an interrupted run can resume.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.convert.calibrate import awq, layer, packing, rounding
from tidemill.loading.jsonfile import read_optional_object
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import Place
from tidemill.loading.selected import Selected
from tidemill.models.small_floats import rounded_bf16
from tidemill.models.spec import Attention, Mlp

Float32 = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Method:
    """Rounding method of the matrices.

    Attributes:
        name: ``gptq`` or ``awq``.
        group: columns that share a scale: 32, 64 or 128.
        act_order: of GPTQ; see `rounding.gptq`.
    """

    name: str
    group: int
    act_order: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a matrix can be written in this form."""
        return len(shape) == 2 and shape[1] % self.group == 0 and shape[0] % 8 == 0

    def config(self) -> dict[str, Any]:
        """The ``quantization_config`` of a config.json."""
        common = {"quant_method": self.name, "bits": 4, "group_size": self.group}
        if self.name == "awq":
            return common | {"zero_point": True, "version": "gemm", "modules_to_not_convert": None}
        return common | {
            "sym": True, "desc_act": False, "static_groups": self.act_order, "damp_percent": 0.01,
            "lm_head": False, "checkpoint_format": "gptq", "true_sequential": True,
        }  # fmt: skip


METHODS = {f"{name}-g{g}": Method(name, g) for name in ("gptq", "awq") for g in (32, 64, 128)}


class Quantizer:
    """Quantizes a model's layers.

    Args:
        files: the model.
        method: the rounding method.
        sequences: token ids of the calibration text, each as a separate sequence.
        scratch: folder for finished layers.
        identity: of the model, method and text. Layers left by another identity are deleted.
    """

    def __init__(
        self, files: ModelFiles, method: Method, sequences: Sequence[NDArray[np.int64]],
        scratch: Path, identity: str,
    ) -> None:  # fmt: skip
        layer.check_supported(files.spec)
        self._files, self._spec, self._method = files, files.spec, method
        self._sequences, self._scratch, self._identity = sequences, scratch, identity
        self._index = 0
        self._weights: dict[str, Float32] = {}
        self._x: list[Float32] = []

    def run(self, tell: Callable[[int], None] = lambda count: None) -> None:
        """Quantize the unfinished layers; `tell` is called as layers are finished."""
        done, self._x = self._resume()
        tell(done)
        for index in range(done, len(self._spec.layers)):
            prefix = f"layers.{index}."
            self._index = index
            self._weights = {
                name.removeprefix(prefix): np.ascontiguousarray(place.values())
                for name, place in self._files.tensors.places.items()
                if name.startswith(prefix)
            }
            found = self._gptq() if self._method.name == "gptq" else self._awq()
            self._x = [self._through(x) for x in self._x]
            self._keep(index, found)
            tell(1)

    def layer(self, index: int) -> Arrays:
        """A finished layer by names without ``layers.N.``: quantized matrices in the tensors of
        their layout, and other changed tensors in float32."""
        with np.load(self._scratch / f"layer-{index}.npz") as stored:
            return {name: stored[name] for name in stored.files}

    def _through(self, x: Float32) -> Float32:
        return layer.run_layer(self._spec, self._index, self._weights, x)

    def _resume(self) -> tuple[int, list[Float32]]:
        note = read_optional_object(self._scratch / "state.json")
        done = note.get("done")
        state = self._scratch / f"state-{done}.npz"
        if note.get("identity") == self._identity and isinstance(done, int) and state.is_file():
            with np.load(state) as stored:
                return done, [stored[str(i)] for i in range(len(stored.files))]
        self._scratch.mkdir(exist_ok=True)
        outside = ("embed", "positions", "embed_norm")
        weights = {
            name: place.values()
            for name, place in self._files.tensors.places.items()
            if name.split(".")[0] in outside
        }
        return 0, [layer.embed(self._spec, weights, ids) for ids in self._sequences]

    def _keep(self, index: int, found: Arrays) -> None:
        np.savez(self._scratch / f"layer-{index}.npz", **found)  # type: ignore[arg-type]
        states = {str(i): x for i, x in enumerate(self._x)}
        np.savez(self._scratch / f"state-{index + 1}.npz", **states)  # type: ignore[arg-type]
        part = self._scratch / "state.part"
        part.write_text(json.dumps({"identity": self._identity, "done": index + 1}))
        os.replace(part, self._scratch / "state.json")
        (self._scratch / f"state-{index}.npz").unlink(missing_ok=True)

    def _observe(self, names: Sequence[str]) -> dict[str, tuple[Float32, NDArray[np.float64]]]:
        """H and the mean size of the inputs of these matrices; matrices with equal inputs share
        them."""
        found: dict[str, tuple[Float32, NDArray[np.float64]]] = {}
        count = sum(len(x) for x in self._x)

        def tap(name: str, x: Float32) -> None:
            if name not in names:
                return
            if name not in found:
                k = x.shape[1]
                found[name] = (np.zeros((k, k), np.float32), np.zeros(k))
            h, size = found[name]
            h += x.T @ x
            size += np.abs(x).sum(0, dtype=np.float64) / count

        for x in self._x:
            layer.run_layer(self._spec, self._index, self._weights, x, tap)
        return found

    def _stages(self) -> list[tuple[str, ...]]:
        """The layer's matrices in the order of computation; those of a stage share their inputs."""
        mixer, mlp = self._spec.layers[self._index].mixer, self._spec.layers[self._index].mlp
        assert isinstance(mixer, Attention) and isinstance(mlp, Mlp)
        attention = ("attn.q", "attn.k", "attn.v", *["attn.gate"] * mixer.gated)
        fed = ("mlp.gate", "mlp.up") if mlp.gated else ("mlp.up",)
        return [attention, ("attn.o",), fed, ("mlp.down",)]

    def _gptq(self) -> Arrays:
        out: Arrays = {}
        for stage in self._stages():
            (hessian, _), *_ = self._observe(stage[:1]).values()
            for name in stage:
                weight = self._weights[f"{name}.weight"]
                if not self._method.fits(weight.shape):
                    continue
                group, order = self._method.group, self._method.act_order
                rounded = rounding.gptq(weight, group, hessian, act_order=order)
                self._weights[f"{name}.weight"] = rounded.values()
                out |= {name + end: t for end, t in packing.gptq_tensors(rounded).items()}
        return out

    def _awq(self) -> Arrays:
        out: Arrays = {}
        matrices = [name for stage in self._stages() for name in stage]
        firsts = [stage[0] for stage in self._stages()]
        seen = self._observe(firsts)
        of_stage = {name: seen[stage[0]] for stage in self._stages() for name in stage}
        scales = dict.fromkeys(matrices, np.ones(1, np.float32))
        for source in awq.sources(self._spec.layers[self._index]):
            if not all(self._method.fits(self._weights[f"{n}.weight"].shape)
                       for n in source.matrices):  # fmt: skip
                continue
            hessian, typical = of_stage[source.matrices[0]]
            weights = {n: self._weights[f"{n}.weight"] for n in source.matrices}
            wanted = awq.search(weights, hessian, typical, self._method.group)
            taken, changed = self._divided(source.name, wanted)
            out |= changed
            for name in source.matrices:
                self._weights[f"{name}.weight"] = self._weights[f"{name}.weight"] * taken
                scales[name] = taken
        for name in matrices:
            weight = self._weights[f"{name}.weight"]
            if not self._method.fits(weight.shape):
                continue
            hessian = of_stage[name][0] / np.outer(scales[name], scales[name])
            rounded = rounding.nearest(weight, self._method.group, False, hessian)
            self._weights[f"{name}.weight"] = rounded.values()
            out |= {name + end: t for end, t in packing.awq_tensors(rounded).items()}
            out.pop(f"{name}.weight", None)
        return out

    def _divided(self, name: str, wanted: Float32) -> tuple[Float32, Arrays]:
        """Divide a source's outputs by scales. Returns the scales as the file's type stores them,
        and the changed tensors."""
        found: Arrays = {}
        key = f"{name}.weight"
        weight = self._weights[key]
        if weight.ndim == 1:
            place = self._files.tensors.places[f"layers.{self._index}.{key}"]
            kept = as_stored(weight / wanted, place)
            exact = np.divide(weight, kept, out=np.ones_like(kept), where=kept != 0)
            wanted = np.where(exact > 0, exact, 1).astype(np.float32)
            self._weights[key] = kept
        else:
            self._weights[key] = weight / wanted[:, None]
        found[key] = self._weights[key]
        if (bias := f"{name}.bias") in self._weights:
            self._weights[bias] = self._weights[bias] / wanted
            found[bias] = self._weights[bias]
        return wanted, found


def as_stored(values: Float32, place: Place) -> Float32:
    """Values as the tensor's own type stores them."""
    added = np.float32(place.source.plus if isinstance(place, Selected) else 0.0)
    return stored_values(values - added, place.dtype) + added


def stored_values(values: Float32, dtype: str) -> Float32:
    """Float values rounded to F32, F16 or BF16."""
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    return rounded_bf16(values) if dtype == "BF16" else values
