"""The load generator: prompts, closed and open loops, and a trace of each request."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.bench.client import HttpFailure, Target, get_json, stream_events
from tidemill.bench.options import BenchOptions, BenchReport, PointReport, RequestTrace
from tidemill.bench.report import summarize

# Common words that are one token in most vocabularies.
_WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman",
    "life", "child", "world", "school", "state", "family", "student", "group",
    "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "number", "night", "point", "home",
    "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business",
    "issue", "side", "kind", "head", "house", "service", "friend", "father",
    "power", "hour", "game", "line", "end", "member",
]  # fmt: skip

# Fields of a chat delta that carry output: text, reasoning (under both names), tool calls.
_CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls")

Progress = Callable[[str, int, int], None]


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(input, output) token counts from JSONL or CSV.

    Raises TidemillError of kind CONFIG naming the line that cannot be read.
    """
    pairs: list[tuple[int, int]] = []
    try:
        text = path.read_text()
    except OSError as error:
        raise config_error("lengths_file", f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or (number == 1 and line.lower().startswith("input")):
            continue
        try:
            if line.lstrip()[0] in "[{":
                row = json.loads(line)
                values = [row["input"], row["output"]] if isinstance(row, dict) else row
            else:
                values = next(csv.reader([line]))
            given, wanted = (int(v) for v in values[:2])
        except (ValueError, KeyError, TypeError) as error:
            raise config_error(
                "lengths_file", f"{path}, line {number}: expected two lengths, got {line[:60]!r}"
            ) from error
        if given < 1 or wanted < 1:
            raise config_error("lengths_file", f"{path}, line {number}: lengths must be at least 1")
        pairs.append((given, wanted))
    if not pairs:
        raise config_error("lengths_file", f"{path} holds no lengths")
    return pairs


class _Requests:
    """Generates distinct request bodies; equal seeds give equal bodies."""

    def __init__(self, options: BenchOptions, model: str) -> None:
        self._options = options
        self._model = model
        self._random = random.Random(options.seed)
        fixed = [(options.input_tokens, options.output_tokens)]
        pairs = read_lengths(options.lengths_file) if options.lengths_file else fixed
        self._lengths: Iterator[tuple[int, int]] = cycle(pairs)
        self._prefix = self._draw(options.shared_prefix)

    def _draw(self, count: int) -> list[int]:
        return [self._random.randrange(self._options.vocab) for _ in range(count)]

    def next(self) -> tuple[bytes, int]:
        """A request body and its requested input length."""
        options = self._options
        given, wanted = next(self._lengths)
        ids = (self._prefix + self._draw(max(0, given - len(self._prefix))))[:given]
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": wanted,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.ignore_eos:
            body["ignore_eos"] = True
        text = " ".join(_WORDS[i % len(_WORDS)] for i in ids)
        if options.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = ids if options.token_ids else text
        return json.dumps(body).encode(), given


def _read_event(event: bytes, trace: RequestTrace) -> bool:
    """Add one event to the trace; True when it carried output."""
    data = json.loads(event)
    if "error" in data:
        raise HttpFailure(200, json.dumps(data["error"]))
    usage = data.get("usage")
    if usage:
        trace.input_tokens = usage.get("prompt_tokens", trace.input_tokens)
        trace.output_tokens = usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        trace.cached_tokens = details.get("cached_tokens") or 0
    content = False
    for choice in data.get("choices", ()):
        trace.finish_reason = choice.get("finish_reason") or trace.finish_reason
        delta = choice.get("delta")
        output = [choice.get("text")] if delta is None else [delta.get(key) for key in _CONTENT]
        content = content or any(output)
    return content


async def _send_request(
    target: Target, options: BenchOptions, body: bytes, given: int, start: float, zero: float
) -> RequestTrace:
    trace = RequestTrace(start=start, input_tokens=given)
    left = options.max_seconds - (monotonic() - zero)
    route = "/chat/completions" if options.endpoint == "chat" else "/completions"
    try:
        async with asyncio.timeout(max(0.0, min(options.timeout, left))):
            async for events in stream_events(target, route, body):
                now = monotonic() - zero
                for event in events:
                    if event != b"[DONE]" and _read_event(event, trace):
                        trace.arrivals.append(now)
    except TimeoutError:
        trace.error = "timeout" if options.timeout <= left else "end of the point's time"
    except HttpFailure as failure:
        trace.error = f"http {failure.status}" if failure.status != 200 else "error in stream"
        trace.detail = str(failure)
    except (OSError, asyncio.IncompleteReadError) as error:
        trace.error, trace.detail = type(error).__name__, str(error)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        trace.error, trace.detail = "malformed response", str(error)
    trace.end = monotonic() - zero
    if trace.error is None and trace.finish_reason is None:
        trace.error = "stream cut off"
    trace.output_tokens = trace.output_tokens or len(trace.arrivals)
    return trace


async def _closed_loop(
    target: Target, options: BenchOptions, bodies: list[tuple[bytes, int]], streams: int,
    tick: Callable[[], None],
) -> list[RequestTrace]:  # fmt: skip
    zero = monotonic()
    traces: list[RequestTrace] = []
    waiting = iter(bodies)

    async def stream() -> None:
        for body, given in waiting:
            now = monotonic() - zero
            if now >= options.max_seconds:
                return
            traces.append(await _send_request(target, options, body, given, now, zero))
            tick()

    await asyncio.gather(*(stream() for _ in range(min(streams, len(bodies)))))
    return traces


async def _open_loop(
    target: Target, options: BenchOptions, bodies: list[tuple[bytes, int]], rate: float,
    tick: Callable[[], None],
) -> list[RequestTrace]:  # fmt: skip
    zero = monotonic()
    arrivals = random.Random(options.seed + 1)
    due = 0.0
    tasks: list[asyncio.Task[RequestTrace]] = []
    for body, given in bodies:
        due += arrivals.expovariate(rate)
        if due > options.max_seconds:
            break
        await asyncio.sleep(max(0.0, zero + due - monotonic()))
        # Latency counts from the due time, so that a late sender cannot hide queueing.
        task = asyncio.create_task(_send_request(target, options, body, given, due, zero))
        task.add_done_callback(lambda _: tick())
        tasks.append(task)
    return list(await asyncio.gather(*tasks))


async def _model_name(target: Target, options: BenchOptions) -> str:
    if options.model is not None:
        return options.model
    data = await get_json(target, "/models")
    models = data.get("data") if isinstance(data, dict) else None
    if not models:
        raise config_error("model", "the server lists no model; set one with --model")
    return str(models[0]["id"])


async def _run(options: BenchOptions, progress: Progress) -> BenchReport:
    target = Target.parse(options.base_url, options.api_key)
    model = await _model_name(target, options)
    source = _Requests(options, model)
    open_loop = bool(options.rates)
    points: list[PointReport] = []
    for value in options.rates or options.concurrency:
        label = f"{value:g} req/s" if open_loop else f"concurrency {value:g}"
        count = options.requests_for(value)
        for _ in range(options.warmup):
            body, given = source.next()
            await _send_request(target, options, body, given, 0.0, monotonic())
        # Prepared before the measurement: generating long prompts would delay running streams.
        bodies = [source.next() for _ in range(count)]
        finished = 0
        progress(label, 0, count)

        def tick(label: str = label, count: int = count) -> None:
            nonlocal finished
            finished += 1
            progress(label, finished, count)

        if open_loop:
            traces = await _open_loop(target, options, bodies, value, tick)
        else:
            traces = await _closed_loop(target, options, bodies, int(value), tick)
        points.append(summarize("rate" if open_loop else "concurrency", value, traces))
    lengths = str(options.lengths_file) if options.lengths_file else None
    return BenchReport(
        base_url=options.base_url,
        model=model,
        endpoint=options.endpoint,
        input_tokens=lengths or str(options.input_tokens),
        output_tokens=lengths or str(options.output_tokens),
        points=points,
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
    try:
        return asyncio.run(_run(options, progress))
    except (OSError, HttpFailure, ValueError) as error:
        raise TidemillError(
            ErrorKind.UNAVAILABLE,
            f"cannot use the server at {options.base_url}: {error}. Is it running, and does its "
            "URL end in /v1?",
            param="base_url",
        ) from error
