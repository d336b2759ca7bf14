"""`tidemill bench`: load-test an OpenAI-compatible server and report client-side latency."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemill.base.errors import config_error
from tidemill.cli.declared import option


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise config_error(
            name, f"--{name} takes numbers separated by commas, got {text!r}"
        ) from None


def _whole(name: str, text: str) -> tuple[int, ...]:
    numbers = _numbers(name, text)
    if not all(n.is_integer() for n in numbers):
        raise config_error(name, f"--{name} takes whole numbers separated by commas, got {text!r}")
    return tuple(int(n) for n in numbers)


def bench(
    url: str = option("http://127.0.0.1:8000/v1", help="Base URL of the server."),
    model: str | None = option(None, help="Model name; default: the server's first."),
    api_key: str | None = option(None, help="Bearer token."),
    endpoint: str = option("completions", help="completions or chat."),
    concurrency: str = option("1", help="Closed loop: parallel streams, comma-separated."),
    rate: str = option("", help="Open loop: Poisson requests/s, comma-separated."),
    requests: int | None = option(
        None, help="Requests per point; default: 4 per stream, at least 16."
    ),
    warmup: int = option(1, help="Requests sent before each point and not counted."),
    input_tokens: int = option(200, help="Prompt length."),
    output_tokens: int = option(64, help="Output length."),
    lengths: Path | None = option(None, help="JSONL or CSV file of (input, output) lengths."),
    token_ids: bool = option(False, help="Send prompts as token ids (exact lengths)."),
    vocab: int = option(1000, help="Token ids are drawn below this."),
    ignore_eos: bool = option(True, help="Ask the server for the full output length."),
    temperature: float = option(0.0, help="Sampling temperature."),
    shared_prefix: int = option(0, help="Tokens at the start that all prompts share."),
    seed: int = option(0, help="Seed of prompts and arrivals."),
    timeout: float = option(600.0, help="Seconds one request may take."),
    max_seconds: float = option(1800.0, help="Seconds one point may take."),
    json_file: Path | None = option(None, "--json", help="Also write the report as JSON."),
) -> None:
    """Measure TTFT, ITL, TPOT, end-to-end latency and throughput of a server."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from tidemill.bench.load import run_bench
    from tidemill.bench.options import BenchOptions
    from tidemill.bench.report import render_table, report_json

    options = BenchOptions(
        base_url=url,
        model=model,
        api_key=api_key,
        endpoint=endpoint,
        concurrency=_whole("concurrency", concurrency),
        rates=_numbers("rate", rate),
        requests=requests,
        warmup=warmup,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        lengths_file=lengths,
        token_ids=token_ids,
        vocab=vocab,
        ignore_eos=ignore_eos,
        temperature=temperature,
        shared_prefix=shared_prefix,
        seed=seed,
        timeout=timeout,
        max_seconds=max_seconds,
    )
    stderr = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        tasks: dict[str, object] = {}

        def progress(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done)  # type: ignore[arg-type]

        report = run_bench(options, progress)
    Console(width=None if stderr.is_terminal else 160).print(render_table(report))
    if json_file is not None:
        json_file.write_text(report_json(report) + "\n")
    if any(point.completed == 0 for point in report.points):
        sys.exit(1)
