"""Candidates of a search for a fleet (`simulate.search`): a planned model as kinds of engines."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidemill.planning.calibrated import CalibratedTiming
from tidemill.planning.plan import Plan
from tidemill.planning.timing import Timing
from tidemill.planning.work import Rows, pairs
from tidemill.simulate.costs import Costs, EngineFacts, HostSeconds, MachineFacts, Residuals, Work
from tidemill.simulate.fit import Step, fit
from tidemill.simulate.run import FleetOptions
from tidemill.simulate.search import Candidate

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_CONTEXTS = (16, 512, 2048, 8192, 32768)
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_STARTS = (0, 1024, 8192)

BATCH_SHARES = (1, 4, 16)
"""Of an engine's bound of sequences at once, what is tried: all of it, a fourth, a sixteenth. Small
batches have short steps."""


EFFICIENCY = 0.8
"""Of devices that compute a model together, where nobody says it: by which share of their number
steps get quicker."""


def together(costs: Costs, devices: int, efficiency: float) -> tuple[Costs, float]:
    """Costs of steps that several devices compute together, and how much quicker these are."""
    if devices == 1:
        return costs, 1.0
    speed = devices * efficiency
    note = (
        f"Steps of {devices} devices together are taken to be {speed:.2f} times as quick as one's "
        f"(an efficiency of {efficiency:.0%}): stated, not measured."
    )
    return msgspec.structs.replace(costs, notes=(*costs.notes, note)), speed


def candidates(
    made: Plan,
    timing: Timing,
    price: float,
    name: str,
    devices: int = 1,
    efficiency: float = EFFICIENCY,
) -> list[Candidate]:
    """Engines of a planned model, with all the memory that the plan has for its cache.

    Args:
        made: the plan, for the memory of all devices of an engine.
        timing: of its steps on one device.
        price: of an engine per hour.
        name: of where it runs.
        devices: that compute together (tensor parallelism).
        efficiency: of these.
    """
    costs, speed = together(costs_of(made, timing), devices, efficiency)
    name = name if devices == 1 else f"{devices} x {name}"
    found = []
    for share in BATCH_SHARES:
        most = max(1, costs.engine.max_num_seqs // share)
        if share == 1 or most > 1:
            named = name if share == 1 else f"{name}, {most} sequences at once"
            sizes = {} if share == 1 else {"max_num_seqs": most}
            fleet = FleetOptions(sizes=sizes, speed=speed)
            found.append(Candidate(named, costs, price, fleet, devices))
    return found


def costs_of(made: Plan, timing: Timing) -> Costs:
    """The costs of a plan's steps: measured ones as they are, a description's fitted to steps of
    all sizes that it describes. The sizes of the engine are the plan's."""
    fitted = made.fit
    tokens = max(fitted.max_concurrency, 1) * fitted.context
    config, needs = made.config, made.needs
    facts = EngineFacts(
        model=config.served_name,
        dtype=needs.dtype,
        kv_dtype=needs.kv_dtype,
        kv_bytes_per_token=needs.token_bytes,
        block_size=config.block_size,
        num_blocks=max(1, tokens // config.block_size),
        max_num_seqs=config.max_num_seqs,
        max_step_tokens=timing.max_step_tokens,
        max_model_len=fitted.context,
        prefix_caching=config.prefix_caching,
    )
    if isinstance(timing, CalibratedTiming):
        known = timing.costs
        return Costs(
            engine=facts, machine=known.machine, step=known.step, host=known.host,
            residuals=known.residuals, measured=known.measured, created=known.created,
            notes=known.notes,
        )  # fmt: skip
    seconds, residuals, largest = fit(list(_described(facts, timing)))
    device = made.where.device
    return Costs(
        engine=facts,
        machine=MachineFacts(processor=device.name if device else "this machine", cores=0),
        step=seconds,
        host=HostSeconds(),
        residuals=Residuals(error=residuals.error, worst=residuals.worst),
        measured=largest,
        notes=(f"Steps rest on {timing.basis}.",),
    )


def _described(facts: EngineFacts, timing: Timing) -> Iterator[Step]:
    """Steps of decoding and of prompts, as large as the engine's may be."""
    for count in _COUNTS:
        for context in _CONTEXTS:
            if count <= facts.max_num_seqs and context < facts.max_model_len:
                yield _step(timing, Rows(count, 1, context))
    for chunk in _CHUNKS:
        for start in _STARTS:
            if chunk <= facts.max_step_tokens and start + chunk <= facts.max_model_len:
                yield _step(timing, Rows(1, chunk, start))


def _step(timing: Timing, rows: Rows) -> Step:
    count, tokens, start = rows.count, rows.tokens, rows.start
    work = Work(
        tokens=count * tokens, pairs=count * pairs(tokens, start), reach=count * (start + tokens),
        samples=count, rows=count,
    )  # fmt: skip
    return Step(work, timing.step(rows).value)
