"""Runs steps in order on one thread and samples tokens from their logits.

The torch backends share it. Masks may arrive while the layers run, and a row's input may be a token
that the previous step samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from tidemill.backends.base import (
    LOGITS_ALL,
    NOT_REACHED,
    Float32,
    Int32,
    LogprobArrays,
    StepInputs,
    StepOutputs,
    UInt8,
)
from tidemill.backends.torch import candidates, sampling
from tidemill.backends.torch.filters import best
from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError

_MAX_IN_FLIGHT = 2


class Handle:
    """A submitted step."""

    def __init__(self, inputs: StepInputs, previous: Handle | None) -> None:
        self.inputs = inputs
        self.previous = previous
        self.future: Future[StepOutputs] = Future()
        self.sampled: Int32 | None = None
        self.masks: dict[tuple[int, int], UInt8] = {}
        self.closed = False
        self._changed = threading.Condition()

    def set_mask(self, row: int, draft: int, bits: UInt8) -> None:
        """See backends.base.StepHandle."""
        with self._changed:
            self.masks[row, draft] = np.array(bits, dtype=np.uint8)
            self._changed.notify_all()

    def wait_mask(self, row: int, draft: int, vocab: int) -> NDArray[np.bool_]:
        with self._changed:
            self._changed.wait_for(lambda: (row, draft) in self.masks or self.closed)
            if (row, draft) not in self.masks:
                raise TidemillError(ErrorKind.CANCELLED, "the backend was closed")
            bits = self.masks[row, draft]
            return np.unpackbits(bits, bitorder="little")[:vocab].astype(bool)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def done(self, seconds: float = 0.0) -> bool:
        if seconds > 0:
            wait((self.future,), timeout=seconds)
        return self.future.done()

    def result(self) -> StepOutputs:
        return self.future.result()


@dataclass(slots=True)
class Computed:
    """Output of the layers of a step.

    Attributes:
        rows: per row float32 [count, vocab]: logits of its last token (of a row with drafts: of
            each sampled position), of all its tokens, or empty.
        hidden, layer_hidden: see `StepOutputs`.
    """

    rows: list[Float32] = field(default_factory=list)
    hidden: Float32 | None = None
    layer_hidden: Float32 | None = None


def sampled_positions(inputs: StepInputs) -> Int32:
    """int32 [R]: how many positions each row samples."""
    drafts = 0 if inputs.drafts is None else inputs.drafts
    return np.asarray(inputs.sample * (1 + drafts), np.int32)


Compute = Callable[[Int32, StepInputs], Computed]


class StepThread:
    """Runs steps in order, with at most two in flight.

    Args:
        compute: (token ids int32 [T] with every future token known, the step's inputs) -> the
            logits and hidden states that its rows request. Called in inference mode, also for a
            step without rows.
        vocab_size: called when a mask is applied.
    """

    def __init__(self, compute: Compute, vocab_size: Callable[[], int]) -> None:
        self._compute = compute
        self._vocab_size = vocab_size
        self._steps = ThreadPoolExecutor(1, "torch-step")
        self._in_flight: list[Handle] = []
        self._last: Handle | None = None  # its tokens may be the next step's input
        self._closed = False

    def submit(self, inputs: StepInputs) -> Handle:
        """See backends.base.Backend."""
        if self._closed:
            raise TidemillError(ErrorKind.INTERNAL, "the backend is closed")
        if inputs.slice is not None:
            raise TidemillError(
                ErrorKind.INTERNAL, "the backend computes all layers of a row at once"
            )
        self._in_flight = [h for h in self._in_flight if not h.done()]
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            raise TidemillError(ErrorKind.INTERNAL, "two steps are in flight already")
        previous = self._last if inputs.token_ids.size and inputs.token_ids.min() < 0 else None
        handle = Handle(inputs, self._in_flight[-1] if self._in_flight else previous)
        self._last = handle
        self._in_flight.append(handle)
        self._steps.submit(self._run, handle)
        return handle

    def close(self) -> None:
        """Fail the steps in flight and wait until the thread has ended."""
        self._closed = True
        for handle in self._in_flight:
            handle.close()
        self._steps.shutdown(wait=True)

    def _run(self, handle: Handle) -> None:
        previous, handle.previous = handle.previous, None
        try:
            if previous is not None and previous.future.exception() is not None:
                raise TidemillError(ErrorKind.INTERNAL, "not run: an earlier step failed")
            with torch.inference_mode():
                outputs = self._step(handle, previous)
            handle.future.set_result(outputs)
        except TidemillError as error:
            handle.future.set_exception(error)
        except torch.OutOfMemoryError as error:
            failure = TidemillError(ErrorKind.RESOURCE, f"out of memory in a step: {error}")
            handle.future.set_exception(failure)
        except Exception as error:  # an unexpected error ends this step, not the thread
            failure = TidemillError(ErrorKind.INTERNAL, f"step failed: {error!r}")
            failure.__cause__ = error
            handle.future.set_exception(failure)

    def _step(self, handle: Handle, previous: Handle | None) -> StepOutputs:
        start = monotonic()
        inputs = handle.inputs
        tokens = inputs.token_ids.copy()
        future = np.flatnonzero(tokens < 0)
        pending: dict[int, int] = {}
        for t in future.tolist():
            tokens[t] = self._resolve(-1 - int(tokens[t]), previous)
            row = int(np.searchsorted(inputs.row_start, t, side="right")) - 1
            pending[row] = int(tokens[t])
        computed = self._compute(tokens, inputs)
        forward = monotonic()
        outputs = self._sample(handle, computed.rows, pending)
        outputs.hidden, outputs.layer_hidden = computed.hidden, computed.layer_hidden
        handle.sampled = outputs.sampled
        end = monotonic()
        outputs.seconds = (0.0, forward - start, end - forward, end - start)
        return outputs

    def _resolve(self, row: int, previous: Handle | None) -> int:
        """The token that row `row` of the previous step sampled."""
        if previous is None or previous.sampled is None:
            raise TidemillError(ErrorKind.INTERNAL, "a future token refers to no earlier step")
        index = int(sampled_positions(previous.inputs)[:row].sum())
        token = int(previous.sampled[index])
        if int(sampled_positions(previous.inputs)[row]) != 1 or token < 0:
            raise TidemillError(ErrorKind.INTERNAL, f"row {row} of the previous step has no token")
        return token

    def _sample(
        self, handle: Handle, rows: list[NDArray[np.float32]], pending: dict[int, int]
    ) -> StepOutputs:
        inputs = handle.inputs
        sampled: list[int] = []
        chosen_rows: list[NDArray[np.float32]] = []
        beams: dict[int, candidates.Found | None] = {}
        wanted = inputs.sampling.candidates
        for row, count in enumerate(sampled_positions(inputs).tolist()):
            end, reached = int(inputs.row_start[row + 1]), True
            # The draft that stands behind each sampled position; none behind the last.
            behind = [*inputs.token_ids[end - count + 1 : end].tolist(), None][:count]
            for j, draft in enumerate(behind):
                values, s, token = rows[row][j - count], len(sampled), NOT_REACHED
                if reached:
                    mask = None
                    if inputs.await_mask[row]:
                        mask = handle.wait_mask(row, j, self._vocab_size())
                    args = (values, s, inputs.sampling, mask, pending.get(row))
                    if wanted is not None and wanted[s]:
                        beams[s] = candidates.find(*args)
                        token = candidates.token_of(beams[s])
                    else:
                        token = sampling.sample(*args)
                    reached = token == draft
                sampled.append(token)
                chosen_rows.append(values)
        widths = inputs.sampling.num_logprobs.tolist()
        targets, target_rows, target_widths = self._targets(inputs, rows)
        return StepOutputs(
            sampled=np.array(sampled, np.int32),
            logprobs=_logprobs(sampled, chosen_rows, widths),
            targets=_logprobs(targets, target_rows, target_widths),
            logits=np.concatenate(rows) if inputs.return_logits and rows else None,
            candidates=candidates.arrays(inputs.sampling, beams),
        )

    def _targets(
        self, inputs: StepInputs, rows: list[NDArray[np.float32]]
    ) -> tuple[list[int], list[NDArray[np.float32]], list[int]]:
        targets: list[int] = []
        logits: list[NDArray[np.float32]] = []
        widths: list[int] = []
        for row in np.flatnonzero(inputs.logits == LOGITS_ALL).tolist():
            begin = int(inputs.row_start[row])
            for offset, values in enumerate(rows[row]):
                target = int(inputs.target_ids[begin + offset])
                if target >= 0:
                    targets.append(target)
                    logits.append(values)
                    widths.append(int(inputs.target_logprobs[row]))
        return targets, logits, widths


def _logprobs(
    chosen: list[int], logits: list[NDArray[np.float32]], widths: list[int]
) -> LogprobArrays | None:
    """Log-probabilities of chosen tokens. A width of k requests k alternatives, -1 no logprobs."""
    if not any(w >= 0 for w in widths):
        return None
    most = max(widths)
    out = LogprobArrays(
        chosen=np.full(len(chosen), np.nan, np.float32),
        top_ids=np.full((len(chosen), most), -1, np.int32),
        top_values=np.full((len(chosen), most), np.nan, np.float32),
    )
    for i, (token, values, width) in enumerate(zip(chosen, logits, widths, strict=True)):
        if width < 0 or token < 0:
            continue
        logprobs = sampling.log_softmax(values)
        top = best(values, width)
        out.chosen[i] = logprobs[token]
        out.top_ids[i, :width] = top
        out.top_values[i, :width] = logprobs[top]
    return out
