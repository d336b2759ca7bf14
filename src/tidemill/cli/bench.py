"""`tidemill bench`: load-test a server, compare runs, and draw reports."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.base.errors import config_error
from tidemill.cli.declared import argument, command, option
from tidemill.cli.outputs import check_writable

if TYPE_CHECKING:
    from tidemill.bench.options import BenchOptions
    from tidemill.bench.points import Progress
    from tidemill.bench.results import BenchReport

_DEFAULT_URL = "http://127.0.0.1:8000/v1"

MOST_NAMES = 10_000
"""That a range in --models stands for."""


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


def named_numbers(name: str, text: str) -> dict[str, float]:
    """``ttft=200,tpot=50`` as numbers by name."""
    try:
        pairs = [part.split("=") for part in text.split(",") if part.strip()]
        found = {key.strip(): float(value) for key, value in pairs}
        if not all(map(math.isfinite, found.values())):
            raise ValueError
        return found
    except ValueError:
        raise config_error(name, f"--{name} takes NAME=NUMBER,..., got {text!r}") from None


def _ramp(text: str) -> tuple[float, float] | None:
    try:
        first, last = (float(part) for part in text.split(":")) if text else (0.0, 0.0)
    except ValueError:
        raise config_error("ramp", f"--ramp takes FROM:TO in requests/s, got {text!r}") from None
    return (first, last) if text else None


def _extra(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise config_error("extra-body", f"--extra-body takes a JSON object, got {text!r}")
    return value


_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def _names(text: str) -> tuple[str, ...]:
    """``a,b-{1..3}`` as names."""
    names: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if (found := _RANGE.search(part)) is None:
            names.append(part)
            continue
        first, last = int(found[1]), int(found[2])
        if not first <= last < first + MOST_NAMES:
            raise config_error(
                "models", f"{found[0]} counts upwards, through {MOST_NAMES:,} names at most"
            )
        names += [part.replace(found[0], str(number)) for number in range(first, last + 1)]
    return tuple(names)


def load_of(
    concurrency: str = option("1", help="Closed loop: parallel streams, comma-separated."),
    rate: str | None = option(None, help="Open loop: requests/s, comma-separated."),
    arrivals: str = option("poisson", help="Open loop: poisson, gamma or constant."),
    burstiness: float = option(1.0, help="Shape of gamma arrivals; below 1: bursts."),
    ramp: str | None = option(
        None, help="Open loop: FROM:TO requests/s, linearly within --duration."
    ),
    trace: Path | None = option(
        None, help="Replay a trace: Azure's, BurstGPT's or Mooncake's file."
    ),
    trace_speed: str = option("1", help="Speeds of the trace, comma-separated; 2: half the gaps."),
    max_concurrency: int | None = option(
        None, help="Open loop: requests in flight at most; latencies include the wait."
    ),
    sweep: str | None = option(None, help="Choose points: concurrency or rate."),
    slo: str | None = option(None, help="Objectives in ms: ttft=200,tpot=50,itl=500,e2e=5000."),
    goodput: bool = option(False, help="Search the highest rate that meets --slo."),
    target: float = option(0.99, help="Share of the requests that must meet --slo."),
    precision: float = option(0.05, help="The search ends when its bounds differ by this share."),
    requests: int | None = option(
        None, help="Requests per point; default: 4 per stream, at least 16."
    ),
    duration: float | None = option(None, help="Seconds in which a point sends."),
    warmup: int = option(1, help="Requests sent before each point and not counted."),
    repeat: int = option(1, help="Measurements of each point; 3 or more give confidence."),
    steady_only: bool = option(False, help="Count only the part after the warm-up was over."),
    input_tokens: str = option(
        "200", help="Prompt length, or uniform:LOW:HIGH, normal:MEAN:SD, lognormal:MEDIAN:SIGMA."
    ),
    output_tokens: str = option("64", help="Output length; as --input-tokens."),
    lengths: Path | None = option(None, help="JSONL or CSV file of (input, output) lengths."),
    max_input: int | None = option(None, help="Cut longer prompts, such as those of a trace."),
    max_output: int | None = option(None, help="Cut longer answers."),
    models: str = option(
        "", help="Names (adapters) that requests are spread over: a,b,lora-{1..100}."
    ),
    model_skew: float = option(
        0.0, help="The n-th of --models is drawn in proportion to 1/n^SKEW; 0: all alike."
    ),
    token_ids: bool = option(False, help="Send prompts as token ids (exact lengths)."),
    vocab: int = option(1000, help="Token ids are drawn below this."),
    ignore_eos: bool = option(True, help="Ask the server for the full output length."),
    temperature: float = option(0.0, help="Sampling temperature."),
    shared_prefix: int = option(0, help="Tokens at the start that prompts share."),
    prefix_groups: int = option(1, help="Number of different shared prefixes."),
    turns: int = option(1, help="Requests of a conversation; each repeats what was said."),
    think: float = option(0.0, help="Seconds between an answer and the next turn."),
    seed: int = option(0, help="Seed of prompts and arrivals."),
    timeout: float = option(600.0, help="Seconds one request may take."),
    max_seconds: float = option(1800.0, help="Seconds one point may take."),
    prices: str | None = option(
        None, help="US dollars: input=0.1,cached=0.01,output=0.4 per million tokens, hour=2."
    ),
    label: str | None = option(None, help="Name of the run in plots and comparisons."),
) -> BenchOptions:
    """The load that these flags describe, for no server yet."""
    from tidemill.bench.options import BenchOptions

    return BenchOptions(
        base_url="",
        concurrency=_whole("concurrency", concurrency),
        rates=_numbers("rate", rate or ""),
        arrivals=arrivals,
        burstiness=burstiness,
        ramp=_ramp(ramp or ""),
        models=_names(models),
        model_skew=model_skew,
        trace=trace,
        speeds=_numbers("trace-speed", trace_speed),
        max_concurrency=max_concurrency,
        sweep=sweep,
        objectives=named_numbers("slo", slo or ""),
        goodput=goodput,
        target=target,
        precision=precision,
        requests=requests,
        duration=duration,
        warmup=warmup,
        repeat=repeat,
        steady_only=steady_only,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        lengths_file=lengths,
        max_input=max_input,
        max_output=max_output,
        token_ids=token_ids,
        vocab=vocab,
        ignore_eos=ignore_eos,
        temperature=temperature,
        shared_prefix=shared_prefix,
        prefix_groups=prefix_groups,
        turns=turns,
        think=think,
        seed=seed,
        timeout=timeout,
        max_seconds=max_seconds,
        prices=named_numbers("prices", prices or ""),
        label=label or "",
    )


def measure(
    load: BenchOptions,
    address: str | None = argument(None, help="The server's URL."),
    url: str = option(_DEFAULT_URL, help="The server, where no argument names one."),
    model: str | None = option(None, help="Model name; default: the server's first."),
    api_key: str | None = option(None, help="Key of the server.", envvar="TIDEMILL_API_KEY"),
    header: tuple[str, ...] = option((), help="Further header, 'Name: value'; repeatable."),
    endpoint: str = option(
        "completions",
        help="completions, chat, responses, anthropic, ollama, ollama-generate or tgi.",
    ),
    extra_body: str | None = option(None, help="JSON object: further members of every request."),
    answers: Path | None = option(
        None, help="Quality: JSONL of prompt (or messages) and expected, asked after the points."
    ),
    match: str = option("exact", help="How answers are compared: exact, prefix or contains."),
    answer_tokens: int = option(64, help="The most tokens of such an answer."),
    perplexity: Path | None = option(None, help="Quality: a text file that the server scores."),
    json_file: Path | None = option(None, "--json", help="Also write the report as JSON."),
    csv_file: Path | None = option(None, "--csv", help="Also write a row per point as CSV."),
    html_file: Path | None = option(None, "--html", help="Also write a page with plots."),
) -> None:
    """Measure TTFT, ITL, TPOT, end-to-end latency and throughput of a server.

    Latencies count from the time at which a request was due, so that a late client hides nothing.
    docs/benchmarking.md says what the figures mean.
    """
    from tidemill.bench.load import run_bench

    options = replace(
        load,
        base_url=address or url,
        model=model,
        api_key=api_key,
        headers=header,
        endpoint=endpoint,
        extra=_extra(extra_body or ""),
        answers=answers,
        match=match,
        answer_tokens=answer_tokens,
        perplexity=perplexity,
    )
    check_writable(json=json_file, csv=csv_file, html=html_file)
    report = with_progress(partial(run_bench, options))
    print_report(report)
    write_report(report, json_file, csv_file, html_file)
    fail_without_answers(report)


def fail_without_answers(report: BenchReport) -> None:
    """End with 1 where there is a point of which no request was answered."""
    if any(point.completed == 0 for point in report.points):
        sys.exit(1)


def with_progress(measure: Callable[[Progress], BenchReport]) -> BenchReport:
    """Run with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressBar

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Two refreshes a second: the bar is drawn by the process that measures.
    with ProgressBar(
        *columns, console=Console(stderr=True), transient=True, refresh_per_second=2
    ) as bar:
        tasks: dict[str, Any] = {}

        def progress(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total or None)
            bar.update(tasks[label], completed=done)

        return measure(progress)


def print_report(report: BenchReport) -> None:
    from rich.console import Console

    from tidemill.bench.report import render_table

    is_terminal = Console(stderr=True).is_terminal
    console = Console(width=None if is_terminal else 160)
    console.print(render_table(report, console.width))


def write_report(
    report: BenchReport, json_file: Path | None, csv_file: Path | None, html_file: Path | None
) -> None:
    from tidemill.bench.report import report_csv, report_json

    if json_file is not None:
        json_file.write_text(report_json(report) + "\n")
    if csv_file is not None:
        csv_file.write_text(report_csv(report))
    if html_file is not None:
        from tidemill.bench.html import render_html

        html_file.write_text(render_html([report]), encoding="utf-8")


def _read(files: tuple[Path, ...]) -> list[BenchReport]:
    from tidemill.bench.reading import read_report

    reports = [read_report(file) for file in files]
    labels = [report.label for report in reports]
    for report, file in zip(reports, files, strict=True):
        if labels.count(report.label) > 1:
            report.label = file.stem
    return reports


def compare_runs(
    a: Path = argument(..., help="JSON of the first run."),
    b: Path = argument(..., help="JSON of the run that is judged against it."),
    html_file: Path | None = option(None, "--html", help="Also write a page with plots."),
    json_file: Path | None = option(None, "--json", help="Also write the comparison as JSON."),
    fail_if_slower: bool = option(False, help="Exit with 1 where B is shown to be slower."),
) -> None:
    """Say whether run B is faster or slower than run A, or whether neither is shown.

    Reads what `tidemill bench --json`, `vllm bench serve --save-result` and guidellm wrote.
    """
    from dataclasses import asdict

    from rich.console import Console

    from tidemill.bench.compare import SLOWER, compare
    from tidemill.bench.html import render_html
    from tidemill.bench.report import render_comparison

    first, second = _read((a, b))
    found = compare(first, second)
    console = Console(width=None if Console().is_terminal else 160)
    console.print(render_comparison(found, console.width))
    console.print(found.sentence(), markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        json_file.write_text(json.dumps(asdict(found), indent=2) + "\n")
    if html_file is not None:
        html_file.write_text(render_html([first, second]), encoding="utf-8")
    if fail_if_slower and found.verdict == SLOWER:
        sys.exit(1)


def draw_report(
    files: tuple[Path, ...] = argument(..., help="JSON of runs; the first is the baseline."),
    html_file: Path = option(Path("bench.html"), "--html", help="Where the page is written."),
) -> None:
    """Draw runs as one page with plots, and compare each with the first."""
    from tidemill.bench.html import render_html

    reports = _read(files)
    if not any(report.points for report in reports):
        raise config_error("files", "no file has a point to draw")
    html_file.write_text(render_html(reports), encoding="utf-8")
    print(html_file)


class _Bench(click.Group):
    """`bench URL ...` measures; `bench COMMAND ...` does what the command says."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a command's name first, everything belongs to the measurement."""
        if not args or args[0] not in {*self.commands, "-h", "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = _Bench(
    "bench",
    help=(
        "Load-test a server, compare runs and draw reports.\n\n"
        "`tidemill bench URL` is short for `tidemill bench run URL`, whose --help has the options."
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
bench.add_command(command("run", measure, load_of))
for _name, _function in (("compare", compare_runs), ("report", draw_report)):
    bench.add_command(command(_name, _function))
