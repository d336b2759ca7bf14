"""What models do, as tensors: inputs and outputs of each task, and which one a request means."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tidemill.contract.wire import EngineInfo

VERSION = "1"
"""Of every model: versions of a name are models of their own here (`name@version`)."""


class Slot(NamedTuple):
    """An input or output: its name, datatype and shape (-1: any size)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Task(NamedTuple):
    """One thing that a model does.

    Attributes:
        name: ``generate``, ``embed`` or ``score``.
        inputs: tensors that it needs.
        outputs: tensors that it gives.
    """

    name: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


_ONE = (1,)
_ANY = (-1,)
_TEXT = Slot("text_input", "BYTES", _ANY)

OPTIONS = (
    *(Slot(name, "INT32", _ONE) for name in ("max_tokens", "min_tokens", "top_k", "n")),
    *(Slot(name, "FP32", _ONE) for name in ("temperature", "top_p", "min_p")),
    *(Slot(f"{name}_penalty", "FP32", _ONE) for name in ("presence", "frequency", "repetition")),
    *(Slot(name, "INT64", _ONE) for name in ("seed", "random_seed")),
    *(Slot(name, "BYTES", _ANY) for name in ("stop", "stop_words")),
    *(Slot(name, "BOOL", _ONE) for name in ("ignore_eos", "exclude_input_in_output", "stream")),
    *(Slot(name, "BYTES", _ONE) for name in ("sampling_parameters", "guided_regex", "guided_json")),
)
"""Inputs of a generation that may be left out; the same may stand in `parameters`."""

GENERATE = Task(
    "generate",
    (_TEXT,),
    (
        Slot("text_output", "BYTES", _ANY),
        Slot("finish_reason", "BYTES", _ANY),
        Slot("num_input_tokens", "INT32", _ANY),
        Slot("num_output_tokens", "INT32", _ANY),
    ),
)
EMBED = Task("embed", (_TEXT,), (Slot("embedding", "FP32", (-1, -1)),))
SCORE = Task(
    "score",
    (Slot("query", "BYTES", _ONE), Slot("documents", "BYTES", _ANY)),
    (Slot("score", "FP32", _ANY),),
)
TASKS = (GENERATE, EMBED, SCORE)


def tasks_of(info: EngineInfo) -> tuple[Task, ...]:
    """What a model does; the first one is what a request means that does not say."""
    if info.vectors.head == "score":
        return (SCORE,)
    return (*((GENERATE,) if info.generates else ()), EMBED, SCORE)


def task_of(inputs: Collection[str], outputs: Collection[str]) -> Task | None:
    """The task that a request names by its tensors; None where it does not."""
    for task in TASKS:
        if any(slot.name in outputs for slot in task.outputs):
            return task
    return SCORE if any(slot.name in inputs for slot in SCORE.inputs) else None
