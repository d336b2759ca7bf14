"""Backends of one process that compute a model together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.backends.base import Backend, StepInputs
from tidemill.backends.native.backend import NativeBackend

from .backend_driver import BackendDriver


class Together:
    """Steps go to all backends; the first one's results count."""

    def __init__(self, backends: Sequence[NativeBackend]) -> None:
        self._backends = backends
        first = backends[0]
        self.spec, self.options = first.spec, first.options

    def allocate_cache(self, num_blocks: tuple[int, ...], **kwargs: object) -> None:
        """See Backend."""
        for backend in self._backends:
            backend.allocate_cache(num_blocks, **kwargs)  # type: ignore[arg-type]

    def submit(self, inputs: StepInputs) -> object:
        """See Backend."""
        first, *others = [backend.submit(inputs) for backend in self._backends]
        return _AllHandles(first, others)


class _AllHandles:
    def __init__(self, first: object, others: Sequence[object]) -> None:
        self._first, self._others = first, others

    def result(self) -> object:
        for other in self._others:
            other.result()  # type: ignore[attr-defined]
        return self._first.result()  # type: ignore[attr-defined]


def computed(backend: Backend | Together, prompt: list[int]) -> tuple[np.ndarray, list[list[int]]]:
    """Logits of a prompt in two cuts, and greedy tokens of two sequences at once."""
    driver = BackendDriver(backend)  # type: ignore[arg-type]
    logits = np.concatenate([driver.all_logits(prompt), driver.all_logits(prompt, chunk=13)])
    return logits, driver.greedy([prompt[:9], prompt[20:33]], 6)
