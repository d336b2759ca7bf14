"""`tidemill simulate`: what servers would do under a load, from costs of steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import config_error
from tidemill.cli.bench import (
    fail_without_answers,
    load_of,
    print_report,
    with_progress,
    write_report,
)
from tidemill.cli.declared import argument, command, option
from tidemill.cli.outputs import check_writable

if TYPE_CHECKING:
    from tidemill.bench.options import BenchOptions
    from tidemill.simulate.run import FleetOptions


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
) -> FleetOptions:
    """The servers that these flags describe."""
    from tidemill.simulate.run import FleetOptions

    sizes = {
        "num_blocks": kv_blocks, "max_num_seqs": max_num_seqs, "max_step_tokens": max_step_tokens,
        "max_model_len": max_model_len, "prefix_caching": prefix_caching,
    }  # fmt: skip
    given = {name: value for name, value in sizes.items() if value is not None}
    return FleetOptions(
        engines, policy, given, max_itl_ms, speed, noise, admission, acceptance, draft_ms
    )


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
