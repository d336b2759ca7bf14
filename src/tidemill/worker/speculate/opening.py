"""Drafters that are loaded from files, beside the model that they draft for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import msgspec

from tidemill.backends.base import Backend, BackendFactory, BackendOptions
from tidemill.base.build import build_id
from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, config_error
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.contract.speculation import DRAFT, EAGLE, MEDUSA, OFF, SKIP, read_setting
from tidemill.loading.checkpoint import open_model
from tidemill.loading.lazy import Holding, LazyTensors
from tidemill.loading.locate import resolve
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import OneTensor, Place
from tidemill.models import tensors as names
from tidemill.models.spec import DecoderSpec
from tidemill.worker.opening import Opened, of_files
from tidemill.worker.packed import kept_weights, packed_folder
from tidemill.worker.runner import Runner
from tidemill.worker.speculate.eagle_files import EagleFiles, read_eagle
from tidemill.worker.speculate.eagle_layer import EagleLayer
from tidemill.worker.speculate.heads import Head, read_heads
from tidemill.worker.speculate.layer_drafter import LayerDrafter, Tokens
from tidemill.worker.speculate.layers import Found, search
from tidemill.worker.speculate.matrices import Matrix
from tidemill.worker.speculate.medusa import MedusaDrafter
from tidemill.worker.speculate.model import ModelDrafter
from tidemill.worker.speculate.skip import SkipDrafter
from tidemill.worker.speculate.vocabulary import difference, special_ids

_log = get_logger(__name__)

Progress = Callable[[str], None]


class Draft(NamedTuple):
    """An opened draft model.

    Attributes:
        config: an engine's of its own.
        opened: the model.
    """

    config: EngineConfig
    opened: Opened

    @property
    def token_bytes(self) -> int:
        """KV cache of one token."""
        return self.opened.files.spec.kv_bytes_per_token(self.opened.options.kv_dtype)


def open_draft(config: EngineConfig, target: Opened) -> Draft | None:
    """Open the draft model of a configuration; None if it has none, or for a target that verifies
    no drafts.

    Args:
        config: the target's.
        target: the model that is drafted for.

    Raises:
        TidemillError: CONFIG for a model that cannot draft for this one; else as `open_files`.
    """
    setting, spec = read_setting(config.speculate), target.files.spec
    if DRAFT not in setting.drafters or spec.foreign is not None:
        return None
    with of_setting("the draft model"):
        files = open_model(setting.file, target.backend)
    _check(files, target.files, config.model)
    own = msgspec.structs.replace(
        config,
        model=setting.file,
        served_name=f"{config.served_name}'s draft model",
        backend=target.backend,
        speculate=OFF,
        max_model_len=min(files.spec.reach.longest, target.options.max_positions),
        kv_memory=None,
        kv_reserve=None,
    )
    return Draft(own, of_files(own, files))


def load_draft(draft: Draft, target: Opened, blocks: int, progress: Progress) -> ModelDrafter:
    """Load an opened draft model.

    Args:
        draft: the model.
        target: the model that is drafted for.
        blocks: of its KV cache, which holds as many tokens as the target's.
        progress: called with a line for each stage.
    """
    opened = draft.opened
    files, options, tensors = opened.files, opened.options, opened.tensors
    progress(f"loading the draft model {files.path.name} ({files.file_bytes / 2**30:.2f} GiB)")
    packed = kept_weights(
        draft.config, files, files.digest(), options.threads, tensors.error_note, progress
    )
    factory = cast(BackendFactory, opened.module.load)
    backend = factory(files.spec, tensors, options, packed)

    def loaded(error: TidemillError | None) -> None:
        tensors.forget()
        for file in files.files:
            file.release_pages()

    backend.when_loaded(loaded)
    backend.allocate_cache((blocks,) * len(files.spec.cache_groups()), unchecked=True)
    return ModelDrafter(backend, options.max_positions, blocks, target.files.spec.vocab_size)


def load_skip(config: EngineConfig, opened: Opened, runner: Runner, progress: Progress) -> None:
    """Let the model of a runner draft for itself, without some of its layers. Which ones is
    searched once, and kept with the packed weights.

    Raises:
        TidemillError: CONFIG for a model with a state per sequence.
    """
    backend, spec = runner.backend, opened.files.spec
    if spec.state_bytes:
        raise config_error(
            "speculate",
            f"{config.model} keeps a state per sequence, which advances through all layers: it "
            "cannot draft without some of them; use lookup",
        )
    kept = KeptLayers(config, opened)
    found = kept.find()
    if found is None:
        begun = monotonic()
        first, special = opened.files.bos_token_id, special_ids(opened.files.tokenizer)
        starts = [*([] if first is None else [first]), *special, 0]
        found = search(backend, [t for t in starts if 0 <= t < spec.vocab_size])
        kept.keep(found)
        progress(f"searched layers to draft without: {monotonic() - begun:.1f} s")
    progress(found.told(len(spec.layers)))
    layers, inputs = found.layers, runner.inputs
    runner.add_drafter(SKIP, lambda: SkipDrafter(backend, inputs, layers, runner.idle))


def load_medusa(config: EngineConfig, opened: Opened, runner: Runner, progress: Progress) -> None:
    """Let Medusa heads draft for the model of a runner.

    Raises:
        TidemillError: CONFIG for heads of another model, or a model that transformers runs.
    """
    spec = opened.files.spec
    heads = _heads(config, spec)
    load = cast(BackendFactory, opened.module.load)
    outputs = [
        bare_output(head.score, spec, load, opened.options, opened.backend) if head.own else None
        for head in heads
    ]
    drafter = MedusaDrafter(runner.backend, runner.inputs, heads, outputs, runner.idle)
    runner.add_loaded(MEDUSA, drafter)
    progress(f"{len(heads)} Medusa heads, {drafter.weight_bytes() / 2**20:.0f} MiB")


def medusa_bytes(config: EngineConfig, opened: Opened) -> int:
    """What the Medusa heads of a configuration take beside the model, in bytes.

    Raises:
        TidemillError: as `load_medusa`.
    """
    spec = opened.files.spec
    total, width = 0, spec.hidden_size
    for head in _heads(config, spec):
        total += 4 * len(head.stored) * (width**2 + width)
        if not head.own:
            total += 4 * width**2
            continue
        total += bare_bytes(head.score, opened)
    return total


def bare_bytes(output: Place, opened: Opened) -> int:
    """What a model without layers takes."""
    bare, tensors = _bare(output, opened.files.spec, opened.options, opened.backend)
    headers = {name: tensors.header(name) for name in tensors}
    held = opened.module.held_tensors(bare, headers, opened.options)
    return sum(tensor.nbytes for tensor in held.values())


def open_eagle(config: EngineConfig, spec: DecoderSpec) -> EagleFiles:
    """The EAGLE head of a configuration.

    Raises:
        TidemillError: CONFIG for a head of another model, or a model that transformers runs.
    """
    _check_verifies(config, spec)
    with of_setting("the EAGLE head"):
        return read_eagle(resolve(read_setting(config.speculate).file), spec, config.model)


def load_eagle(config: EngineConfig, opened: Opened, runner: Runner, progress: Progress) -> None:
    """Let an EAGLE head draft for the model of a runner.

    Raises:
        TidemillError: as `open_eagle`.
    """
    spec, options = opened.files.spec, opened.options
    files = open_eagle(config, spec)
    load = cast(BackendFactory, opened.module.load)

    def matrix(weight: OneTensor) -> Matrix:
        return Matrix(bare_output(weight, spec, load, options, opened.backend))

    products = {name: matrix(weight) for name, weight in files.products.items()}
    output = None if files.output is None else matrix(files.output)
    drafter = LayerDrafter(
        runner.backend,
        runner.inputs,
        EagleLayer(files, options.max_positions, products),
        files.layers,
        Tokens(output, files.tokens, files.embedding),
        runner.idle,
    )
    runner.add_loaded(EAGLE, drafter)
    told = "" if files.tokens is None else f" of {len(files.tokens)} tokens"
    progress(f"an EAGLE head{told}, {drafter.weight_bytes() / 2**20:.0f} MiB")


def eagle_bytes(config: EngineConfig, opened: Opened) -> tuple[int, int]:
    """What the EAGLE head of a configuration takes beside the model: bytes of weights, and of each
    token.

    Raises:
        TidemillError: as `open_eagle`.
    """
    files = open_eagle(config, opened.files.spec)
    matrices = [*files.products.values(), *([] if files.output is None else [files.output])]
    return files.layer_bytes + sum(bare_bytes(m, opened) for m in matrices), files.token_bytes


def _check_verifies(config: EngineConfig, spec: DecoderSpec) -> None:
    if spec.foreign is not None:
        raise config_error(
            "speculate", f"transformers runs {config.model}, so it verifies no drafts: use off"
        )


def _heads(config: EngineConfig, spec: DecoderSpec) -> list[Head]:
    _check_verifies(config, spec)
    with of_setting("the Medusa heads"):
        return read_heads(resolve(read_setting(config.speculate).file), spec, config.model)


@contextmanager
def of_setting(what: str) -> Iterator[None]:
    """Errors of a file are about the setting that names it, not about the model."""
    try:
        yield
    except TidemillError as error:
        if error.param == "speculate":
            raise
        message, again = f"{what}: {error.message}", error.retryable
        raise TidemillError(error.kind, message, param="speculate", retryable=again) from error


def bare_output(
    output: Place,
    spec: DecoderSpec,
    load: BackendFactory,
    options: BackendOptions,
    backend: str,
) -> Backend:
    """A matrix as a model without layers; its products are logits.

    Args:
        output: [rows, columns].
        spec: of the model that is drafted for.
        load, options, backend: the model's.
    """
    bare, tensors = _bare(output, spec, options, backend)
    made = load(bare, tensors, options)
    made.allocate_cache((1,))
    return made


def _bare(
    output: Place, spec: DecoderSpec, options: BackendOptions, backend: str
) -> tuple[DecoderSpec, LazyTensors]:
    bare = DecoderSpec(
        family=spec.family,
        vocab_size=output.shape[0],
        hidden_size=output.shape[1],
        max_positions=spec.max_positions,
        layers=(),
        norm_eps=spec.norm_eps,
        tied_embeddings=True,
        weights_dtype=spec.weights_dtype,
        last_norm=False,
    )
    wide = options.dtype == "float32" or backend != "native"
    return bare, LazyTensors({names.EMBED: output}).held(Holding(wide, options.quantize))


class KeptLayers:
    """What was found for a model, in the folder of its packed weights."""

    def __init__(self, config: EngineConfig, opened: Opened) -> None:
        options = opened.options
        how = f"{build_id()} {opened.backend} {options.dtype} {options.quantize}".encode()
        name = hashlib.blake2b(opened.files.digest() + how, digest_size=16).hexdigest()
        folder = packed_folder(config)
        self._path = None if folder is None else folder / f"{name}.layers"

    def find(self) -> Found | None:
        """What was found; None if it is not known."""
        if self._path is None:
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Found)
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, found: Found) -> None:
        """Keep it for the next start."""
        if self._path is None:
            return
        part = self._path.with_suffix(f".{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(msgspec.json.encode(found))
            part.replace(self._path)
        except OSError as error:
            _log.warning("the layers that were found are not kept: %s", error)


def _check(draft: ModelFiles, target: ModelFiles, name: str) -> None:
    spec, names = draft.spec, f"{draft.path} cannot draft for {name}"
    if not spec.generates or not spec.causal:
        raise config_error("speculate", f"{names}: it does not generate text")
    if spec.state_bytes or spec.foreign is not None:
        raise config_error(
            "speculate",
            f"{names}: models that keep a state per sequence, and models that transformers runs, "
            "do not draft",
        )
    if found := difference(draft.tokenizer, target.tokenizer):
        raise config_error(
            "speculate",
            f"{names}: their vocabularies differ ({found}); give a smaller model of the same "
            "family, whose tokenizer is the same",
        )
