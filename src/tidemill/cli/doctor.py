"""`tidemill doctor`: the machine's hardware and capabilities, and what Tidemill would use; or how
the targets of a gateway are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tidemill.cli.acting import JSON, print_json, print_table
from tidemill.cli.declared import option


def doctor(
    bandwidth: bool = option(True, help="Measure the memory's read bandwidth (about 1 s)."),
    cluster: Path | None = option(
        None,
        help="Instead: ask every target of this gateway's or deployment file how it is.",
    ),
    as_json: bool = JSON,
) -> None:
    """Report hardware, instruction sets, memory and read bandwidth.

    With --cluster: whether each target of a gateway is reached, how far it is, its version, key,
    clock and models; the exit code is 1 if something is wrong.
    """
    if cluster is not None:
        _examine(cluster, as_json=as_json)
        return
    import platform

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tidemill import __version__
    from tidemill.backends import native
    from tidemill.cli.machine import describe_cpu, installed
    from tidemill.library.home import COSTS, default_home
    from tidemill.planning.kept import find_rates
    from tidemill.worker.machine import available_memory, usable_cpus

    threads = usable_cpus()
    isas = native.available_isas()
    facts: dict[str, Any] = {
        "tidemill": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "processor": describe_cpu(),
        "threads": threads,
        "free_memory": available_memory(),
        "isas": list(isas),
        "torch": installed("torch"),
    }
    if bandwidth:
        with Console(stderr=True).status("measuring read bandwidth ..."):
            facts["read_bandwidth"] = native.read_bandwidth(threads)
            facts["read_bandwidth_one_thread"] = native.read_bandwidth(1)
    if as_json:
        print_json(facts)
        return
    rows: list[tuple[str, str]] = [
        ("tidemill", facts["tidemill"]),
        ("python", facts["python"]),
        ("processor", facts["processor"]),
        ("threads it may use", str(threads)),
        ("free memory", f"{facts['free_memory'] / 2**30:.1f} GiB"),
        ("kernels that run here", ", ".join(isas)),
        ("will be used", f"native backend, {isas[0]}, {threads} threads"),
        ("torch backend", facts["torch"] or "not installed (pip install 'tidemill[torch]')"),
    ]
    if bandwidth:
        alone, together = facts["read_bandwidth_one_thread"], facts["read_bandwidth"]
        figure = f"{together / 1e9:.1f} GB/s with {threads} threads, {alone / 1e9:.1f} with one"
        rows.append(("read bandwidth", figure))
        rows.append(("a 1 GB model decodes at", f"most {together / 1e9:.0f} tokens/s per stream"))
    rates = find_rates(default_home() / COSTS)
    measured = "no (`tidemill calibrate --machine`)" if rates is None else rates.created
    rows.append(("measured for plans", measured))
    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))  # no markup parsing
    Console().print(table)


def _examine(file: Path, *, as_json: bool) -> None:
    import asyncio

    from tidemill.gateway.config import read_any
    from tidemill.gateway.examine import as_builtins, examine

    reports, together = asyncio.run(examine(read_any(file)))
    wrong = bool(together) or any(report.problems for report in reports)
    if as_json:
        print_json(as_builtins(reports, together))
        sys.exit(1 if wrong else 0)
    rows = [
        {
            "target": one.name,
            "kind": one.kind,
            "connect": _milliseconds(one.connect_ms),
            "round trip": _milliseconds(one.round_trip_ms),
            "version": one.version,
            "protocol": one.protocol,
            "clock": "" if one.clock is None else f"{one.clock:+.0f} s",
            "models": len(one.models) or "",
            "longest wait": f"{max(one.waits.values()):.1f} s" if one.waits else "",
            "state": "well" if not one.problems else "see below",
        }
        for one in reports
    ]
    if rows:
        print_table(list(rows[0]), rows)
    else:
        click.echo("there are no targets to ask")
    for line in [*(f"{one.name}: {p}" for one in reports for p in one.problems), *together]:
        click.echo(line)
    sys.exit(1 if wrong else 0)


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"
