"""Predicted latencies, throughput, energy and cost by the number of concurrent streams."""

from __future__ import annotations

import re

import msgspec

from tidemill.base.durations import duration_seconds
from tidemill.base.errors import config_error
from tidemill.planning.timing import Seconds, Timing, decode_step, prefill

# Share of its power that a device takes under load: decoding reads, and leaves its arithmetic idle.
_POWER_SHARE = (0.5, 0.75, 1.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Estimate(msgspec.Struct, frozen=True):
    """A number with its interval."""

    value: float
    low: float
    high: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted for a number of streams that each send their next request at once.

    Attributes:
        concurrency: streams.
        ttft_ms, tpot_ms: time to the first token, and per token after it.
        output_tokens_per_second: of all streams.
        requests_per_second: of all streams.
        joules_per_token: energy per output token; None: the power is not known.
        usd_per_million_tokens: of output; None: no price is known.
        meets: whether the objectives are met at the predicted value; None without objectives.
        surely: whether they are met at the interval's worse end.
        beyond: what was extrapolated, in words.
    """

    concurrency: int
    ttft_ms: Estimate
    tpot_ms: Estimate
    output_tokens_per_second: Estimate
    requests_per_second: Estimate
    joules_per_token: Estimate | None = None
    usd_per_million_tokens: Estimate | None = None
    meets: bool | None = None
    surely: bool | None = None
    beyond: tuple[str, ...] = ()


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions of a model on a machine.

    Attributes:
        basis: what they rest on.
        prompt, output: tokens of each request.
        points: by concurrency, as far as memory allows.
        objectives: name -> milliseconds.
        best: the concurrency of the highest throughput that meets the objectives (without any: the
            highest throughput); None: none does.
    """

    basis: str
    prompt: int
    output: int
    points: tuple[Point, ...]
    objectives: dict[str, float]
    best: int | None


_OBJECTIVE = re.compile(r"\s*(ttft|itl|tpot)\s*<=?\s*([\w.]+)\s*")
_NAMES = {"itl": "tpot"}


def read_objectives(text: str | None) -> dict[str, float]:
    """``ttft<1s,itl<50ms`` as milliseconds by name; ``itl`` is the mean, as ``tpot``.

    Raises:
        TidemillError: CONFIG.
    """
    found: dict[str, float] = {}
    for part in (text or "").split(",") if text else ():
        match = _OBJECTIVE.fullmatch(part)
        try:
            seconds = duration_seconds(match[2]) if match else 0.0
        except ValueError:
            seconds = 0.0
        if match is None or seconds <= 0:
            raise config_error(
                "objective",
                f'--objective is a list such as "ttft<1s,itl<50ms", and {part.strip()!r} is none '
                "of its parts",
            )
        found[_NAMES.get(match[1], match[1])] = seconds * 1e3
    return found


def predict(
    timing: Timing,
    *,
    prompt: int,
    output: int,
    most: int,
    concurrency: int | None = None,
    objectives: dict[str, float] | None = None,
    watts: float | None = None,
    price: float | None = None,
) -> Prediction:
    """Predict a load of equal requests.

    Args:
        timing: of steps.
        prompt, output: tokens of a request; at least 1.
        most: streams that memory has room for.
        concurrency: one more number of streams to look at.
        objectives: see `read_objectives`.
        watts: of the device under load.
        price: US dollars per hour.
    """
    wanted = objectives or {}
    counts = sorted({n for n in (*_BATCHES, concurrency or 1) if n <= most} or {1})
    points = tuple(_point(timing, n, prompt, output, wanted, watts, price) for n in counts)
    met = [point for point in points if point.meets is not False]
    best = max(met, key=lambda p: p.output_tokens_per_second.value, default=None)
    return Prediction(
        basis=timing.basis,
        prompt=prompt,
        output=output,
        points=points,
        objectives=wanted,
        best=None if best is None else best.concurrency,
    )


def _point(
    timing: Timing,
    streams: int,
    prompt: int,
    output: int,
    objectives: dict[str, float],
    watts: float | None,
    price: float | None,
) -> Point:
    first, token = latencies(timing, streams, prompt, output)
    whole = first.plus(token.times(output - 1))
    ttft, tpot = _ms(first), _ms(token)
    rate = Estimate(streams / whole.value, streams / whole.high, streams / whole.low)
    tokens = Estimate(rate.value * output, rate.low * output, rate.high * output)
    found = {"ttft": ttft, "tpot": tpot}
    return Point(
        concurrency=streams,
        ttft_ms=ttft,
        tpot_ms=tpot,
        output_tokens_per_second=tokens,
        requests_per_second=rate,
        joules_per_token=None if watts is None else _energy(tokens, watts),
        usd_per_million_tokens=None if price is None else _cost(tokens, price),
        meets=all(found[n].value <= most for n, most in objectives.items()) if objectives else None,
        surely=all(found[n].high <= most for n, most in objectives.items()) if objectives else None,
        beyond=_furthest(whole.beyond),
    )


def _furthest(beyond: tuple[str, ...]) -> tuple[str, ...]:
    """Of each number that is extrapolated, what was said last: it grows with the answer."""
    return tuple({said.partition(" ")[0]: said for said in beyond}.values())


def latencies(timing: Timing, streams: int, prompt: int, output: int) -> tuple[Seconds, Seconds]:
    """Time to the first token, and per token after it, of streams in steady state.

    A request that comes waits for the step in progress, then its prompt is computed; while a stream
    decodes its answer, the prompts of the others are computed once each between its tokens.
    """
    alone = prefill(timing, prompt)
    step = decode_step(timing, streams, prompt, output)
    others = alone.times((streams - 1) / max(1, output))
    first = alone.plus(timing.request(prompt))
    return (first if streams == 1 else first.plus(step)), step.plus(others)


def _ms(time: Seconds) -> Estimate:
    return Estimate(time.value * 1e3, time.low * 1e3, time.high * 1e3)


def _energy(tokens: Estimate, watts: float) -> Estimate:
    low, value, high = _POWER_SHARE
    return Estimate(
        watts * value / tokens.value, watts * low / tokens.high, watts * high / tokens.low
    )


def _cost(tokens: Estimate, price: float) -> Estimate:
    factor = price / 3600 * 1e6
    return Estimate(factor / tokens.value, factor / tokens.high, factor / tokens.low)


def objectives_text(objectives: dict[str, float]) -> str:
    """Objectives as people read them."""
    return ", ".join(f"{name} at most {most:g} ms" for name, most in objectives.items())
