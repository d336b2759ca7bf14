"""`tidemill plan`: what a model needs and how fast it will be, before anything is downloaded."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli import options
from tidemill.cli.declared import option
from tidemill.cli.outputs import check_writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.table import Table

    from tidemill.library.locate import Located
    from tidemill.loading.parts import ModelFiles
    from tidemill.planning.devices import Device
    from tidemill.planning.plan import Plan, Where
    from tidemill.planning.predict import Estimate, Prediction


def plan(
    model: str | None = options.MODEL,
    file: str | None = options.FILE,
    revision: str | None = options.REVISION,
    device: str | None = option(
        None,
        help="Plan for this described device instead of this machine; `list` lists them. Several "
        "with commas for --trace and --rate, which choose among them.",
    ),
    devices: str | None = option(
        None, help="TOML file with more devices (docs/planning.md describes it)."
    ),
    memory: str | None = option(
        None, help="Memory for the model, such as 16GiB. Default: the device's, or what is free."
    ),
    context: int | None = option(
        None,
        "--context",
        "--max-model-len",
        help="Tokens of a request at most, prompt and answer.",
    ),
    concurrency: int | None = option(None, help="Requests of that length at once."),
    prompt: int = option(512, help="Tokens of a prompt, for predicted latencies."),
    output: int = option(128, help="Tokens of an answer, for predicted latencies."),
    objective: str | None = option(
        None, help='Latencies that must be met, such as "ttft<1s,itl<50ms".'
    ),
    trace: Path | None = option(
        None, help="Search the cheapest fleet for a trace (`tidemill bench --trace`) by simulation."
    ),
    rate: float | None = option(
        None, help="Search it for so many requests/s of --prompt and --output tokens."
    ),
    requests: int | None = option(None, help="Requests of the trace or at the rate, at most."),
    target: float = option(0.99, help="Share of the requests that must meet --objective."),
    budget: float | None = option(None, help="USD per hour that the fleet may cost."),
    max_engines: int = option(64, help="Engines of the fleet at most."),
    tensor_parallel: str = option(
        "1", help="Devices that compute as one engine of the fleet: those to try, such as 1,2,4."
    ),
    efficiency: float = option(
        0.8, help="By which share of their number devices together are quicker."
    ),
    usd_per_hour: float | None = option(None, help="Price of the machine."),
    watts: float | None = option(None, help="Power of the machine under load."),
    backend: str = options.BACKEND,
    dtype: str = options.DTYPE,
    quantize: str = options.QUANTIZE,
    kv_dtype: str = options.KV_DTYPE,
    block_size: int = options.BLOCK_SIZE,
    max_num_seqs: int = options.MAX_NUM_SEQS,
    max_step_tokens: int = options.MAX_STEP_TOKENS,
    kv_memory: str | None = options.KV_MEMORY,
    threads: int | None = options.THREADS,
    isa: str | None = options.ISA,
    speculate: str = options.SPECULATE,
    json: bool = option(False, "--json", help="Print one JSON document."),
    plot: str | None = option(
        None, help="Write a picture (SVG): latency against throughput with the objective's line."
    ),
) -> None:
    """Plan a model: the memory it takes, what fits, how fast it will be and what it costs.

    Reads config and headers alone: of a model on the hub nothing else is downloaded.
    """
    from tidemill.base.errors import config_error
    from tidemill.contract.config import HIGHEST, EngineConfig
    from tidemill.loading.hub_name import with_options
    from tidemill.planning.plan import Load, make_plan
    from tidemill.planning.predict import read_objectives

    check_writable(plot=None if plot is None else Path(plot))
    known = _devices(devices)
    if device == "list":
        _print([_device_table(known.values())])
        return
    counts = {"context": context, "concurrency": concurrency, "prompt": prompt, "output": output}
    for name, value in counts.items():
        most = HIGHEST["max_num_seqs"] if name == "concurrency" else 2**31 - 1
        if value is not None and not 1 <= value <= most:
            raise config_error(name, f"--{name} must be from 1 to {most}, got {value}")
    for name, amount in {
        "usd-per-hour": usd_per_hour,
        "watts": watts,
        "budget": budget,
    }.items():
        if amount is not None and not 0 < amount < 1e9:
            raise config_error(name, f"--{name} must be above 0, got {amount}")
    if trace is None and rate is None:
        if tensor_parallel != "1":
            raise config_error(
                "tensor-parallel", "--tensor-parallel is of a fleet: give --trace or --rate"
            )
        if device is not None and "," in device:
            raise config_error(
                "device", "--device names several for a fleet alone: give --trace or --rate"
            )
    elif plot is not None:
        raise config_error("plot", "--plot shows no fleet: leave --trace and --rate out")
    chosen = kv_memory is not None and concurrency is None
    load = Load(
        None if chosen else context, concurrency, prompt, output, read_objectives(objective)
    )
    with _opened(with_options(model, file, revision), backend) as (located, files):
        config = EngineConfig(
            model=str(files.path),
            served_name=located.name,
            backend=backend,
            dtype=dtype,
            quantize=quantize if quantize != "none" else located.definition.quantize or "none",
            kv_dtype=kv_dtype,
            block_size=block_size,
            max_model_len=context or located.definition.max_model_len,
            max_num_seqs=max(max_num_seqs, concurrency or 1),
            max_step_tokens=max_step_tokens,
            kv_memory=options.parse_bytes("kv-memory", kv_memory),
            threads=threads,
            isa=isa,
            speculate=speculate,
        ).validate()
        if trace is not None or rate is not None:
            from tidemill.cli.plan_fleet import Demand, plan_fleet

            demand = Demand(
                trace, rate, requests, target, budget, max_engines, load, json, efficiency
            )
            numbers = _numbers_of_devices(tensor_parallel, device, efficiency)
            places = [
                (name or "this machine", _where(known, name, memory, usd_per_hour, watts))
                for name in (device.split(",") if device else [None])
            ]
            plans = [
                (name, count, make_plan(config, files, replace(at, memory=count * at.memory), load))
                for name, at in places
                for count in numbers
            ]
            plan_fleet(demand, plans)
            return
        where = _where(known, device, memory, usd_per_hour, watts)
        made = make_plan(config, files, where, load)
    if plot is not None:
        _write_plot(made, plot)
    if json:
        import json as to_json

        print(to_json.dumps(made.as_json(), indent=2))
        return
    _print(_tables(made))


def _numbers_of_devices(text: str, device: str | None, efficiency: float) -> list[int]:
    from tidemill.base.errors import config_error

    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not 1 <= numbers[0] <= numbers[-1] <= 64:
        raise config_error(
            "tensor-parallel", f"--tensor-parallel takes numbers from 1 to 64, got {text!r}"
        )
    if numbers[-1] > 1 and device is None:
        raise config_error("device", "--tensor-parallel needs --device: this machine is one")
    if not 0 < efficiency <= 1:
        raise config_error("efficiency", "--efficiency is a share: above 0, at most 1")
    return numbers


def _devices(path: str | None) -> dict[str, Device]:
    from tidemill.planning.device_table import DEVICES
    from tidemill.planning.devices import read_devices

    return DEVICES | (read_devices(Path(path), DEVICES) if path is not None else {})


@contextmanager
def _opened(model: str | None, backend: str) -> Iterator[tuple[Located, ModelFiles]]:
    """A model's headers: where it lies, or fetched into a folder that is removed afterwards."""
    import sys
    import tempfile

    from tidemill.cli.machine import human_bytes
    from tidemill.library.headers import fetch_headers
    from tidemill.library.locate import Located, locate, remote_name
    from tidemill.loading.checkpoint import open_model

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    name = remote_name(model)
    if name is None:
        located = locate(model, say)
        yield located, open_model(located.path, backend)
        return
    with tempfile.TemporaryDirectory(prefix="tidemill-plan-") as folder:
        found = fetch_headers(name, Path(folder), say)
        say(
            f"{name}: read {human_bytes(found.fetched)} of headers; the model's files are "
            f"{human_bytes(found.files)}"
        )
        yield Located(found.path, str(name)), open_model(found.path, backend)


def _where(
    known: dict[str, Device],
    name: str | None,
    memory: str | None,
    price: float | None,
    watts: float | None,
) -> Where:
    from tidemill.base.errors import config_error
    from tidemill.library.home import COSTS, default_home
    from tidemill.planning.plan import Where
    from tidemill.worker.machine import available_memory

    given = options.parse_bytes("memory", memory)
    if name is None:
        return Where(
            memory=given or available_memory(),
            memory_of="as given" if given else "free on this machine",
            measured=default_home() / COSTS,
            watts=watts,
            price=price,
        )
    if name not in known:
        raise config_error(
            "device",
            f"--device {name!r} is not known; there are {', '.join(known)}, and --devices FILE "
            "adds more",
        )
    return Where(
        memory=given or known[name].memory,
        memory_of="as given" if given else f"of {name}",
        device=known[name],
        price=price,
    )


def _write_plot(made: Plan, path: str) -> None:
    from tidemill.base.errors import config_error
    from tidemill.planning.plot import svg

    if made.predicted is None:
        raise config_error("plot", f"--plot has nothing to show: {made.why_none}")
    device = made.where.device
    where = "this machine" if device is None else device.name
    Path(path).write_text(svg(made.predicted, f"{made.config.served_name} on {where}"))


def _print(tables: Iterable[Table | str]) -> None:
    import sys

    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for i, table in enumerate(tables):
        if i:
            console.print()
        console.print(table, markup=False) if isinstance(table, str) else console.print(table)


def _device_table(devices: Iterable[Device]) -> Table:
    table = _table(
        "Devices", "name", "memory", "GB/s", "TFLOPS bf16", "8 bits", "W", "USD/h", "source"
    )
    for device in devices:
        table.add_row(
            device.name,
            _size(device.memory),
            f"{device.bandwidth / 1e9:,.0f}",
            f"{device.rate('bfloat16') / 1e12:,.1f}",
            f"{device.rate('int8') / 1e12:,.1f}",
            "" if device.watts is None else f"{device.watts:,.0f}",
            "" if device.price is None else f"{device.price:.2f}",
            device.source,
        )
    return table


def _tables(made: Plan) -> list[Table | str]:
    found: list[Table | str] = [_memory_table(made), _room_table(made)]
    if made.alternatives:
        found.append(_alternative_table(made))
    if made.predicted is None:
        found.append(f"No prediction: {made.why_none}.")
    else:
        found += [_prediction_table(made.predicted), *_remarks(made.predicted)]
    return found


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if not i else "right")
    return table


def _size(count: float) -> str:
    from tidemill.cli.machine import human_bytes

    return human_bytes(count)


def _memory_table(made: Plan) -> Table:
    fitted, needs = made.fit, made.needs
    types = f"{needs.backend}, {needs.dtype}, KV cache {needs.kv_dtype}"
    table = _table(f"Memory ({types})", "what", "bytes")
    table.add_row("model", made.config.served_name)
    for part, size in needs.weights.items():
        table.add_row(f"weights: {part}", _size(size))
    if needs.file_rows:
        table.add_row("  of them read in the file, row by row", _size(needs.file_rows))
    for cache in needs.caches:
        window = "" if cache.window is None else f" of {cache.window:,}"
        table.add_row(
            f"KV per token: {cache.kind}{window}, {cache.layers} layers", _size(cache.token_bytes)
        )
    if needs.state:
        table.add_row("recurrent states per sequence", _size(2 * needs.state))
    requests = f"{fitted.concurrency:,} of {fitted.context:,} tokens"
    table.add_row(f"cache, full: {requests}", _size(fitted.cache))
    table.add_row("largest step and its logits", _size(fitted.activations))
    table.add_row("engine process", _size(fitted.process))
    if fitted.server:
        table.add_row("API process", _size(fitted.server))
    table.add_row("total", _size(fitted.total), style="bold")
    table.add_row(f"memory {made.where.memory_of}", _size(fitted.memory))
    return table


def _room_table(made: Plan) -> Table:
    fitted, left = made.fit, made.budget
    table = _table("What fits", "what", "")
    table.add_row("fits", "yes" if fitted.fits else f"no: {fitted.why}", style="bold")
    together = f", {made.load.concurrency:,} at once" if made.load.concurrency else ""
    table.add_row(f"longest context{together}", f"{fitted.max_context:,} tokens")
    table.add_row(f"requests of {fitted.context:,} tokens at once", f"{fitted.max_concurrency:,}")
    table.add_row("left", _size(left.bytes))
    if left.adapter_bytes:
        table.add_row(
            f"  as adapters of rank 16 ({_size(left.adapter_bytes)} each)", f"{left.adapters:,}"
        )
    table.add_row("  as a draft model with its cache, at most", _size(left.draft_bytes))
    return table


def _alternative_table(made: Plan) -> Table:
    table = _table(
        "Other types for the same requests",
        "flags", "total", "fits", "longest context", "at once",
    )  # fmt: skip
    for other in made.alternatives:
        table.add_row(
            f"--quantize {other.quantize} --kv-dtype {other.kv_dtype}",
            _size(other.total),
            "yes" if other.fits else "no",
            f"{other.max_context:,}",
            f"{other.max_concurrency:,}",
        )
    return table


def _prediction_table(found: Prediction) -> Table:
    first = found.points[0]
    columns = ["streams", "first token, ms", "per token, ms", "output tokens/s"]
    columns += ["J/token"] if first.joules_per_token else []
    columns += ["USD/million"] if first.usd_per_million_tokens else []
    columns += ["objective"] if found.objectives else []
    table = _table(f"Predicted: {found.prompt} tokens in, {found.output} out", *columns)
    for point in found.points:
        cells = [point.ttft_ms, point.tpot_ms, point.output_tokens_per_second]
        cells += [e for e in (point.joules_per_token, point.usd_per_million_tokens) if e]
        met = "yes" if point.surely else "likely" if point.meets else "no"
        mark = "*" if point.beyond else ""
        table.add_row(
            f"{point.concurrency}{mark}",
            *(_estimate(cell) for cell in cells),
            *([met] if found.objectives else []),
        )
    return table


def _estimate(found: Estimate) -> str:
    return f"{_digits(found.value)} ({_digits(found.low)} to {_digits(found.high)})"


def _digits(value: float) -> str:
    """Three significant digits, and all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def _remarks(found: Prediction) -> Iterator[str]:
    from tidemill.planning.predict import objectives_text

    said = [f"rests on: {found.basis}"]
    if any(point.beyond for point in found.points):
        beyond = next(point.beyond for point in reversed(found.points) if point.beyond)
        said.append(f"* extrapolated: {', '.join(beyond)}")
    if found.objectives:
        what = objectives_text(found.objectives)
        best = "no number of streams meets" if found.best is None else f"{found.best} streams meet"
        said.append(f"{best} {what}, with the most throughput" if found.best else f"{best} {what}")
    yield "\n".join(said)
