"""Settings of a benchmark run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.base.errors import config_error
from tidemill.bench.arrivals import KINDS
from tidemill.bench.dialects import DIALECTS
from tidemill.bench.lengths import length_draw
from tidemill.bench.quality import MATCHES

OBJECTIVES = ("ttft", "tpot", "itl", "e2e")
SWEEPS = ("concurrency", "rate")
MAX_RATE = 1e6
"""Requests per second: more than any server takes, and few enough to count."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """A load for a server.

    Attributes:
        base_url: for example ``http://127.0.0.1:8000/v1``.
        model: model name; None takes the first that the server lists.
        models: names among which sessions are drawn instead, such as those of adapters.
        model_skew: how unequally: the n-th name is drawn in proportion to 1 / n ** `model_skew`.
        api_key: key, if the server requires one.
        headers: further headers, each ``Name: value``.
        endpoint: a name of `dialects.DIALECTS`.
        extra: further members of every body.
        concurrency: closed loop: one measurement per number of parallel streams.
        rates: open loop: one measurement per arrival rate (requests per second); when given,
            `concurrency` is not used.
        arrivals: open loop: ``poisson``, ``gamma`` or ``constant``.
        burstiness: shape of gamma arrivals; below 1: bursts.
        ramp: open loop: Poisson arrivals whose rate goes from the first to the second number
            within `duration`; one measurement.
        trace: a published trace that is replayed (see `trace_files`).
        speeds: one measurement per speed of the trace; 2 halves all gaps.
        max_concurrency: open loop: requests in flight at most. Latencies include the wait for it.
        sweep: ``concurrency`` or ``rate``: points are chosen from what the server reaches.
        objectives: latency -> milliseconds that a request must meet.
        goodput: search the highest rate at which `target` of the requests meet the objectives.
        target: share of requests.
        precision: the search ends when its bounds differ by this share.
        requests: measured requests per point; None is 4 per stream, at least 16.
        duration: seconds in which a point sends, instead of a number of requests.
        warmup: unmeasured requests before each point.
        repeat: measurements of each point; confidence comes from them.
        steady_only: percentiles and rates are those of the steady part alone.
        input_tokens, output_tokens: lengths, or distributions of them (see `lengths`).
        lengths_file: JSONL (``{"input": 200, "output": 64}`` or ``[200, 64]``) or CSV of pairs; its
            rows are used cyclically instead of the fixed lengths.
        max_input, max_output: longer lengths are cut to these.
        token_ids: send prompts as token ids (exact lengths; the server must accept them) instead of
            words; `completions` only.
        vocab: ids are drawn from [0, vocab) when token_ids is set.
        ignore_eos: generation continues after the end token, so that lengths are exact; sent only
            where the endpoint knows it.
        temperature: 0 is greedy.
        shared_prefix: length of the prefix that prompts share, in tokens.
        prefix_groups: number of different shared prefixes.
        turns: requests of a conversation; each sends what was said before it.
        think: seconds between an answer and the next turn.
        seed: of prompts and arrivals.
        timeout: seconds one request may take.
        max_seconds: seconds one point may take; unfinished requests then count as errors.
        answers: JSONL of questions with expected answers (see `quality`), asked after the points.
        match: how answers are compared: ``exact``, ``prefix`` or ``contains``.
        answer_tokens: the most tokens of such an answer.
        perplexity: a text that is scored after the points.
        prices: US dollars: ``input``, ``output`` per million tokens; ``hour`` of the machine.
        label: a name for the run.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = None
    headers: tuple[str, ...] = ()
    endpoint: str = "completions"
    extra: Mapping[str, Any] = field(default_factory=dict)
    concurrency: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    arrivals: str = "poisson"
    burstiness: float = 1.0
    ramp: tuple[float, float] | None = None
    models: tuple[str, ...] = ()
    model_skew: float = 0.0
    trace: Path | None = None
    speeds: tuple[float, ...] = (1.0,)
    max_concurrency: int | None = None
    sweep: str | None = None
    objectives: Mapping[str, float] = field(default_factory=dict)
    goodput: bool = False
    target: float = 0.99
    precision: float = 0.05
    requests: int | None = None
    duration: float | None = None
    warmup: int = 1
    repeat: int = 1
    steady_only: bool = False
    input_tokens: int | str = 200
    output_tokens: int | str = 64
    lengths_file: Path | None = None
    max_input: int | None = None
    max_output: int | None = None
    token_ids: bool = False
    vocab: int = 1000
    ignore_eos: bool = True
    temperature: float = 0.0
    shared_prefix: int = 0
    prefix_groups: int = 1
    turns: int = 1
    think: float = 0.0
    seed: int = 0
    timeout: float = 600.0
    max_seconds: float = 1800.0
    answers: Path | None = None
    match: str = "exact"
    answer_tokens: int = 64
    perplexity: Path | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    label: str = ""

    def validate(self) -> BenchOptions:
        """Return self if the options make sense together.

        Raises:
            TidemillError: kind CONFIG, `param` naming the option.
        """
        if self.endpoint not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise config_error("endpoint", f"endpoint is one of {known}, not {self.endpoint!r}")
        if self.token_ids and self.endpoint != "completions":
            raise config_error("token_ids", "token ids need the completions endpoint")
        if self.token_ids and self.turns > 1:
            raise config_error("turns", "later turns repeat answers as text: no token_ids with it")
        if self.arrivals not in KINDS:
            raise config_error("arrivals", f"arrivals is one of {', '.join(KINDS)}")
        if self.sweep is not None and self.sweep not in SWEEPS:
            raise config_error("sweep", f"sweep is one of {', '.join(SWEEPS)}")
        if self.match not in MATCHES:
            raise config_error("match", f"match is one of {', '.join(MATCHES)}")
        if self.perplexity is not None and self.endpoint != "completions":
            raise config_error("perplexity", "perplexity needs the endpoint completions")
        self._validate_load()
        self._validate_numbers()
        length_draw("input_tokens", str(self.input_tokens))
        length_draw("output_tokens", str(self.output_tokens))
        return self

    def _validate_load(self) -> None:
        if not self.rates and not self.concurrency:
            raise config_error("concurrency", "give at least one concurrency or rate")
        if any(c < 1 for c in self.concurrency):
            raise config_error("concurrency", "every concurrency must be at least 1")
        if any(not 0 < r <= MAX_RATE for r in self.rates):
            raise config_error(
                "rates",
                f"every rate must be above 0, and at most {MAX_RATE:,.0f} requests per second",
            )
        if any(not 0 < s < math.inf for s in self.speeds):
            raise config_error("speeds", "every speed must be above 0")
        if self.ramp is not None and (min(self.ramp) < 0 or max(self.ramp) <= 0):
            raise config_error("ramp", "a ramp goes between rates of 0 or more")
        if self.ramp is not None and self.duration is None:
            raise config_error("duration", "a ramp needs a duration")
        chosen = {
            "rate": bool(self.rates), "ramp": self.ramp is not None,
            "trace": self.trace is not None, "sweep": self.sweep is not None,
            "goodput": self.goodput,
        }  # fmt: skip
        given = [name for name, is_given in chosen.items() if is_given]
        if len(given) > 1 and set(given) != {"rate", "goodput"}:
            raise config_error(given[0], f"{' and '.join(given)} exclude each other: give one")
        if self.goodput and not self.objectives:
            raise config_error(
                "goodput", "a goodput search needs objectives, such as --slo ttft=200,tpot=50"
            )
        unknown = set(self.objectives) - set(OBJECTIVES)
        if unknown:
            raise config_error("slo", f"objectives are {', '.join(OBJECTIVES)}, not {unknown}")

    def _validate_numbers(self) -> None:
        for name in ("vocab", "prefix_groups", "turns", "repeat", "answer_tokens"):
            if getattr(self, name) < 1:
                raise config_error(name, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "shared_prefix", "think", "model_skew"):
            if getattr(self, name) < 0:
                raise config_error(name, f"{name} must not be negative")
        for name in ("requests", "max_input", "max_output", "max_concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise config_error(name, f"{name} must be at least 1, got {value}")
        for name in ("burstiness", "timeout", "max_seconds", "duration"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise config_error(name, f"{name} must be above 0, got {value}")
        for name in ("target", "precision"):
            if not 0 < getattr(self, name) <= 1:
                raise config_error(name, f"{name} is a share: above 0, at most 1")

    def requests_for(self, point: float) -> int | None:
        """Measured requests at one concurrency or rate; None: as many as `duration` allows."""
        if self.requests is None and self.duration is not None:
            return None
        return self.requests if self.requests is not None else max(16, int(4 * point))
