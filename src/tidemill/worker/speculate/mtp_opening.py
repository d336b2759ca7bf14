"""The MTP layer of a model's own checkpoint, opened and loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tidemill.backends.base import BackendFactory
from tidemill.base.errors import config_error
from tidemill.contract.config import EngineConfig
from tidemill.contract.speculation import MTP
from tidemill.loading.lazy import Holding, LazyTensors
from tidemill.loading.mtp import MtpFiles
from tidemill.worker.opening import Opened
from tidemill.worker.runner import Runner
from tidemill.worker.speculate.drafter import FINAL
from tidemill.worker.speculate.layer_drafter import LayerDrafter, Tokens
from tidemill.worker.speculate.matrices import Matrix
from tidemill.worker.speculate.mtp_layer import MtpLayer
from tidemill.worker.speculate.opening import bare_bytes, bare_output, of_setting

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MtpNeeds:
    """What it takes beside the model, in bytes.

    Attributes:
        weights: its weights.
        token: each token of its KV cache.
    """

    weights: int
    token: int


def open_mtp(config: EngineConfig, opened: Opened) -> MtpFiles:
    """The MTP layer of an opened model.

    Raises:
        TidemillError: CONFIG, of a model that has none, or whose has another layout.
    """
    found = opened.files.mtp
    if found is None:
        raise config_error(
            "speculate",
            f"--speculate mtp: {config.model} has no MTP layer: it is "
            f"{opened.files.spec.family} in the format {opened.files.format}; folders of "
            "DeepSeek-V3, GLM-4.5, Qwen3-Next and Qwen3.5 may have one, and GGUF files of the "
            "two latter",
        )
    with of_setting(f"the MTP layer of {config.model}"):
        return found.open()


def mtp_needs(config: EngineConfig, opened: Opened) -> MtpNeeds:
    """What the MTP layer of an opened model takes.

    Raises:
        TidemillError: as `open_mtp`.
    """
    files, options = open_mtp(config, opened), opened.options
    tensors = _held(files, opened)
    headers = {name: tensors.header(name) for name in tensors}
    held = opened.module.held_tensors(files.spec, headers, options)
    weights = sum(tensor.nbytes for tensor in held.values()) + bare_bytes(files.join, opened)
    norms = 2 * 4 * files.spec.hidden_size
    return MtpNeeds(weights + norms, files.spec.kv_bytes_per_token(options.kv_dtype))


def load_mtp(
    config: EngineConfig,
    opened: Opened,
    runner: Runner,
    blocks: tuple[int, int],
    progress: Progress,
) -> None:
    """Let the MTP layer of a model draft for it.

    Args:
        config, opened, runner: the model.
        blocks: of the model's KV cache: reserved, and in use at first. The layer's has as many.
        progress: called with a line for each stage.

    Raises:
        TidemillError: as `open_mtp`.
    """
    files, options = open_mtp(config, opened), opened.options
    load, tensors = cast(BackendFactory, opened.module.load), _held(files, opened)
    backend = load(files.spec, tensors, options)
    backend.when_loaded(lambda error: tensors.forget())
    reserved, used = blocks
    backend.allocate_cache((reserved,), unchecked=True)
    join = Matrix(bare_output(files.join, opened.files.spec, load, options, opened.backend))
    layer = MtpLayer(files, backend, join, reserved)
    drafter = LayerDrafter(runner.backend, runner.inputs, layer, (FINAL,), Tokens(), runner.idle)
    drafter.limit_cache(used)
    runner.add_loaded(MTP, drafter)
    progress(f"the model's MTP layer, {drafter.weight_bytes() / 2**20:.0f} MiB")


def _held(files: MtpFiles, opened: Opened) -> LazyTensors:
    """Its weights in types that the backend takes."""
    options = opened.options
    wide = options.dtype == "float32" or opened.backend != "native"
    return files.tensors.held(Holding(wide, options.quantize))
