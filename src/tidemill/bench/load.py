"""`run_bench`: every point of the options, measured."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.bench.client import Client, Clock, Connect, HttpFailure, Target
from tidemill.bench.dialects import DIALECTS, Sampling
from tidemill.bench.energy import EnergyMeter
from tidemill.bench.loops import POLL, Loops
from tidemill.bench.options import BenchOptions
from tidemill.bench.points import Progress, Run, workload_facts
from tidemill.bench.quality import exact_match, perplexity, read_questions
from tidemill.bench.results import BenchReport
from tidemill.bench.send import Sender
from tidemill.bench.workload import Workload


def target_of(options: BenchOptions) -> Target:
    """Where the endpoint's requests go. Raises ValueError for what is no URL."""
    dialect = DIALECTS[options.endpoint]
    target = Target.parse(options.base_url, None)
    keys = [h.format(options.api_key) for h in dialect.key_headers] if options.api_key else []
    return replace(target, path=dialect.path(target.path)).with_headers(*keys, *options.headers)


async def _quality(options: BenchOptions, sender: Sender) -> dict[str, Any] | None:
    """Measure the quality that the options ask for."""
    found: dict[str, Any] = {}
    if options.answers is not None:
        found["answers"] = await exact_match(
            sender, options.answers, options.match, options.answer_tokens, max(options.concurrency)
        )
    if options.perplexity is not None:
        found["perplexity"] = await perplexity(sender, options.perplexity)
    return found or None


def _sender(options: BenchOptions, client: Client, model: str, clock: Clock) -> Sender:
    dialect = DIALECTS[options.endpoint]
    ignore_eos = options.ignore_eos and options.endpoint in ("completions", "chat")
    sampling = Sampling(model, options.temperature, ignore_eos, options.extra)
    return Sender(client, dialect, sampling, clock, options.timeout, options.max_seconds)


async def measure_server(
    options: BenchOptions,
    progress: Progress = lambda *_: None,
    *,
    clock: Clock = monotonic,
    connect: Connect | None = None,
    poll: float = POLL,
) -> BenchReport:
    """Run every point of `options` in the running event loop; see `run_bench`.

    Args:
        clock, connect, poll: of the client, for tests in simulated time.

    Raises:
        OSError, HttpFailure, ValueError: when the server cannot be used.
    """
    client = Client(target_of(options), clock=clock, connect=connect)
    model = options.model
    if model is None:
        model = await DIALECTS[options.endpoint].first_model(client)
    if model is None:
        raise config_error("model", "the server lists no model; set one with --model")
    sender, workload = _sender(options, client, model, clock), Workload(options)
    loops = Loops(sender, workload.conversation, options.think, options.max_concurrency, poll)
    meter = partial(EnergyMeter, client.target.host)
    run = Run(options, workload, loops, progress, meter)
    try:
        search = await run.all_points()
        quality = await _quality(options, sender)
    finally:
        client.close()
    lengths = str(options.lengths_file or options.trace or "")
    return BenchReport(
        base_url=options.base_url,
        model=model,
        endpoint=options.endpoint,
        input_tokens=lengths or str(options.input_tokens),
        output_tokens=lengths or str(options.output_tokens),
        points=run.points,
        label=options.label or model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=workload_facts(options),
        objectives=dict(options.objectives),
        search=search,
        quality=quality,
        notes=run.notes(),
    )


def run_bench(options: BenchOptions, progress: Progress = lambda *_: None) -> BenchReport:
    """Run every point of `options` and report.

    Args:
        options: see `BenchOptions`.
        progress: called with (label of the point, finished requests, total requests).

    Raises:
        TidemillError: CONFIG for invalid options, UNAVAILABLE when the server cannot be reached.
            Failures of single requests are counted in the report.
    """
    options.validate()
    if options.answers is not None:
        read_questions(options.answers)
    try:
        return _in_loop(measure_server(options, progress))
    except (OSError, HttpFailure, ValueError) as error:
        raise TidemillError(
            ErrorKind.UNAVAILABLE,
            f"cannot use the server at {options.base_url}: {error}. Is it running, and does it "
            f"speak the endpoint {options.endpoint}?",
            param="base_url",
        ) from error


def _in_loop(main: Coroutine[Any, Any, BenchReport]) -> BenchReport:
    """`asyncio.run`, on uvloop where it is installed: it costs the client half the time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
