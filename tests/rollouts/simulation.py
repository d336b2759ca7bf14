"""Simulated traffic for rollouts: what a stable version and a canary answer under shared load.

Latencies are log-normal with Pareto outliers. A load that drifts with a correlation time of two
minutes multiplies those of both versions, prompts differ by orders of magnitude, failures come in
bursts that hit both, some requests are wrong or cancelled. Requests are observed when they end, so
slower ones later.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.base.errors import ErrorKind
from tidemill.server.host.rollout.machine import Phase, Rollout
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.routing import Choice
from tidemill.server.host.rollout.traffic import Canary


@dataclass(frozen=True, slots=True)
class Version:
    """How the canary differs from the stable version.

    Attributes:
        error_rate: probability of a failure outside of bursts.
        slower: factor of both latencies.
        ttft: factor of the time to the first token alone.
        length: factor of the answer's length.
    """

    error_rate: float = 0.005
    slower: float = 1.0
    ttft: float = 1.0
    length: float = 1.0


STABLE = Version()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one simulation."""

    phase: Phase
    reason: str
    requests: int
    canary_requests: int
    seconds: float


class _Load:
    """Multiplies the latencies of both versions: a slow random walk, and bursts."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._level = rng.gauss(0, 0.5)
        self._burst_ends = -1.0

    def step(self, now: float, elapsed: float) -> tuple[float, float]:
        """The factor of latencies, and the probability of a failure that is no version's."""
        keep = math.exp(-elapsed / 120)
        self._level = self._level * keep + self._rng.gauss(0, 0.5) * math.sqrt(1 - keep * keep)
        if self._rng.random() < elapsed / 1800:
            self._burst_ends = now + 60
        burst = now < self._burst_ends
        return math.exp(self._level) * (3 if burst else 1), 0.05 if burst else 0.0


def _answer(
    rng: random.Random, version: Version, choice: Choice, load: tuple[float, float]
) -> tuple[float, Observation]:
    """Seconds until a request ends, and what is observed then."""

    def latency(typical: float, sigma: float, outliers: float) -> float:
        value = typical * rng.lognormvariate(0, sigma)
        return value * rng.paretovariate(1.2) if rng.random() < outliers else value

    factor, burst_errors = load
    prompt = min(32000, int(rng.lognormvariate(6, 1.3)))
    ttft = latency(0.05 + 0.0004 * prompt, 0.4, 0.02) * factor * version.slower * version.ttft
    itl = latency(0.02, 0.25, 0.01) * math.sqrt(factor) * version.slower
    tokens = max(1, min(2048, int(rng.lognormvariate(5.2, 0.9) * version.length)))
    luck, error = rng.random(), None
    if luck < version.error_rate + burst_errors:
        error = ErrorKind.INTERNAL
    elif luck > 0.98:
        error = ErrorKind.BAD_REQUEST
    elif luck > 0.95:
        error, tokens = ErrorKind.CANCELLED, tokens // 2
    answered = error in (None, ErrorKind.CANCELLED)
    observation = Observation(
        version=choice.version,
        step=choice.step,
        unit=choice.unit,
        error=error,
        ttft_s=ttft if answered else None,
        itl_mean_s=itl if answered and tokens > 1 else None,
        itl_p95_s=2 * itl if answered and tokens > 1 else None,
        output_tokens=tokens if answered else None,
        computed_prompt_tokens=prompt,
    )
    return ttft + itl * tokens if answered else 0.1, observation


class Clock:
    """Simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def observations(
    rollout: Rollout, canary: Version, seed: int, clock: Clock, *, rate: float = 20.0
) -> Iterator[Observation]:
    """Endless traffic of `rate` requests a second, routed by the rollout, in the order of ends."""
    rng = random.Random(seed)
    load, arrived = _Load(rng), 0
    running: list[tuple[float, int, Observation]] = []
    arrival = 0.0
    while True:
        elapsed = rng.expovariate(rate)
        arrival += elapsed
        while running and running[0][0] <= arrival:
            clock.now, _, ended = heapq.heappop(running)
            yield ended
        clock.now = arrival
        choice = rollout.route(f"{seed}-{arrived}")
        version = canary if choice.version == rollout.state.rule.canary else STABLE
        duration, observation = _answer(rng, version, choice, load.step(arrival, elapsed))
        heapq.heappush(running, (arrival + duration, arrived, observation))
        arrived += 1


def simulate(rule: Canary, canary: Version, seed: int, *, most: int = 20_000) -> Outcome:
    """One rollout until it is decided, or for `most` requests."""
    clock = Clock()
    rollout = Rollout.start(f"model-{seed}", rule, monotonic=clock, wall=clock)
    seen = 0
    for observation in observations(rollout, canary, seed, clock):
        rollout.observe(observation)
        seen += 1
        if rollout.state.phase is not Phase.RUNNING or seen >= most:
            break
    return Outcome(
        rollout.state.phase,
        rollout.state.events[-1].reason,
        seen,
        rollout.state.comparison.arms[1].requests,
        clock.now,
    )
