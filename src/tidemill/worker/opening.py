"""From an EngineConfig to opened files and resolved options; nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from tidemill.backends.base import BackendOptions, HeldTensor
from tidemill.base.errors import TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.speculation import AUTO, LOOKUP, MTP, Setting, read_setting
from tidemill.loading.checkpoint import open_model
from tidemill.loading.lazy import Holding, LazyTensors
from tidemill.loading.parts import ModelFiles
from tidemill.worker.machine import usable_cpus
from tidemill.worker.sizing import wanted_len

# Backends are imported when they are chosen: torch may not be installed.
_BACKENDS = {
    "native": "tidemill.backends.native",
    "torch": "tidemill.backends.torch",
    "transformers": "tidemill.backends.transformers",
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A model as it would be loaded.

    Attributes:
        files: its files.
        backend: name of the backend.
        options: the backend's.
        tensors: in types that the backend takes.
    """

    files: ModelFiles
    backend: str
    options: BackendOptions
    tensors: LazyTensors

    @property
    def module(self) -> Any:
        """The backend's package, with `BackendFactory` as ``load`` and `HeldTensors` as
        ``held_tensors``."""
        return import_module(_BACKENDS[self.backend])

    def held(self) -> dict[str, HeldTensor]:
        """How the backend would hold each weight; no weights are read."""
        headers = {name: self.tensors.header(name) for name in self.tensors}
        held: dict[str, HeldTensor] = self.module.held_tensors(
            self.files.spec, headers, self.options
        )
        return held


def open_files(config: EngineConfig) -> Opened:
    """Open a configuration's model and choose what it leaves open.

    Raises:
        TidemillError: NOT_FOUND, MODEL_FILE or UNSUPPORTED for the model's files, CONFIG for the
            settings.
    """
    config.validate()
    return of_files(config, open_model(config.model, config.backend))


def of_files(config: EngineConfig, files: ModelFiles) -> Opened:
    """As `open_files`, with a valid configuration and its model's files."""
    if config.tensor_parallel > 1:
        files = replace(files, spec=replace(files.spec, ranks=config.tensor_parallel))
    name = config.backend
    if name == "auto":
        name = "native" if files.spec.foreign is None else "transformers"
    dtype = resolve_dtype(config.dtype, files)
    options = BackendOptions(
        dtype=dtype,
        quantize=config.quantize,
        kv_dtype=config.kv_dtype if config.kv_dtype != "auto" else dtype,
        block_size=config.block_size,
        max_positions=wanted_len(config, files.spec),
        threads=config.threads or usable_cpus(),
        isa=config.isa,
        device=config.device,
    )
    wide = dtype == "float32" or name != "native"
    tensors = files.tensors.held(Holding(wide, config.quantize))
    return Opened(files, name, options, tensors)


def speculation_of(config: EngineConfig, files: ModelFiles) -> Setting:
    """What drafts for a model: the setting's drafters, and with ``auto`` the MTP layer of a
    checkpoint that has a usable one."""
    setting = read_setting(config.speculate)
    if setting.default != AUTO or setting.drafters != (LOOKUP,) or files.mtp is None:
        return setting
    if config.stages > 1 or config.tensor_parallel > 1:
        return setting  # hidden states are wanted in one process
    try:
        files.mtp.open()
    except TidemillError:
        return setting
    return setting._replace(drafters=(*setting.drafters, MTP))


def resolve_dtype(dtype: str, files: ModelFiles) -> str:
    """``auto`` is bfloat16 unless the weights are float32 or transformers computes."""
    if dtype != "auto":
        return dtype
    if files.spec.foreign is not None:
        return "float32"
    return "float32" if files.tensors.prevailing_dtype() == "F32" else "bfloat16"


def stored_quantization(config: EngineConfig, files: ModelFiles) -> str:
    """The type that most weights are held in; ``none`` for float ones that stay so."""
    stored = files.tensors.prevailing_dtype().lower()
    if stored in ("f32", "f16", "bf16"):
        return config.quantize
    return stored
