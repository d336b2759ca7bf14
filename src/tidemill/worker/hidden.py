"""Hidden states that rows return by name, for drafters that work on the target's.

``final`` is behind the last norm; ``layer.N`` is the residual stream in front of layer N (0: the
embedding; the number of layers: what the last one leaves, before the last norm).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import HIDDEN_ALL, HIDDEN_LAST, HIDDEN_NONE, StepInputs, StepOutputs
from tidemill.contract.plan import Row

FINAL = "final"
_LAYER = "layer."


def layer_of(name: str, layers: int) -> int | None:
    """The layer that a name stands for; -1 for ``final``, None for no name."""
    if name == FINAL:
        return -1
    number = name.removeprefix(_LAYER)
    if number == name or not number.isdecimal() or str(int(number)) != number:
        return None
    return int(number) if int(number) <= layers else None


def request_hidden(inputs: StepInputs, rows: list[Row], layers: int) -> None:
    """Have the step return what its rows name, of all tokens that they compute."""
    named = [i for i, row in enumerate(rows) if row.hidden_states]
    if not named:
        return
    if inputs.hidden is None:
        inputs.hidden = np.full(len(rows), HIDDEN_NONE, np.uint8)
    inputs.hidden[named] = HIDDEN_ALL
    found = {layer_of(name, layers) for i in named for name in rows[i].hidden_states} - {-1, None}
    if found:
        inputs.hidden_layers = np.array(sorted(found), np.int32)  # type: ignore[type-var]


def spans(inputs: StepInputs) -> list[slice]:
    """Per row, where its tokens stand among the hidden states that the step returns."""
    found, at = [], 0
    assert inputs.hidden is not None
    counts = np.diff(inputs.row_start).tolist()
    drafts = [0] * len(counts) if inputs.drafts is None else inputs.drafts.tolist()
    for kind, count, drafted in zip(inputs.hidden.tolist(), counts, drafts, strict=True):
        taken = {HIDDEN_NONE: 0, HIDDEN_LAST: 1 + drafted, HIDDEN_ALL: count}[kind]
        found.append(slice(at, at + taken))
        at += taken
    return found


def named_states(
    inputs: StepInputs, outputs: StepOutputs, rows: list[Row], rejected: dict[int, int]
) -> dict[int, dict[str, bytes]]:
    """Per index of a row that names hidden states: name -> float32 bytes [tokens, hidden_size].

    Args:
        inputs, outputs, rows: the step.
        rejected: by index of the row, its drafts that were rejected, whose states are left out.
    """
    if not any(row.hidden_states for row in rows):
        return {}
    layers = [] if inputs.hidden_layers is None else inputs.hidden_layers.tolist()
    found: dict[int, dict[str, bytes]] = {}
    for i, (row, span) in enumerate(zip(rows, spans(inputs), strict=True)):
        if not row.hidden_states:
            continue
        kept = slice(span.start, span.stop - rejected.get(i, 0))
        found[i] = {
            name: _states(outputs, layers, name)[kept].tobytes() for name in row.hidden_states
        }
    return found


def _states(outputs: StepOutputs, layers: list[int], name: str) -> NDArray[np.float32]:
    if name == FINAL:
        assert outputs.hidden is not None
        return outputs.hidden
    assert outputs.layer_hidden is not None
    found: NDArray[np.float32] = outputs.layer_hidden[layers.index(int(name.removeprefix(_LAYER)))]
    return found


def request_last(inputs: StepInputs, indices: list[int]) -> None:
    """Have the step return the final hidden states of the sampled positions of rows."""
    if inputs.hidden is None:
        inputs.hidden = np.full(len(inputs.logits), HIDDEN_NONE, np.uint8)
    none = [i for i in indices if inputs.hidden[i] == HIDDEN_NONE]
    inputs.hidden[none] = HIDDEN_LAST


def request_layers(inputs: StepInputs, indices: list[int], layers: set[int]) -> None:
    """Have the step return the residual streams in front of layers, of all tokens of rows."""
    if inputs.hidden is None:
        inputs.hidden = np.full(len(inputs.logits), HIDDEN_NONE, np.uint8)
    inputs.hidden[indices] = HIDDEN_ALL
    named = [] if inputs.hidden_layers is None else inputs.hidden_layers.tolist()
    inputs.hidden_layers = np.array(sorted({*named, *layers}), np.int32)


def last_states(
    inputs: StepInputs, outputs: StepOutputs, accepted: dict[int, int]
) -> dict[int, NDArray[np.float32]]:
    """By index of a row, the final hidden state that its last token was sampled from.

    Args:
        inputs, outputs: the step.
        accepted: by index of a row whose states were requested, its accepted tokens.
    """
    if not accepted or outputs.hidden is None:
        return {}
    ends = spans(inputs)
    drafts = [0] * len(ends) if inputs.drafts is None else inputs.drafts.tolist()
    return {
        i: outputs.hidden[ends[i].stop - 1 - drafts[i] + count - 1]
        for i, count in accepted.items()
        if count > 0
    }
