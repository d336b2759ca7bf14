"""What a model takes of a memory, what fits into it, and what would make it fit.

The numbers are `worker.needs`'; the sizes and refusals are the engine's own (`worker.sizing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import TYPICAL_SEQUENCES, MemoryNeeds
from tidemill.models.spec import DecoderSpec
from tidemill.worker.sizing import check_weights_fit, plan_cache, reserve

SERVER_BYTES = 68 * 2**20
"""The API process of `tidemill serve`, without pages of files that the engine has mapped too."""

# Of a vocabulary that the tokenizers library holds as objects: any but byte-level BPE, which is
# read in place.
_SERVER_TOKEN_BYTES = 290

# What the scheduler keeps in Python of a token in the cache: its id, and its share of a block.
_TOKEN_OBJECT_BYTES = 120

MAX_SEQUENCES = 2**16
ADAPTER_RANK = 16


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A model in a memory, in bytes.

    Attributes:
        memory: what there is.
        weights: all weights.
        cache: KV cache and recurrent states, full.
        activations: the largest step's buffers and tables, and logits of each sequence in it.
        process: the engine process without these.
        server: the API process.
        total: all of these.
        context: tokens of a request at most.
        concurrency: sequences of that length the cache holds at once.
        fits: the engine would start, and never take more than there is.
        why: why not.
        max_context: the longest request, with `concurrency` of them at once; 0: none fits.
        max_concurrency: requests of `context` tokens at once; 0: none fits.
    """

    memory: int
    weights: int
    cache: int
    activations: int
    process: int
    server: int
    total: int
    context: int
    concurrency: int
    fits: bool
    why: str | None
    max_context: int
    max_concurrency: int

    @property
    def overhead(self) -> int:
        """Everything but weights and cache."""
        return self.activations + self.process + self.server


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as it would be loaded.

    Attributes:
        config: of its engine.
        spec: the model.
        needs: what it takes.
        serves: count the API process.
        in_place: its vocabulary is read in place.
    """

    config: EngineConfig
    spec: DecoderSpec
    needs: MemoryNeeds
    serves: bool = True
    in_place: bool = True

    @property
    def server(self) -> int:
        """Bytes of the API process."""
        if not self.serves:
            return 0
        return SERVER_BYTES + (0 if self.in_place else _SERVER_TOKEN_BYTES * self.spec.vocab_size)

    def fixed(self, sequences: int) -> int:
        """Everything but the cache, with so many sequences at once."""
        needs = self.needs
        return needs.weight_bytes + needs.working(sequences) + needs.process + self.server


def fit(
    subject: Subject, memory: int, context: int | None = None, concurrency: int | None = None
) -> Fit:
    """Fit a model into a memory.

    Args:
        subject: the model.
        memory: bytes that are free for it.
        context, concurrency: of requests; where neither is given, what `tidemill serve` chooses
            with such a memory.
    """
    needs, spec = subject.needs, subject.spec
    why: str | None = None
    longest = spec.reach.usual if subject.config.max_model_len is None else needs.context
    if context is None and concurrency is None:
        cache, held, tokens, streams, why = _chosen(subject, memory)
    else:
        streams = concurrency or 1
        tokens = context or min(longest, _max_context(subject, memory, streams) or longest)
        cache, held = streams * needs.cache_of(tokens), streams * tokens
        why = _refusal(subject, memory)
    at_once = min(concurrency or TYPICAL_SEQUENCES, subject.config.max_num_seqs)
    objects = held * _TOKEN_OBJECT_BYTES
    total = subject.fixed(at_once) + cache + objects
    if why is None and total > memory:
        why = "more than there is"
    return Fit(
        memory=memory,
        weights=needs.weight_bytes,
        cache=cache,
        activations=needs.working(at_once),
        process=needs.process + objects,
        server=subject.server,
        total=total,
        context=tokens,
        concurrency=streams,
        fits=why is None,
        why=why,
        max_context=_max_context(subject, memory, concurrency or 1),
        max_concurrency=_max_concurrency(subject, memory, tokens),
    )


def _chosen(subject: Subject, memory: int) -> tuple[int, int, int, int, str | None]:
    """The cache's bytes and tokens, the context, and full contexts in it, as an engine sizes them;
    and why it would not start."""
    needs, config = subject.needs, subject.config
    longest = needs.context
    refusal = _refusal(subject, memory)
    if refusal is not None:
        return needs.cache_of(longest), longest, longest, 1, refusal
    free = memory - subject.server - needs.process - needs.weight_bytes
    draft = needs.token_bytes - subject.spec.kv_bytes_per_token(needs.kv_dtype)
    try:
        plan = plan_cache(
            config, subject.spec, needs.kv_dtype, max(0, free), reserve(needs, config), draft
        )
    except TidemillError as error:
        if error.kind is not ErrorKind.RESOURCE:
            raise
        return needs.cache_of(longest), longest, longest, 1, error.message
    tokens = plan.num_blocks * config.block_size
    states = plan.states * needs.state
    return (
        tokens * needs.token_bytes + states,
        tokens,
        plan.max_model_len,
        max(1, tokens // plan.max_model_len),
        None,
    )


def _refusal(subject: Subject, memory: int) -> str | None:
    """Why an engine would not load the model."""
    try:
        check_weights_fit(subject.needs, memory - subject.server, subject.config.served_name)
    except TidemillError as error:
        return error.message
    return None


def _max_context(subject: Subject, memory: int, streams: int) -> int:
    """The longest context of so many requests at once, within the model's."""
    spec, block = subject.spec, subject.config.block_size
    room = (memory - subject.fixed(streams)) // streams - 2 * subject.needs.state
    if _refusal(subject, memory) is not None or room < 0:
        return 0
    blocks = room // (block * (subject.needs.token_bytes + _TOKEN_OBJECT_BYTES))
    return int(min(spec.reach.longest, blocks * block))


def _max_concurrency(subject: Subject, memory: int, context: int) -> int:
    """How many requests of a context there is room for."""
    needs = subject.needs
    room = memory - subject.fixed(0)
    if _refusal(subject, memory) is not None or room < 0:
        return 0
    each = needs.cache_of(context) + context * _TOKEN_OBJECT_BYTES + needs.sequence
    return int(min(MAX_SEQUENCES, room // each))


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to hold weights and cache.

    Attributes:
        quantize, kv_dtype: the flags' values.
        total: bytes, for the same requests.
        fits: whether it does.
        max_context, max_concurrency: as `Fit`.
    """

    quantize: str
    kv_dtype: str
    total: int
    fits: bool
    max_context: int
    max_concurrency: int


# From the least to the greatest loss.
_STEPS = (
    ("none", "auto"), ("none", "int8"), ("q8_0", "auto"), ("q8_0", "int8"), ("q4_0", "auto"),
    ("q4_0", "int8"), ("q4_0", "int4"),
)  # fmt: skip


def alternatives(
    subject: Subject,
    memory: int,
    fitted: Fit,
    reopened: Callable[[EngineConfig], Subject],
    *,
    quantizable: bool,
) -> tuple[Alternative, ...]:
    """Other types of weights and cache for the same requests, the least lossy first.

    Args:
        fitted: the requests.
        reopened: a subject of another configuration.
        quantizable: the weights are floats.
    """
    return tuple(
        _alternative(reopened(_changed(subject.config, quantize, kv_dtype)), memory, fitted)
        for quantize, kv_dtype in _others(subject.config, quantizable=quantizable)
    )


def _others(config: EngineConfig, *, quantizable: bool) -> Iterable[tuple[str, str]]:
    for quantize, kv_dtype in _STEPS:
        if quantize != "none" and not quantizable:
            continue
        if (quantize, kv_dtype) != (config.quantize, config.kv_dtype):
            yield quantize, kv_dtype


def _changed(config: EngineConfig, quantize: str, kv_dtype: str) -> EngineConfig:
    return msgspec.structs.replace(config, quantize=quantize, kv_dtype=kv_dtype)


def _alternative(subject: Subject, memory: int, fitted: Fit) -> Alternative:
    found = fit(subject, memory, fitted.context, fitted.concurrency)
    return Alternative(
        quantize=subject.config.quantize,
        kv_dtype=subject.config.kv_dtype,
        total=found.total,
        fits=found.fits,
        max_context=found.max_context,
        max_concurrency=found.max_concurrency,
    )


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What the memory that is left is good for.

    Attributes:
        bytes: left.
        adapter_bytes: of a LoRA adapter of rank `ADAPTER_RANK` for every matrix of the layers.
        adapters: how many of them.
        draft_bytes: weights and cache of the largest draft model.
    """

    bytes: int
    adapter_bytes: int
    adapters: int
    draft_bytes: int


def budget(subject: Subject, fitted: Fit) -> Budget:
    """The budget that remains for adapters or for speculation."""
    left = max(0, fitted.memory - fitted.total)
    size = 4 if subject.needs.dtype == "float32" else 2
    each = sum(
        ADAPTER_RANK * sum(shape) * size
        for name, shape in subject.spec.expected_tensors().items()
        if len(shape) == 2 and name.startswith("layers.") and ".experts." not in name
    )
    return Budget(
        bytes=left,
        adapter_bytes=each,
        adapters=left // each if each else 0,
        draft_bytes=left,
    )
