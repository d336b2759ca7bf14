"""`tidemill doctor`: the machine's hardware and capabilities, and what Tidemill would use."""

from __future__ import annotations

from tidemill.cli.declared import option


def doctor(
    bandwidth: bool = option(True, help="Measure the memory's read bandwidth (about 1 s)."),
) -> None:
    """Report hardware, instruction sets, memory and read bandwidth."""
    import platform

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tidemill import __version__
    from tidemill.backends import native
    from tidemill.cli.machine import describe_cpu, installed
    from tidemill.worker.machine import available_memory, usable_cpus

    console = Console()
    threads = usable_cpus()
    rows: list[tuple[str, str]] = [
        ("tidemill", __version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("processor", describe_cpu()),
        ("threads it may use", str(threads)),
        ("free memory", f"{available_memory() / 2**30:.1f} GiB"),
    ]
    isas = native.available_isas()
    rows.append(("kernels that run here", ", ".join(isas)))
    rows.append(("will be used", f"native backend, {isas[0]}, {threads} threads"))
    rows.append(
        ("torch backend", installed("torch") or "not installed (pip install 'tidemill[torch]')")
    )
    if bandwidth:
        with console.status("measuring read bandwidth ..."):
            alone, together = native.read_bandwidth(1), native.read_bandwidth(threads)
        figure = f"{together / 1e9:.1f} GB/s with {threads} threads, {alone / 1e9:.1f} with one"
        rows.append(("read bandwidth", figure))
        rows.append(("a 1 GB model decodes at", f"most {together / 1e9:.0f} tokens/s per stream"))
    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))  # no markup parsing
    console.print(table)
