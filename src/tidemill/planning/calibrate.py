"""Calibration: a model computes prompts and answers of many sizes; costs are fitted to its steps.

Everything runs as in an engine (its scheduler makes the steps); only prefix caching is off, so that
each prompt is computed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, config_error, unsupported
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import EngineRequest, exception_of
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineInfo
from tidemill.planning.kept import this_machine
from tidemill.simulate.costs import Costs, EngineFacts, HostSeconds
from tidemill.simulate.fit import Step, fit, fit_gaps
from tidemill.simulate.recording import StepRecorder

if TYPE_CHECKING:
    from tidemill.engine.offline import InprocEngine
    from tidemill.executor.inproc import OpenedExecutor

Progress = Callable[[str], None]

SECONDS = 90.0
"""That a calibration takes, beside loading."""

LEAST_SECONDS = 1.0

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_PROMPTS = (16, 48, 128, 300, 512, 1024, 2048, 4096)
_CONTEXTS = (32, 512, 2048)
_ANSWER = 12
# Of the time, what one load may be expected to take.
_SHARE = 0.15
_LOAD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Load:
    """Requests that are sent at once: prompts of these lengths, and tokens of each answer."""

    prompts: tuple[int, ...]
    output: int

    @property
    def tokens(self) -> int:
        """Tokens computed: prompts as such, of answers the steps as a few prompt tokens each."""
        return sum(self.prompts) + 4 * self.output + len(self.prompts) * self.output


def calibrate(
    config: EngineConfig,
    seconds: float = SECONDS,
    progress: Progress = lambda line: None,
    seed: int = 0,
) -> tuple[Costs, list[Step]]:
    """Measure a model on this machine.

    Args:
        config: of its engine; of `serve` for the same costs.
        seconds: of measuring.
        progress: called with lines.
        seed: of the lengths and tokens.

    Returns:
        The costs, and the steps that they were fitted to.

    Raises:
        TidemillError: the model or the configuration cannot be used, or too little was measured.
    """
    from tidemill.engine.core import make_core
    from tidemill.engine.offline import InprocEngine
    from tidemill.executor.inproc import open_inproc

    if seconds < LEAST_SECONDS:
        raise config_error("seconds", f"--seconds must be at least {LEAST_SECONDS:g}")
    config = msgspec.structs.replace(config, prefix_caching=False)
    opened = open_inproc(config, progress)
    if not opened.info.generates:
        raise unsupported("model", f"{config.served_name} generates no text: it has no costs")
    recorder = StepRecorder(opened.executor, opened.sliced_layers)
    opened = dataclasses.replace(opened, executor=recorder)
    _wait_loaded(recorder)
    engine = InprocEngine(make_core(opened, config).start())
    try:
        _measure(engine, recorder, seconds, random.Random(seed), progress)
    finally:
        engine.close()
    return _costs(config, opened, recorder), recorder.steps


def _wait_loaded(recorder: StepRecorder) -> None:
    """Wait until all weights are laid out: steps before are slower."""
    done, errors = Event(), list[TidemillError]()

    def loaded(error: TidemillError | None) -> None:
        if error is not None:
            errors.append(error)
        done.set()

    if not recorder.when_loaded(loaded) and not done.wait(_LOAD_SECONDS):
        raise config_error("model", f"the weights were not loaded within {_LOAD_SECONDS:g} s")
    if errors:
        raise errors[0]


def _measure(
    engine: InprocEngine,
    recorder: StepRecorder,
    seconds: float,
    drawn: random.Random,
    progress: Progress,
) -> None:
    """Run loads until the time is over, each in turn; those that would take too long are left to a
    longer calibration."""
    info, began = engine.info, monotonic()
    _run(engine, _Load((64,), 4), drawn, 0)
    recorder.steps.clear()  # caches were cold, memory was taken
    recorder.gaps.clear()
    rate = _rate(engine, drawn)
    # The same lengths each time: steps that are alike count by their median.
    loads = list(_loads(info, drawn))
    fitting = [load for load in loads if load.tokens / rate <= _SHARE * seconds] or loads[:1]
    progress(
        f"measuring for {seconds:.0f} s: {len(fitting)} of {len(loads)} loads, prompts of up to "
        f"{max(max(load.prompts) for load in fitting)} tokens"
    )
    number = 1
    while True:
        for load in fitting:
            _run(engine, load, drawn, number)
            number += 1
            if monotonic() - began >= seconds:
                return


def _rate(engine: InprocEngine, drawn: random.Random) -> float:
    """Prompt tokens per second, about."""
    began = monotonic()
    length = min(256, engine.info.max_model_len - 2)
    _run(engine, _Load((length,), 1), drawn, 0)
    return length / max(monotonic() - began, 1e-6)


def _loads(info: EngineInfo, drawn: random.Random) -> Iterator[_Load]:
    """All kinds of loads that this engine has room for, in an order that interleaves them."""
    room = min(info.num_blocks * info.block_size, info.max_num_seqs * info.max_model_len)
    longest = info.max_model_len - _ANSWER - 2
    found = [_Load((_about(length, drawn),), 4) for length in _PROMPTS]
    for context in _CONTEXTS:
        found += [
            _Load(tuple(_about(context, drawn) for _ in range(count)), _ANSWER)
            for count in _BATCHES
        ]
    # A prompt beside streams.
    found += [
        _Load((*(24,) * count, _about(length, drawn)), _ANSWER)
        for count in (2, 8)
        for length in (300, 1024)
    ]
    drawn.shuffle(found)
    for load in found:
        tokens = sum(load.prompts) + len(load.prompts) * (load.output + info.block_size)
        fits = len(load.prompts) <= info.max_num_seqs and tokens <= room
        if fits and max(load.prompts) <= longest:
            yield load


def _about(length: int, drawn: random.Random) -> int:
    return max(1, round(length * drawn.uniform(0.8, 1.2)))


def _run(engine: InprocEngine, load: _Load, drawn: random.Random, number: int) -> None:
    high = engine.info.vocab_size - 1
    requests = [
        EngineRequest(
            request_id=f"calibrate-{number}-{place}",
            prompt_token_ids=tuple(drawn.randint(0, high) for _ in range(length)),
            sampling=SamplingParams(
                temperature=0.0, max_tokens=load.output, ignore_eos=True, seed=number
            ),
            speculation="off" if engine.info.speculation is not None else None,
        )
        for place, length in enumerate(load.prompts)
    ]
    for output in engine.run(requests):
        if output.error is not None:
            raise exception_of(output.error)


def _costs(config: EngineConfig, opened: OpenedExecutor, recorder: StepRecorder) -> Costs:
    step, residuals, measured = fit(recorder.steps)
    per_step, per_row = fit_gaps(recorder.gaps)
    return Costs(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=this_machine(),
        engine=engine_facts(config, opened),
        step=step,
        host=HostSeconds(step=per_step, row=per_row),
        residuals=residuals,
        measured=measured,
    )


def engine_facts(config: EngineConfig, opened: OpenedExecutor) -> EngineFacts:
    """What costs say of an engine."""
    info = opened.info
    return EngineFacts(
        model=config.served_name,
        identity=opened.identity,
        family=info.family,
        parameters=info.parameters,
        backend=info.backend,
        isa=info.isa,
        dtype=info.dtype,
        quantization=info.quantization,
        kv_dtype=info.kv_dtype,
        threads=info.threads,
        weight_bytes=info.weight_bytes,
        kv_bytes_per_token=info.kv_bytes_per_token,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_num_seqs=info.max_num_seqs,
        max_step_tokens=info.max_step_tokens,
        max_model_len=info.max_model_len,
        prefix_caching=True,
        layers=opened.sliced_layers,
        groups=opened.num_groups,
        recurrent=opened.recurrent,
        snapshots=opened.snapshots,
    )
