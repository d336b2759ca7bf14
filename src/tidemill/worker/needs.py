"""What a model needs in memory, from config and headers alone: one arithmetic for `show`, for an
engine's own sizing and refusals, and for a server that decides which models fit.

Weights are exact: the backend says how it holds each tensor. So is the KV cache. The rest is the
sum of the buffers that csrc/model/decoder.h names, and what an idle process was measured to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tidemill.backends.base import HeldTensor
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import CacheNeeds, MemoryNeeds, ModelFacts
from tidemill.contract.speculation import DRAFT, EAGLE, MEDUSA, MTP
from tidemill.models import tensors as names
from tidemill.models.layers import Attention, Layer, Moe, Recurrent
from tidemill.models.spec import DecoderSpec
from tidemill.worker.machine import usable_cpus
from tidemill.worker.opening import Opened, open_files, speculation_of, stored_quantization

if TYPE_CHECKING:
    from tidemill.worker.speculate.opening import Draft

_FLOAT = 4
# The interpreter, numpy, the core and what both allocate, measured as what engines take beside
# weights, cache and steps, pages of files included (`make plan-memory`).
PROCESS_BYTES = 52 * 2**20
# With torch, and with transformers' model classes.
_BACKEND_BYTES = {"native": 0, "torch": 260 * 2**20, "transformers": 400 * 2**20}
# The part of the weights that is another model's.
DRAFT_PART = "draft model"
# The part that is Medusa heads.
MEDUSA_PART = "Medusa heads"
# The part of weights and cache that is an EAGLE head's.
EAGLE_PART = "EAGLE head"
# The part of weights and cache that is an MTP layer's.
MTP_PART = "MTP layer"
# Of a token's text in the vocabulary's tables, where constraints are compiled.
_TOKEN_BYTES = 64
# Tokens whose experts are computed at once (kMoeChunkTokens).
_EXPERT_TOKENS = 512
# Positions of a span of attention (kSpan), queries and query-heads of a tile of it; contexts beyond
# `_SPANNED` are taken to be rare.
_SPAN = 512
_TILE_QUERIES = (8, 64)
_TILE_HEADS = 128
_SPANNED = 16384

_PARTS = {
    names.EMBED: "embedding",
    names.POSITIONS: "embedding",
    names.TYPES: "embedding",
    names.LAYER_INPUTS: "embedding",
    names.LM_HEAD: "output",
    names.LM_HEAD_BIAS: "output",
}
_LAYER_PARTS = {"attn": "attention", "rec": "recurrent", "mlp": "feed-forward"}


def memory_needs(config: EngineConfig) -> MemoryNeeds:
    """What an engine of this configuration needs. Raises like `open_files`."""
    return needs_of(config, open_files(config))


def needs_of(config: EngineConfig, opened: Opened, draft: Draft | None = None) -> MemoryNeeds:
    """As `memory_needs`, of opened files, and a draft model that is opened where there is one."""
    needs = _of_model(config, opened)
    drafters = speculation_of(config, opened.files).drafters
    if DRAFT in drafters:
        from tidemill.worker.speculate.opening import open_draft

        draft = draft or open_draft(config, opened)
        return needs if draft is None else _with_draft(needs, _of_model(*draft))
    if MEDUSA in drafters:
        from tidemill.worker.speculate.opening import medusa_bytes

        heads = {MEDUSA_PART: medusa_bytes(config, opened)}
        return msgspec.structs.replace(needs, weights=needs.weights | heads)
    if EAGLE in drafters:
        from tidemill.worker.speculate.opening import eagle_bytes

        weights, token = eagle_bytes(config, opened)
        return msgspec.structs.replace(
            needs,
            weights=needs.weights | {EAGLE_PART: weights},
            caches=(*needs.caches, CacheNeeds(EAGLE_PART, 1, None, token)),
        )
    if MTP in drafters:
        from tidemill.worker.speculate.mtp_opening import mtp_needs

        mtp = mtp_needs(config, opened)
        return msgspec.structs.replace(
            needs,
            weights=needs.weights | {MTP_PART: mtp.weights},
            caches=(*needs.caches, CacheNeeds(MTP_PART, 1, None, mtp.token)),
        )
    return needs


def _with_draft(needs: MemoryNeeds, draft: MemoryNeeds) -> MemoryNeeds:
    """What both models need in one process. The draft model's cache holds the same tokens."""
    return msgspec.structs.replace(
        needs,
        files=needs.files + draft.files,
        weights=needs.weights | {DRAFT_PART: draft.weight_bytes},
        file_rows=needs.file_rows + draft.file_rows,
        caches=needs.caches
        + tuple(msgspec.structs.replace(cache, kind=DRAFT_PART) for cache in draft.caches),
        tables=needs.tables + draft.tables,
        step=needs.step + draft.step,
        sequence=needs.sequence + draft.sequence,
    )


def _of_model(config: EngineConfig, opened: Opened) -> MemoryNeeds:
    spec, options = opened.files.spec, opened.options
    held = opened.held()
    whole = not spec.causal or (spec.foreign is not None and not spec.foreign.in_pieces)
    context = options.max_positions
    tokens = max(config.max_step_tokens, context if whole else 0)
    return MemoryNeeds(
        backend=opened.backend,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        files=opened.files.file_bytes,
        weights=_by_part(held),
        file_rows=sum(tensor.nbytes for tensor in held.values() if tensor.in_file),
        caches=cache_needs(spec, options.kv_dtype),
        block_tokens=config.block_size,
        context=context,
        state=spec.state_bytes if spec.foreign is None else 0,
        tables=_tables(spec, context),
        step=config.local_ranks
        * (
            tokens * _step_token_bytes(spec, options.dtype)
            + _span_bytes(spec, context, config.threads or usable_cpus())
        ),
        sequence=_FLOAT * spec.vocab_size if spec.generates else 0,
        process=config.local_ranks * PROCESS_BYTES
        + _BACKEND_BYTES[opened.backend]
        + _TOKEN_BYTES * spec.vocab_size,
        ram_tier=config.kv_ram or 0,
        facts=ModelFacts(
            family=spec.family,
            parameters=spec.parameters() if spec.foreign is None else 0,
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            generates=spec.generates,
            dtype=options.dtype,
            quantization=stored_quantization(config, opened.files),
            vectors=opened.files.vectors,
        ),
    )


def cache_needs(spec: DecoderSpec, kv_dtype: str) -> tuple[CacheNeeds, ...]:
    """The KV cache of each cache group."""
    if spec.foreign is not None:
        return (CacheNeeds("full", 0, None, spec.kv_bytes_per_token(kv_dtype)),)
    return tuple(
        CacheNeeds(
            group.kind,
            len(group.layers),
            group.window,
            spec.kv_bytes_per_token(kv_dtype, group.layers),
        )
        for group in spec.cache_groups()
    )


def _by_part(held: Mapping[str, HeldTensor]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for name, tensor in held.items():
        part = _part(name)
        parts[part] = parts.get(part, 0) + tensor.nbytes
    return parts


def _part(name: str) -> str:
    """The part of the model that a tensor belongs to."""
    if name in _PARTS:
        return _PARTS[name]
    words = name.split(".")
    if words[0] == "layers" and ".experts." in name:
        return "experts"
    return _LAYER_PARTS.get(words[2], "other") if words[0] == "layers" else "other"


def _tables(spec: DecoderSpec, context: int) -> int:
    ropes = {mixer.rope for mixer in spec.attentions().values() if mixer.rope is not None}
    return sum(_FLOAT * rope.dim * context for rope in ropes)


def _step_token_bytes(spec: DecoderSpec, dtype: str) -> int:
    """Working memory per token of a step: float32 rows, and rows packed for products."""
    packed = _FLOAT if dtype == "float32" else 2
    hidden = spec.hidden_size
    if not spec.layers:
        return 12 * _FLOAT * hidden  # a foreign model
    qkv = heads = mixed = feed = experts = by_head = 0
    widest = hidden
    for layer in spec.layers:
        if (attention := layer.attention) is not None:
            qkv = max(qkv, _qkv(attention))
            heads = max(heads, attention.heads * attention.v_dim * (2 if attention.gated else 1))
            if (latent := attention.latent) is None:
                widest = max(widest, attention.heads * attention.v_dim)
            else:
                # Each head's rows are packed for its own products.
                widest = max(widest, attention.heads * latent.value)
                by_head = max(by_head, attention.heads * max(latent.nope, latent.rank))
        if layer.recurrent is not None:
            mixed = max(mixed, _mixed(layer.recurrent))
            widest = max(widest, layer.recurrent.inner)
        width, slots = _feed(layer)
        feed = max(feed, 2 * width)
        widest = max(widest, width)
        experts = max(experts, slots * (_FLOAT * (2 * width + hidden) + 2 * packed * widest))
    # The residual stream, a block's output (two where mixers run side by side), a part of a chunk
    # that waits for its next layers.
    residual = hidden * (5 if mixed or spec.layers[0].parallel else 4)
    rows = residual + qkv + heads + mixed + feed
    return _FLOAT * rows + 2 * packed * (widest + by_head) + experts


def _span_bytes(spec: DecoderSpec, context: int, threads: int) -> int:
    """Partial results of attention over a long context, of which threads compute a span each where
    there are too few rows for all of them (csrc/model/attend.cpp); of contexts up to `_SPANNED`."""
    found = {}
    for attention in spec.attentions().values():
        group = attention.heads // attention.kv_heads
        least = min(_TILE_QUERIES[0], max(1, 2 * _TILE_HEADS // group))
        queries = min(_TILE_QUERIES[1], max(least, _TILE_HEADS // group))
        tiles = (4 * threads - 1) // attention.kv_heads * attention.kv_heads
        reach = min(context, _SPANNED, attention.window or context)
        if threads > 1 and reach > _SPAN:
            state = queries * group * (2 + attention.v_dim)
            shape = (attention.heads, attention.kv_heads, attention.v_dim, attention.window)
            found[shape] = _FLOAT * tiles * -(-reach // _SPAN) * state
    return sum(found.values())


def _qkv(attention: Attention) -> int:
    if attention.latent is None:
        return (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    latent = attention.latent
    query, cached = latent.nope + latent.rope, latent.rank + latent.rope
    # As projected, and as attention reads it: in the latents' space.
    return attention.heads * (max(query, latent.value) + cached) + cached + (latent.q_rank or 0)


def _mixed(mixer: Recurrent) -> int:
    return 2 * mixer.channels + 3 * mixer.inner


def _feed(layer: Layer) -> tuple[int, int]:
    """(width of a feed-forward block, experts per token)."""
    mlp = layer.mlp
    if isinstance(mlp, Moe):
        return mlp.expert.intermediate, mlp.top_k
    return (0 if mlp is None else mlp.intermediate), 0
