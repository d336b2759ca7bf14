"""`tidemill doctor`: the machine's hardware and capabilities, and what Tidemill would use."""

from __future__ import annotations

from typing import Any

from tidemill.cli.acting import JSON, print_json
from tidemill.cli.declared import option


def doctor(
    bandwidth: bool = option(True, help="Measure the memory's read bandwidth (about 1 s)."),
    as_json: bool = JSON,
) -> None:
    """Report hardware, instruction sets, memory and read bandwidth."""
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
