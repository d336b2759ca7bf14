"""The part of a model that one stage of a pipeline computes: some of its layers.

Stage 0 has the first ones, and whatever belongs to none: the embedding and the output
(csrc/runtime/stage.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemill.backends.base import Stage
from tidemill.base.errors import TidemillError, unsupported
from tidemill.models.spec import DecoderSpec
from tidemill.models.stages import layer_of
from tidemill.models.tensors import RawTensor, TensorMap


def check_stages(spec: DecoderSpec) -> None:
    """Raise UNSUPPORTED, naming the reason, for a model that no pipeline computes."""
    if not spec.generates:
        raise refused("it generates no text")
    if spec.layer_inputs is not None:
        raise refused("all its layers read inputs made of the embedding")


def refused(why: str) -> TidemillError:
    """That a model cannot be computed by a pipeline."""
    return unsupported(
        "pipeline_parallel",
        f"the model cannot be computed in stages (--pipeline-parallel): {why}",
    )


class TensorsOfStage(Mapping[str, RawTensor]):
    """A model's tensors that a stage has. Others are not read.

    Args:
        tensors: of the whole model.
        stage: which part.
    """

    def __init__(self, tensors: TensorMap, stage: Stage) -> None:
        self._tensors = tensors
        self._names = [name for name in tensors if _has(stage, name)]
        self._known = frozenset(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> RawTensor:
        if name not in self._known:
            raise KeyError(name)
        return self._tensors[name]


def _has(stage: Stage, name: str) -> bool:
    layer = layer_of(name)
    return stage.index == 0 if layer is None else layer in stage.layers
