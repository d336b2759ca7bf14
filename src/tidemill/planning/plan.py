"""A plan: memory, what fits, and predictions, of a model that is opened by its headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.loading.parts import ModelFiles
from tidemill.planning.calibrated import CalibratedTiming
from tidemill.planning.devices import Device
from tidemill.planning.kept import find_costs, find_rates
from tidemill.planning.memory import Alternative, Budget, Fit, Subject, alternatives, budget, fit
from tidemill.planning.predict import Prediction, predict
from tidemill.planning.timing import DeviceTiming, Timing
from tidemill.planning.work import Work, work_of
from tidemill.worker.needs import needs_of
from tidemill.worker.opening import Opened, of_files, stored_quantization

SCHEMA = "tidemill.plan/1"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a model shall run.

    Attributes:
        memory: bytes for it.
        memory_of: whose memory, in words.
        device: described hardware; None: this machine.
        measured: folder of measurements kept of this machine; see `kept`.
        watts, price: of this machine, if they are known.
    """

    memory: int
    memory_of: str
    device: Device | None = None
    measured: Path | None = None
    watts: float | None = None
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What it shall do.

    Attributes:
        context, concurrency: see `memory.fit`.
        prompt, output: tokens of a request.
        objectives: see `predict.read_objectives`.
    """

    context: int | None = None
    concurrency: int | None = None
    prompt: int = 512
    output: int = 128
    objectives: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The result; `as_json` is what `tidemill plan --json` prints.

    Attributes:
        config, files, needs: the model.
        where, load: what was asked.
        fit: memory.
        alternatives, budget: see `memory`.
        predicted: None where nothing is known; `why_none` says why.
    """

    config: EngineConfig
    files: ModelFiles
    needs: MemoryNeeds
    where: Where
    load: Load
    fit: Fit
    alternatives: tuple[Alternative, ...]
    budget: Budget
    predicted: Prediction | None
    why_none: str | None

    def as_json(self) -> dict[str, Any]:
        """A document; docs/planning.md describes its members."""
        needs, fitted, spec = self.needs, self.fit, self.files.spec
        device = self.where.device
        document = {
            "schema": SCHEMA,
            "model": self.config.served_name,
            "family": spec.family,
            "parameters": spec.parameters(),
            "backend": needs.backend,
            "dtype": needs.dtype,
            "quantization": stored_quantization(self.config, self.files),
            "kv_dtype": needs.kv_dtype,
            "device": None if device is None else device.name,
            "memory_bytes": fitted.memory,
            "memory_of": self.where.memory_of,
            "file_bytes": needs.files,
            "weights_bytes": fitted.weights,
            "weights": needs.weights,
            "weights_in_file_bytes": needs.file_rows,
            "kv_bytes_per_token": needs.token_bytes,
            "caches": [msgspec.to_builtins(cache) for cache in needs.caches],
            "state_bytes": needs.state,
            "cache_bytes": fitted.cache,
            "overhead_bytes": fitted.overhead,
            "overhead": {
                "activations": fitted.activations,
                "engine_process": fitted.process,
                "server_process": fitted.server,
            },
            "total_bytes": fitted.total,
            "fits": fitted.fits,
            "why": fitted.why,
            "context": fitted.context,
            "concurrency": fitted.concurrency,
            "max_context": fitted.max_context,
            "max_concurrency": fitted.max_concurrency,
            "alternatives": msgspec.to_builtins(self.alternatives),
            "budget": msgspec.to_builtins(self.budget),
            "predicted": None if self.predicted is None else msgspec.to_builtins(self.predicted),
            "predicted_reason": self.why_none,
        }
        return document


def make_plan(config: EngineConfig, files: ModelFiles, where: Where, load: Load) -> Plan:
    """Plan a model.

    Args:
        config: of its engine, valid.
        files: its opened headers.
        where, load: see there.

    Raises:
        TidemillError: CONFIG for settings that the model cannot have.
    """
    opened = of_files(config, files)
    subject = _subject(config, opened, where)
    fitted = fit(subject, where.memory, load.context, load.concurrency)

    def reopened(changed: EngineConfig) -> Subject:
        return _subject(changed, of_files(changed, files), where)

    floats = files.tensors.prevailing_dtype() in ("F32", "F16", "BF16")
    others = (
        alternatives(subject, where.memory, fitted, reopened, quantizable=floats)
        if opened.backend == "native"
        else ()
    )
    predicted, why_none = _predicted(opened, config, where, load, subject.needs, fitted)
    return Plan(
        config=config,
        files=files,
        needs=subject.needs,
        where=where,
        load=load,
        fit=fitted,
        alternatives=others,
        budget=budget(subject, fitted),
        predicted=predicted,
        why_none=why_none,
    )


def _subject(config: EngineConfig, opened: Opened, where: Where) -> Subject:
    # Of a described device only what lies in its own memory counts.
    serves = where.device is None
    in_place = _byte_level(opened.files.tokenizer)
    return Subject(config, opened.files.spec, needs_of(config, opened), serves, in_place)


def _byte_level(text: TokenizerData) -> bool:
    """Whether a vocabulary is byte-level BPE; so is one that was not fetched, mostly."""
    if text.gguf is not None:
        return bool(text.gguf.get("tokenizer.ggml.model") == "gpt2")
    return text.tokenizer_json is None or b"ByteLevel" in bytes(text.tokenizer_json)


def _predicted(
    opened: Opened,
    config: EngineConfig,
    where: Where,
    load: Load,
    needs: MemoryNeeds,
    fitted: Fit,
) -> tuple[Prediction | None, str | None]:
    spec = opened.files.spec
    if not spec.generates:
        return None, "the model generates no text"
    if spec.foreign is not None:
        return None, "no family describes this model, so that its work is not known"
    if not fitted.max_concurrency:
        return None, f"it does not fit into the memory {where.memory_of}"
    timing = _timing(opened, config, where, needs)
    if timing is None:
        return None, (
            "this machine has not been measured: `tidemill calibrate --machine` measures it for "
            "any model, `tidemill calibrate MODEL` more exactly for one; --device plans for another"
        )
    longest = load.prompt + load.output
    most = fitted.max_concurrency
    if longest > fitted.context:
        return None, (
            f"a request of {load.prompt} + {load.output} tokens is longer than the context of "
            f"{fitted.context}"
        )
    device = where.device
    return (
        predict(
            timing,
            prompt=load.prompt,
            output=load.output,
            most=min(most * fitted.context // longest, config.max_num_seqs),
            concurrency=load.concurrency,
            objectives=load.objectives,
            watts=where.watts if device is None else device.watts,
            price=where.price if where.price is not None or device is None else device.price,
        ),
        None,
    )


def timing_of(made: Plan) -> Timing | None:
    """What times the steps of a planned model; None: this machine has not been measured."""
    opened = of_files(made.config, made.files)
    return _timing(opened, made.config, made.where, made.needs)


def _timing(
    opened: Opened, config: EngineConfig, where: Where, needs: MemoryNeeds
) -> Timing | None:
    """Of described hardware; of this machine what was measured with the model, else with others."""
    if where.device is not None:
        return DeviceTiming(where.device, model_work(opened, config))
    if where.measured is None or opened.backend != "native":
        return None
    costs = find_costs(where.measured, needs, opened.options.threads)
    if costs is not None:
        return CalibratedTiming(costs)
    rates = find_rates(where.measured)
    if rates is None:
        return None
    work = model_work(opened, config)
    return DeviceTiming(rates.device(work.weight_type), work, config.max_step_tokens)


def model_work(opened: Opened, config: EngineConfig) -> Work:
    """What a step of an opened model computes and reads."""
    headers = {name: opened.tensors.header(name) for name in opened.tensors}
    dtype, stored = opened.options.dtype, stored_quantization(config, opened.files)
    weight_type = dtype if stored == "none" else stored
    return work_of(opened.files.spec, headers, opened.held(), opened.options.kv_dtype, weight_type)
