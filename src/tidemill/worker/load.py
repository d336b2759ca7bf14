"""From an EngineConfig to a running worker: open, check, load, size the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from tidemill.backends.base import Backend, BackendFactory
from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.base.vector_data import VectorData
from tidemill.contract.config import EngineConfig
from tidemill.contract.speculation import DRAFT, EAGLE, LOOKUP, MEDUSA, MTP, OFF, SKIP
from tidemill.contract.wire import EngineInfo
from tidemill.models.spec import DecoderSpec
from tidemill.worker.adapters import AdapterLoader
from tidemill.worker.kv_check import NARROW, check_kv
from tidemill.worker.machine import available_memory, total_memory
from tidemill.worker.needs import DRAFT_PART, EAGLE_PART, MEDUSA_PART, MTP_PART, needs_of
from tidemill.worker.opening import Opened, open_files, speculation_of, stored_quantization
from tidemill.worker.packed import kept_weights
from tidemill.worker.runner import Runner
from tidemill.worker.sizing import (
    check_cache_setting,
    check_weights_fit,
    plan_cache,
    reserve,
    wanted_len,
)

if TYPE_CHECKING:
    from tidemill.worker.speculate.drafter import LoadedDrafter
    from tidemill.worker.speculate.opening import Draft
    from tidemill.worker.tiers.mover import Mover

Progress = Callable[[str], None]

# Heads and layers beside the model, and those with keys and values of their own for each token.
_HEADS = (MEDUSA_PART, EAGLE_PART, MTP_PART)
_WITH_CACHE = (EAGLE_PART, MTP_PART)
_NO_DRAFTS = (
    "no speculation: models that transformers runs verify no drafts, and neither do models with "
    "recurrent layers whose cache has no memory for a state per draft"
)
_NO_PREFIXES = (
    "prefix caching: off, since the cache has no memory to keep states of this model's recurrent "
    "layers; give more --kv-memory"
)
_NO_SHARING = (
    "prefix caching: off, since transformers keeps what a sequence leaves in one piece that no "
    "other can share"
)


@dataclass(slots=True)
class LoadedWorker:
    """A worker ready for plans.

    Attributes:
        runner: runs plans.
        info: the resolved properties.
        snapshots: number of state snapshots of a recurrent model.
        identity: digest of the weights and of how they compute, part of every block's key.
        tokenizer: the model's tokenizer data.
    """

    runner: Runner
    info: EngineInfo
    identity: str
    tokenizer: TokenizerData
    snapshots: int = 0


Make = Callable[[BackendFactory, bytes], BackendFactory]
"""Of a factory and the digest of the weights."""


def load_worker(
    config: EngineConfig,
    progress: Progress = lambda line: None,
    make: Make = lambda factory, digest: factory,
) -> LoadedWorker:
    """Load the model of a configuration.

    Args:
        config: validated here.
        progress: called with a line for each stage; also later, from another thread, while weights
            are packed concurrently with the first steps.
        make: another factory of backends, made of the model's and the digest of its weights.

    Raises:
        TidemillError: NOT_FOUND, MODEL_FILE or UNSUPPORTED for the model's files, CONFIG for the
            settings, RESOURCE when memory does not suffice (found before loading). What only the
            weights' bytes show comes later where they are packed later: `Backend.when_loaded`.
    """
    opened = open_files(config)
    files, name, options, tensors = opened.files, opened.backend, opened.options, opened.tensors
    speculation = speculation_of(config, files)
    spec, dtype, kv_dtype, threads = files.spec, options.dtype, options.kv_dtype, options.threads
    draft = _open_drafters(config, opened) if DRAFT in speculation.drafters else None
    needs = needs_of(config, opened, draft)
    draft_bytes = 0 if draft is None else draft.token_bytes
    layer_bytes = sum(c.token_bytes for c in needs.caches if c.kind in _WITH_CACHE)
    draft_bytes += layer_bytes
    if config.device == "cpu":
        check_weights_fit(needs, _available(config), config.served_name)
        check_cache_setting(config.kv_memory, _machines(config) * total_memory())
    # Rejects a context longer than the model's before minutes are spent on loading it.
    if spec.foreign is None:
        plan_cache(config, spec, kv_dtype, _available(config), reserve(needs, config), draft_bytes)
    else:
        wanted_len(config, spec)  # the cache size per token is not known yet
    if _has_tiers(config):
        _check_tiers(config, spec, spec.kv_bytes_per_token(kv_dtype) * config.block_size)
    progress(f"loading {config.served_name} ({files.file_bytes / 2**30:.2f} GiB)")
    started = monotonic()
    weights = files.digest()
    factory = make(cast(BackendFactory, opened.module.load), weights)
    packed = kept_weights(config, files, weights, threads, tensors.error_note, progress)
    head = files.head()  # before: while weights are packed nobody else reads them
    backend = factory(spec, tensors, options, packed)
    spec = backend.spec  # a foreign model's sizes are known now
    lost: list[str] = []

    def release_file_pages() -> None:
        for file in files.files:
            file.release_pages()  # what is read in place comes back when it is used

    def loaded(error: TidemillError | None) -> None:
        tensors.forget()
        release_file_pages()
        if error is None:
            progress(f"weights loaded in {monotonic() - started:.1f} s")
            if note := tensors.error_note() or (packed.note if packed is not None else None):
                lost.append(note)
                progress(note)

    if not backend.when_loaded(loaded):
        release_file_pages()  # headers and vectors have been read
        progress(
            "weights are being laid out for this processor; requests are taken meanwhile, and wait "
            "for what they need"
        )
    eos = _known(files.eos_token_ids, spec)
    narrowed = (
        check_kv(backend, dtype, kv_dtype, eos[0] if eos else 0)
        if kv_dtype in NARROW and spec.generates
        else ""
    )
    memory = backend.memory()
    free = _available(config) - memory.mapped_bytes - memory.promised_bytes
    free -= sum(needs.weights.get(part, 0) for part in (DRAFT_PART, *_HEADS))
    cache = plan_cache(config, spec, kv_dtype, max(0, free), reserve(needs, config), draft_bytes)
    # Elsewhere memory is taken for all blocks at once.
    reserved = cache.reserved_blocks if name == "native" else cache.num_blocks
    backend.allocate_cache(
        (reserved,) * len(spec.cache_groups()),
        states=cache.states,
        unchecked=reserved > cache.num_blocks,
    )
    if reserved > cache.num_blocks:
        backend.limit_cache(cache.num_blocks)
    drafters: dict[str, LoadedDrafter] = {}
    if draft is not None:
        drafters[DRAFT] = _load_draft(draft, opened, reserved, progress)
        drafters[DRAFT].limit_cache(cache.num_blocks)
    foreign = spec.foreign
    kept = cache.snapshots > 0 or not spec.state_bytes
    verifies = backend.verifies_drafts and (cache.draft_states > 0 or not spec.state_bytes)
    prefix_caching = config.prefix_caching and kept and spec.causal
    memory = backend.memory()
    quantization = stored_quantization(config, files)
    notes = (
        f"computing in {dtype} on {memory.isa} with {threads} threads; weights "
        f"{'not quantized' if quantization == 'none' else quantization}, "
        f"{memory.weight_bytes / 2**30:.2f} GiB; KV cache {kv_dtype}",
        *files.notes,
        *_made_for(files.vectors),
        *lost,
        *([narrowed] if narrowed else []),
        *getattr(backend, "notes", ()),
        *([] if verifies or config.speculate == OFF else [_NO_DRAFTS]),
        *cache.notes,
        *([_NO_SHARING if foreign else _NO_PREFIXES] if config.prefix_caching and not kept else []),
    )
    for note in notes:
        if note not in lost:
            progress(note)
    hidden, token_bytes = spec.hidden_size, spec.kv_bytes_per_token(kv_dtype) + draft_bytes
    whole = not spec.causal or (foreign is not None and not foreign.in_pieces)
    identity = f"{weights.hex()} {name} {memory.isa} {dtype} {config.quantize}"
    info = EngineInfo(
        model=config.served_name,
        backend=name,
        isa=memory.isa,
        device=memory.device,
        dtype=dtype,
        quantization=quantization,
        kv_dtype=kv_dtype,
        threads=threads,
        vocab_size=spec.vocab_size,
        max_model_len=cache.max_model_len,
        block_size=config.block_size,
        num_blocks=cache.num_blocks,
        kv_bytes_per_token=token_bytes,
        kv_bytes=memory.kv_bytes
        + sum(d.kv_bytes() for d in drafters.values())
        + reserved * layer_bytes * config.block_size
        - (reserved - cache.num_blocks) * token_bytes * config.block_size,
        reserved_blocks=reserved,
        state_bytes=cache.states * spec.state_bytes if foreign is None else 0,
        weight_bytes=memory.weight_bytes
        + sum(d.weight_bytes() for d in drafters.values())
        + sum(needs.weights.get(part, 0) for part in _HEADS),  # loaded later
        max_num_seqs=cache.max_num_seqs,
        max_step_tokens=max(config.max_step_tokens, cache.max_model_len if whole else 0),
        prefix_caching=prefix_caching,
        hidden_size=head[-1].weight.shape[0] if head and not files.vectors.labels else hidden,
        vectors=files.vectors,
        generates=spec.generates,
        recurrent_sequences=cache.max_num_seqs if spec.state_bytes else None,
        recurrent_snapshots=cache.snapshots if spec.state_bytes else None,
        recurrent_drafts=cache.draft_states if spec.state_bytes else None,
        whole_prompts=whole,
        eos_token_ids=eos,
        notes=notes,
        identity=identity,
        speculation=speculation.default if verifies else None,
        drafters=speculation.drafters if verifies else (),
        role=config.role,
        family=spec.family,
        parameters=spec.parameters() if foreign is None else 0,
    )
    runner = Runner(
        backend,
        cache.max_model_len,
        slots=min(config.max_num_seqs, 64),
        head=head,
        states=cache.max_num_seqs if spec.state_bytes else 0,
        drafters=drafters,
        adapters=AdapterLoader(backend, config),
        snapshots=cache.snapshots,
        draft_states=cache.draft_states,
    )
    if config.lookup_answers is not None:
        from tidemill.worker.speculate.lookup import LookupDrafter

        runner.add_drafter(LOOKUP, partial(LookupDrafter, config.lookup_answers))
    if verifies and {SKIP, MEDUSA, EAGLE} & {*speculation.drafters}:
        from tidemill.worker.speculate.opening import load_eagle, load_medusa, load_skip

        loaders = {SKIP: load_skip, MEDUSA: load_medusa, EAGLE: load_eagle}
        loaders[speculation.drafters[-1]](config, opened, runner, progress)
    if verifies and MTP in speculation.drafters:
        from tidemill.worker.speculate.mtp_opening import load_mtp

        load_mtp(config, opened, runner, (reserved, cache.num_blocks), progress)
    runner.mover = _open_tiers(config, backend, identity, progress, runner.first_snapshot)
    return LoadedWorker(runner, info, identity, files.tokenizer, cache.snapshots)


def _machines(config: EngineConfig) -> int:
    """Machines that hold a part of the model."""
    return 1 if config.pipeline_peers is None else config.stages


def _available(config: EngineConfig) -> int:
    """Memory that is free on all of them. The others' is taken to be as much as this one's; each
    checks what it allocates."""
    return _machines(config) * available_memory()


def _has_tiers(config: EngineConfig) -> bool:
    return any((config.kv_ram, config.kv_disk, config.kv_listen, config.kv_peers))


def _check_tiers(config: EngineConfig, spec: DecoderSpec, block_bytes: int) -> None:
    from tidemill.worker.tiers.opening import check_tiers

    check_tiers(config, spec, block_bytes)


def _open_tiers(
    config: EngineConfig, backend: Backend, identity: str, progress: Progress, first_snapshot: int
) -> Mover | None:
    if not _has_tiers(config):
        return None
    from tidemill.worker.tiers.opening import open_tiers

    return open_tiers(config, backend, identity, progress, first_snapshot)


def _open_drafters(config: EngineConfig, opened: Opened) -> Draft | None:
    from tidemill.worker.speculate.opening import open_draft

    return open_draft(config, opened)


def _load_draft(draft: Draft, target: Opened, blocks: int, progress: Progress) -> LoadedDrafter:
    from tidemill.worker.speculate.opening import load_draft

    return load_draft(draft, target, blocks, progress)


def _made_for(vectors: VectorData) -> list[str]:
    """A note for models made for embeddings or scores; empty for others."""
    if not vectors.source and not vectors.head:
        return []
    made = "scores of pairs" if vectors.head == "score" else f"vectors by {vectors.pooling}"
    return [f"made for {made} ({vectors.source or 'config.json'})"]


def _known(eos: tuple[int, ...], spec: DecoderSpec) -> tuple[int, ...]:
    """The end tokens within the output layer's vocabulary."""
    return tuple(token for token in eos if 0 <= token < spec.vocab_size)
