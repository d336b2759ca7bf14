"""`tidemill calibrate`: measures what steps take here, for `tidemill plan` and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.cli import options
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemill.simulate.costs import Costs

_HTTP_SHARE = 0.2
"""Of the time, what requests over HTTP are measured for."""


def calibrate(
    model: str | None = options.MODEL,
    file: str | None = options.FILE,
    revision: str | None = options.REVISION,
    machine: bool = option(
        False,
        "--machine",
        help="Measure with random weights instead, for models that are not here.",
    ),
    seconds: float = option(90.0, help="Time to measure for, beside loading."),
    http: bool = option(
        True,
        "--http/--no-http",
        help="Also measure what requests take beside their steps, at a server started for it.",
    ),
    save: str | None = option(
        None, help="File to write the costs to instead of keeping them for `plan`."
    ),
    dtype: str = options.DTYPE,
    quantize: str = options.QUANTIZE,
    kv_dtype: str = options.KV_DTYPE,
    block_size: int = options.BLOCK_SIZE,
    max_model_len: int | None = options.MAX_MODEL_LEN,
    max_num_seqs: int = options.MAX_NUM_SEQS,
    max_step_tokens: int = options.MAX_STEP_TOKENS,
    kv_memory: str | None = options.KV_MEMORY,
    threads: int | None = options.THREADS,
    isa: str | None = options.ISA,
) -> None:
    """Measure a model's steps on this machine, or the machine itself, and keep what they cost.

    Run it with the flags of `serve`, while the machine does nothing else.
    """
    import sys
    from pathlib import Path

    import msgspec

    from tidemill.cli.measured_server import measured_host
    from tidemill.contract.config import EngineConfig
    from tidemill.library.locate import locate
    from tidemill.loading.hub_name import with_options
    from tidemill.planning.calibrate import calibrate as measure

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if machine:
        _measure_machine(seconds, say)
        return
    located = locate(with_options(model, file, revision), say)
    defined = located.definition
    config = EngineConfig(
        model=str(located.path),
        served_name=located.name,
        backend="native",
        dtype=dtype,
        quantize=quantize if quantize != "none" else defined.quantize or "none",
        kv_dtype=kv_dtype,
        block_size=block_size,
        max_model_len=max_model_len or defined.max_model_len,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        kv_memory=options.parse_bytes("kv-memory", kv_memory),
        threads=threads,
        isa=isa,
    ).validate()
    share = _HTTP_SHARE if http else 0.0
    costs, _ = measure(config, (1 - share) * seconds, say)
    if http:
        say(f"measuring requests over HTTP for {share * seconds:.0f} s")
        host = measured_host(config, costs.host, share * seconds)
        costs = msgspec.structs.replace(costs, host=host)
    print(_summary(costs))
    print(f"kept in {_kept(costs, None if save is None else Path(save))}")


def _measure_machine(seconds: float, say: Callable[[str], None]) -> None:
    from tidemill.library.home import COSTS, default_home
    from tidemill.planning.kept import keep_rates
    from tidemill.planning.rates import described, measure_rates

    rates = measure_rates(seconds, say)
    print(described(rates))
    print(f"kept in {keep_rates(default_home() / COSTS, rates)}")


def _kept(costs: Costs, path: Path | None) -> Path:
    from tidemill.library.home import COSTS, default_home
    from tidemill.planning.kept import keep_costs
    from tidemill.simulate.costs import write_costs

    if path is None:
        return keep_costs(default_home() / COSTS, costs)
    write_costs(costs, path)
    return path


def _summary(costs: Costs) -> str:
    from tidemill.planning.calibrated import CalibratedTiming
    from tidemill.planning.work import Rows

    timing, most = CalibratedTiming(costs), costs.engine.max_step_tokens
    lines = [
        f"{costs.engine.model}: {costs.residuals.steps} steps on {costs.machine.processor}, "
        f"{costs.engine.threads} threads; the fit misses {costs.residuals.error:.1%} in the "
        f"median, {costs.residuals.worst:.1%} at the worst"
    ]
    for name, rows in (
        ("a token of one stream", Rows(1, 1, 512)),
        ("a token of each of 8 streams", Rows(8, 1, 512)),
        (f"a prompt's step of {most} tokens", Rows(1, most, 0)),
    ):
        lines.append(f"  {name}: {timing.step(rows).value * 1e3:.2f} ms")
    host = costs.host
    if host.request:
        lines.append(
            f"  a request beside its steps: {(host.request + host.deliver) * 1e3:.2f} ms, "
            f"{host.prompt_token * 1e6:.2f} us per prompt token, {host.chunk * 1e3:.3f} ms "
            "per chunk"
        )
    return "\n".join(lines)
