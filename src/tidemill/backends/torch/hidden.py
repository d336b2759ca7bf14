"""The hidden states that the rows of a step request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tidemill.backends.base import HIDDEN_ALL, HIDDEN_LAST, HIDDEN_NONE, Float32, Int32, StepInputs
from tidemill.backends.torch.steps import sampled_positions


def requested(x: torch.Tensor, inputs: StepInputs) -> Float32 | None:
    """Of x [tokens, hidden], the tokens that `inputs.hidden` names: float32 [count, hidden]."""
    if inputs.hidden is None or not inputs.hidden.any():
        return None
    parts, counts = [], sampled_positions(inputs).tolist()
    for row, wanted in enumerate(inputs.hidden.tolist()):
        begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
        first = {HIDDEN_NONE: end, HIDDEN_LAST: end - max(1, counts[row]), HIDDEN_ALL: begin}[
            wanted
        ]
        parts.append(x[first:end])
    return torch.cat(parts).float().cpu().numpy()


class LayerHidden:
    """Keeps x in front of the layers that `inputs.hidden_layers` names."""

    def __init__(self, inputs: StepInputs) -> None:
        self._inputs = inputs
        self._layers = [] if inputs.hidden_layers is None else inputs.hidden_layers.tolist()
        self._whole: dict[int, torch.Tensor] = {}  # of steps that are computed in parts
        self._kept: list[Float32] = []

    def take(self, layer: int, x: torch.Tensor) -> None:
        """Keep x [tokens, hidden] in front of `layer`, if it is one of them."""
        if layer in self._layers and (found := requested(x, self._inputs)) is not None:
            self._kept.append(found)

    def part(self, tokens: Int32) -> LayerHiddenPart:
        """Keeps x of these tokens, by index."""
        return LayerHiddenPart(self, torch.from_numpy(tokens).long())

    def put(self, layer: int, tokens: torch.Tensor, x: torch.Tensor) -> None:
        """Keep x of some tokens in front of `layer`, if it is one of them."""
        if layer in self._layers:
            count = len(self._inputs.token_ids)
            whole = self._whole.setdefault(layer, x.new_zeros(count, x.shape[1]))
            whole[tokens] = x

    def stacked(self) -> Float32 | None:
        """float32 [layers, count, hidden], or None where no layer was asked for."""
        for layer in sorted(self._whole):
            self.take(layer, self._whole[layer])
        return np.stack(self._kept) if self._kept else None


@dataclass(frozen=True, slots=True)
class LayerHiddenPart:
    """Keeps x of a part of a step's tokens; see `LayerHidden`."""

    whole: LayerHidden
    tokens: torch.Tensor

    def take(self, layer: int, x: torch.Tensor) -> None:
        """See LayerHidden."""
        self.whole.put(layer, self.tokens, x)
