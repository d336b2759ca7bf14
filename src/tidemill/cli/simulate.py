"""`tidemill simulate`: what servers would do under a load, from costs of steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import config_error
from tidemill.base.sizes import parse_size
from tidemill.cli.bench import (
    fail_without_answers,
    load_of,
    named_numbers,
    print_report,
    with_progress,
    write_report,
)
from tidemill.cli.declared import argument, command, option
from tidemill.cli.outputs import check_writable

if TYPE_CHECKING:
    from tidemill.bench.options import BenchOptions
    from tidemill.simulate.run import FleetOptions
    from tidemill.simulate.tiers import TierSizes


def fleet_of(
    engines: int = option(
        1, help="Engines, each with an API process; behind a gateway if several."
    ),
    policy: str = option("predicted", help="How the gateway distributes requests."),
    kv_blocks: int | None = option(None, help="KV blocks of an engine; default: as measured."),
    max_num_seqs: int | None = option(None, help="Sequences at once; default: as measured."),
    max_step_tokens: int | None = option(None, help="Tokens of a step; default: as measured."),
    max_model_len: int | None = option(None, help="Context in tokens; default: as measured."),
    prefix_caching: bool | None = option(
        None, "--prefix-caching/--no-prefix-caching", help="Default: as measured."
    ),
    max_itl_ms: float | None = option(None, help="As `tidemill serve --max-itl-ms`."),
    speed: float = option(1.0, help="Steps take this many times less than measured."),
    noise: bool = option(True, help="Steps vary as the measured ones did."),
    admission: bool = option(True, help="Servers answer 429 where their queue is full."),
    acceptance: float | None = option(
        None, help="Engines speculate: how likely a draft comes true where those before it have."
    ),
    draft_ms: float = option(0.0, help="What a drafter takes for each token that it proposes."),
    adapter_size: str | None = option(None, help="Of each adapter of --models, such as 40MiB."),
    adapter_memory: str = option("1GiB", help="For adapters, as `tidemill serve`."),
    adapter_gbps: float = option(1.0, help="GB/s with which an adapter is read and verified."),
    kv_ram: str = option("", help="Memory for KV blocks that left an engine's cache."),
    kv_disk: str = option("", help="The same on disk; sizes such as 20GiB."),
    kv_peers: bool = option(False, help="Engines bring KV blocks from one another."),
    kv_gbps: str = option("", help="GB/s of these tiers: ram=2,disk=0.5,peer=0.7."),
    autoscale: str = option(
        "", help="Engines come and go: min=0,max=8,target-wait=2s,start=30s,... (docs/cluster.md)."
    ),
) -> FleetOptions:
    """The servers that these flags describe."""
    from tidemill.simulate.adapters import AdapterSizes
    from tidemill.simulate.run import FleetOptions
    from tidemill.simulate.scaling import read_scaling

    sizes = {
        "num_blocks": kv_blocks, "max_num_seqs": max_num_seqs, "max_step_tokens": max_step_tokens,
        "max_model_len": max_model_len, "prefix_caching": prefix_caching,
    }  # fmt: skip
    given = {name: value for name, value in sizes.items() if value is not None}
    adapters = None
    if adapter_size is not None:
        adapters = AdapterSizes(
            _size("adapter_size", adapter_size), _size("adapter_memory", adapter_memory),
            1e9 * adapter_gbps,
        )  # fmt: skip
    return FleetOptions(
        engines, policy, given, max_itl_ms, speed, noise, admission, acceptance, draft_ms,
        adapters, _tiers(kv_ram, kv_disk, kv_peers, kv_gbps), read_scaling(autoscale),
    )  # fmt: skip


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text) if text else 0
    except ValueError:
        raise config_error(name, f"{name} is no size, such as 512MiB: {text!r}") from None


def _tiers(ram: str, disk: str, peers: bool, gbps: str) -> TierSizes | None:
    from tidemill.contract.moves import Tier
    from tidemill.simulate.tiers import BANDWIDTH, TierSizes

    if not (ram or disk or peers):
        if gbps:
            raise config_error("kv_gbps", "--kv-gbps is of --kv-ram, --kv-disk and --kv-peers")
        return None
    given = named_numbers("kv-gbps", gbps)
    if unknown := set(given) - set(Tier):
        raise config_error("kv_gbps", f"tiers are {', '.join(Tier)}, not {', '.join(unknown)}")
    bandwidth = {tier: 1e9 * given[tier] if tier in given else BANDWIDTH[tier] for tier in Tier}
    return TierSizes(_size("kv_ram", ram), _size("kv_disk", disk), peers, bandwidth)


def simulate_load(
    load: BenchOptions,
    fleet: FleetOptions,
    model: str | None = argument(None, help="Model whose kept costs are taken; see --costs."),
    costs: Path | None = option(None, help="File of costs that `tidemill calibrate` wrote."),
    json_file: Path | None = option(None, "--json", help="Also write the report as JSON."),
    csv_file: Path | None = option(None, "--csv", help="Also write a row per point as CSV."),
    html_file: Path | None = option(None, "--html", help="Also write a page with plots."),
) -> None:
    """Simulate a load on one server or a fleet: the real scheduler in simulated time.

    The load is described as for `tidemill bench`, and so is the report: `tidemill bench compare`
    compares it with a measurement. docs/simulation.md says what is simulated and what is not.
    """
    from tidemill.simulate.costs import newest_costs, read_costs
    from tidemill.simulate.run import simulate as run

    check_writable(json=json_file, csv=csv_file, html=html_file)
    if costs is None:
        if model is None:
            raise config_error("costs", "give --costs FILE, or a model that was calibrated")
        folder = _folder()
        costs = newest_costs(folder, model)
        if costs is None:
            raise config_error(
                "costs",
                f"{folder} has no costs of {model!r}: run `tidemill calibrate {model}` first, or "
                "give --costs FILE",
            )
    known = read_costs(costs)
    report = with_progress(lambda progress: run(load, known, fleet, progress))
    print_report(report)
    write_report(report, json_file, csv_file, html_file)
    fail_without_answers(report)


def _folder() -> Path:
    from tidemill.library.home import default_home

    return default_home() / "costs"


simulate = command("simulate", simulate_load, load_of, fleet_of)
