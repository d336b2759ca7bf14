"""Costs: what steps and requests take on one machine with one model, as a file.

`fit` makes them of measured steps, `tidemill calibrate` writes them, the simulator and the planner
read them. A file names the machine, the model and the day, how well the fit describes what it was
made of, and the largest steps measured: beyond those nothing is known.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.base.errors import TidemillError, config_error
from tidemill.contract.plan import StepPlan
from tidemill.sched.cost import Load

SCHEMA = "tidemill.costs/1"

BEYOND = 1.25
"""A step is beyond what was measured if one of its numbers exceeds the largest by this factor."""


_NONE: Mapping[int, int] = {}


class Work(NamedTuple):
    """What a step computes, as far as its time depends on it.

    Attributes:
        tokens, pairs, reach: as `sched.cost.Load`: tokens computed, query-key pairs of attention,
            KV positions read.
        samples: rows whose logits are sampled.
        rows: rows.
        adapter_bytes: memory of the adapters that rows have, each once.
    """

    tokens: float
    pairs: float
    reach: float
    samples: int
    rows: int
    adapter_bytes: float = 0.0


def work_of(plan: StepPlan, layers: int, adapters: Mapping[int, int] = _NONE) -> Work:
    """The work of a plan.

    Args:
        plan: its rows count.
        layers: of the model (asked for rows cut by layers alone).
        adapters: bytes in each slot.
    """
    load, samples = Load(), 0
    for row in plan.rows:
        cut = row.layers
        share = 1.0 if cut is None or not layers else (cut.end - cut.begin) / layers
        load.add(row.start, row.count + len(row.draft_token_ids), share)
        samples += (1 + len(row.draft_token_ids)) if row.sample else 0
        if row.adapter_slot:
            load.add_adapter(row.adapter_slot, adapters.get(row.adapter_slot, 0), share)
    return Work(load.tokens, load.pairs, load.reach, samples, len(plan.rows), load.adapter_bytes)


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was measured.

    Attributes:
        processor: as the system names it.
        cores: that the process may use.
        memory_bytes: of the machine.
        device: what computes, as `EngineInfo.device`.
    """

    processor: str
    cores: int
    memory_bytes: int = 0
    device: str = "cpu"


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model and the engine that were measured; a simulated engine has these sizes unless told
    otherwise. Members as in `contract.wire.EngineInfo`, and:

    Attributes:
        layers: layers of the model if a row's may be computed over several steps; else 0.
        groups: cache groups.
        recurrent: the model has recurrent layers: steps are not launched ahead.
        snapshots: stored states of a recurrent model.
    """

    model: str
    identity: str = ""
    family: str = ""
    parameters: int = 0
    backend: str = "native"
    isa: str = ""
    dtype: str = ""
    quantization: str = ""
    kv_dtype: str = ""
    threads: int = 0
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    block_size: int = 16
    num_blocks: int = 1024
    max_num_seqs: int = 256
    max_step_tokens: int = 512
    max_model_len: int = 4096
    prefix_caching: bool = True
    layers: int = 0
    groups: int = 1
    recurrent: bool = False
    snapshots: int = 0


class StepSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the executor takes for a step: a sum of its terms.

    Attributes:
        tokens: (tokens, seconds) in ascending order: a step of so many tokens without attention
            and sampling; between them linear, below the first its seconds, above the last with the
            last slope.
        projection: once for a step with a row that samples (the output layer is read).
        sample: for every row that samples.
        pair: for every query-key pair of attention.
        reach: for every KV position read.
        adapter_byte: for every byte of the adapters that rows have; 0: not known.
    """

    tokens: tuple[tuple[float, float], ...]
    projection: float = 0.0
    sample: float = 0.0
    pair: float = 0.0
    reach: float = 0.0
    adapter_byte: float = 0.0

    def of(self, work: Work) -> float:
        """Seconds of a step, without noise."""
        seconds = self.of_tokens(work.tokens) + self.pair * work.pairs + self.reach * work.reach
        if work.adapter_bytes:
            seconds += self.adapter_byte * work.adapter_bytes
        return seconds + (self.projection + self.sample * work.samples if work.samples else 0.0)

    def of_tokens(self, count: float) -> float:
        """The first term."""
        knots = self.tokens
        if count <= knots[0][0] or len(knots) == 1:
            return knots[0][1]
        place = min(bisect_right(knots, (count,)), len(knots) - 1)
        (x0, y0), (x1, y1) = knots[place - 1], knots[place]
        return y0 + (y1 - y0) * (count - x0) / (x1 - x0)


class HostSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds outside of the executor.

    Attributes:
        step: of the engine per step that was not launched ahead: planning, committing, waking.
        row: the same for each of its rows.
        submit: of the engine per new request.
        request: from a client's send until the engine has the request: connection, body, template,
            tokens.
        prompt_token: the same per token of the prompt.
        deliver: from the end of a step until a client has its first chunk of it.
        chunk: of the API process per chunk; those of one step are written one after the other.
        start: from the start of a server until it is ready; 0: not measured.
    """

    step: float = 0.0
    row: float = 0.0
    submit: float = 0.0
    request: float = 0.0
    prompt_token: float = 0.0
    deliver: float = 0.0
    chunk: float = 0.0
    start: float = 0.0


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """How measured steps differ from the fit.

    Attributes:
        steps: measured.
        error: median of |measured / fitted - 1| over classes of like steps: what the fit misses.
        worst: the largest of these, over classes of at least `fit.ENOUGH` steps.
        ratios: measured / fitted of all steps, in ascending order, as means of equal shares of
            them (of 200, or fewer steps): the noise of single steps, which the simulator draws
            from. Their mean is that of all steps.
    """

    steps: int = 0
    error: float = 0.0
    worst: float = 0.0
    ratios: tuple[float, ...] = (1.0,)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The largest numbers of the steps measured."""

    tokens: float = 0.0
    pairs: float = 0.0
    reach: float = 0.0
    samples: int = 0


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """A file of costs.

    Attributes:
        created: UTC, ISO 8601.
        engine, machine: what was measured, where.
        step, host: the costs.
        residuals, measured: how well, and how far they hold.
        notes: what a reader must know.
    """

    engine: EngineFacts
    machine: MachineFacts
    step: StepSeconds
    host: HostSeconds = HostSeconds()
    residuals: Residuals = Residuals()
    measured: Measured = Measured()
    created: str = ""
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA

    def beyond(self, work: Work) -> str | None:
        """Which number of a step lies beyond what was measured, for readers; None: none."""
        for name in ("tokens", "pairs", "reach", "samples"):
            most, value = getattr(self.measured, name), getattr(work, name)
            if most and value > BEYOND * most:
                return f"{name} {value:,.0f} (measured up to {most:,.0f})"
        return None


def read_costs(path: Path) -> Costs:
    """Read a file.

    Raises:
        TidemillError: CONFIG if it is none.
    """
    try:
        costs = msgspec.json.decode(path.read_bytes(), type=Costs)
    except OSError as error:
        raise config_error("costs", f"cannot read {path}: {error}") from error
    except msgspec.MsgspecError as error:
        raise config_error(
            "costs", f"{path} is no file of costs: {error}; `tidemill calibrate` writes one"
        ) from error
    if costs.schema != SCHEMA:
        raise config_error(
            "costs", f"{path} has the schema {costs.schema!r}, this Tidemill reads {SCHEMA}"
        )
    if not costs.step.tokens or not costs.residuals.ratios:
        raise config_error("costs", f"{path} has no seconds by tokens, or no ratios")
    return costs


def file_name(machine: MachineFacts, engine: EngineFacts) -> str:
    """Name of the file that holds the costs of this model, computed like this on such a machine."""
    what = (machine, engine.identity, engine.quantization, engine.kv_dtype, engine.threads)
    digest = hashlib.blake2b(msgspec.json.encode(what), digest_size=6).hexdigest()
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in engine.model)
    return f"{plain[:80]}-{digest}.json"


def newest_costs(folder: Path, model: str) -> Path | None:
    """The file last written to a folder for a model of this name; None: there is none."""
    files = []
    for path in folder.glob("*.json"):
        try:
            costs = read_costs(path)
        except TidemillError:
            continue
        if costs.engine.model == model:
            files.append((costs.created, path.name, path))
    return max(files)[2] if files else None


def write_costs(costs: Costs, path: Path) -> None:
    """Write a file, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=2) + b"\n")
    os.replace(temporary, path)
