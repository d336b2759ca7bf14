"""How long steps take: a described device's rates, or costs that were measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.planning.devices import Device
from tidemill.planning.work import Rows, Work

BEYOND_SPREAD = 0.50
"""Added to the relative interval of what was extrapolated."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time with its interval.

    Attributes:
        value, low, high: in seconds.
        beyond: what was extrapolated, in words; empty for nothing.
    """

    value: float
    low: float
    high: float
    beyond: tuple[str, ...] = ()

    def times(self, factor: float) -> Seconds:
        """This time, so many times."""
        return Seconds(self.value * factor, self.low * factor, self.high * factor, self.beyond)

    def plus(self, other: Seconds) -> Seconds:
        """Both, one after the other; their errors are taken to be the same way."""
        return Seconds(
            self.value + other.value,
            self.low + other.low,
            self.high + other.high,
            tuple(dict.fromkeys(self.beyond + other.beyond)),
        )


ZERO = Seconds(0.0, 0.0, 0.0)


class Timing(Protocol):
    """What predicts a step's time.

    Attributes:
        basis: what the predictions rest on, in words.
        max_step_tokens: tokens that a step of prompts computes at most.
    """

    @property
    def basis(self) -> str: ...
    @property
    def max_step_tokens(self) -> int: ...

    def step(self, rows: Rows) -> Seconds:
        """The time of a step of equal rows."""

    def request(self, prompt: int) -> Seconds:
        """What a request of so many tokens takes beside steps, until its first token is read."""


@dataclass(frozen=True, slots=True)
class DeviceTiming:
    """Steps on described hardware: reading, computing and launching add up, as they do where
    kernels follow each other.

    Attributes:
        device: the hardware.
        work: the model.
        max_step_tokens: see `Timing`.
    """

    device: Device
    work: Work
    max_step_tokens: int = 8192

    @property
    def basis(self) -> str:
        """See `Timing`."""
        device = self.device
        return (
            f"{device.name} as described ({device.source}); shares of its peaks fitted to "
            f"{device.attainment.basis}"
        )

    def step(self, rows: Rows) -> Seconds:
        """See `Timing`."""
        device, found = self.device, self.device.attainment
        reading = self.work.nbytes(rows) / (device.bandwidth * found.read)
        computing = self.work.flops(rows) / (device.rate(self.work.weight_type) * found.compute)
        value = reading + computing + self.work.layers * found.layer_seconds
        beyond = found.beyond(self.work.weight_bytes)
        spread = found.spread + (0.0 if beyond is None else BEYOND_SPREAD)
        said = () if beyond is None else (beyond,)
        return Seconds(value, value / (1 + spread), value * (1 + spread), said)

    def request(self, prompt: int) -> Seconds:
        """See `Timing`: nothing is described."""
        return ZERO


def prefill(timing: Timing, tokens: int, count: int = 1, start: int = 0) -> Seconds:
    """The time in which `count` prompts of so many tokens are computed, in steps as large as they
    may be."""
    most = timing.max_step_tokens
    if count > 1 and tokens * count > most:
        together = max(1, most // tokens)
        whole, rest = divmod(count, together)
        found = prefill(timing, tokens, together, start).times(whole)
        return found.plus(prefill(timing, tokens, rest, start)) if rest else found
    found, at = ZERO, start
    while at < start + tokens:
        chunk = min(most, start + tokens - at)
        found = found.plus(timing.step(Rows(count, chunk, at)))
        at += chunk
    return found


# Points of an answer at which the time of a token is looked at: it grows with the context.
_POINTS = (0.1, 0.3, 0.5, 0.7, 0.9)


def decode_step(timing: Timing, count: int, prompt: int, output: int) -> Seconds:
    """The mean time of a step that gives each of `count` streams a token, over an answer."""
    found = ZERO
    for share in _POINTS:
        found = found.plus(timing.step(Rows(count, 1, prompt + output * share)))
    return found.times(1 / len(_POINTS))
