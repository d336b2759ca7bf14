"""Backend: the small interface between control and compute, in arrays.

`worker/` turns a `StepPlan` into `StepInputs` and a backend's `StepOutputs` into a `StepResult`.
All arrays are C-contiguous numpy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import LoadCallback
from tidemill.models.adapters import Changes
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import TensorHeader, TensorMap

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]
UInt8 = NDArray[np.uint8]

Checksum = Callable[[UInt8], int]

LOGITS_NONE, LOGITS_LAST, LOGITS_ALL = 0, 1, 2
NOT_REACHED = -3  # in `StepOutputs.sampled`: a draft before this position was rejected
HIDDEN_NONE, HIDDEN_LAST, HIDDEN_ALL = 0, 1, 2
MAX_ADAPTERS = 1024  # slots


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that one process of a group computes (docs/parallel.md).

    Attributes:
        rank, ranks: which, of how many; rank 0 leads: it prepares steps, samples and has results.
        descriptor: of the file of zeros whose memory the group shares.
    """

    rank: int
    ranks: int
    descriptor: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of a model that one process of a pipeline computes: some of its layers
    (docs/parallel.md). Stage 0 also has the embedding and the output.

    Attributes:
        index, stages: which, of how many; stage 0 prepares steps, samples and has results.
        layers: which layers.
        receives: descriptor of a stream socket, whose other end is the `sends` of the stage before,
            and of stage 0 that of the last one.
        sends: to the next stage; of the last one to stage 0.
    """

    index: int
    stages: int
    layers: range
    receives: int
    sends: int


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Resolved options of a backend.

    Attributes:
        dtype: computing type, ``float32`` or ``bfloat16``.
        quantize: requantize float matrices at load: ``none``, ``q8_0``, ``q4_0`` or ``int8``. Norms
            and biases stay float, and so does a matrix whose rows are not whole blocks.
        kv_dtype: ``float32``, ``bfloat16``, ``int8`` or ``int4``.
        block_size: tokens per KV block.
        max_positions: positions that rope tables must cover.
        threads: compute threads.
        isa: force an instruction set, or None.
        device: ``cpu`` or a torch device.
        shard: the part of every layer that this backend computes; None: all of it.
        stage: the layers that this backend computes; None: all of them.
    """

    dtype: str
    quantize: str
    kv_dtype: str
    block_size: int
    max_positions: int
    threads: int
    isa: str | None = None
    device: str = "cpu"
    shard: Shard | None = None
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class BackendMemory:
    """Memory that a backend holds, in bytes, and the device it computes on.

    Attributes:
        weight_bytes: of all weights.
        kv_bytes: of the KV cache and recurrent states.
        isa: instruction set.
        device: device it computes on.
        mapped_bytes: part of `weight_bytes` that is in the page cache. The system counts it as
            free, although it is needed.
        promised_bytes: part of `weight_bytes` that is reserved and not written yet. The system
            counts it as free as well.
    """

    weight_bytes: int
    kv_bytes: int
    isa: str
    device: str
    mapped_bytes: int = 0
    promised_bytes: int = 0


_FLOATS = (
    *("typical_p", "top_a", "top_n_sigma", "epsilon_cutoff", "eta_cutoff"),
    *("xtc_probability", "xtc_threshold"),
    *("dynatemp_range", "dynatemp_exponent", "smoothing_factor", "smoothing_curve"),
    *("dry_multiplier", "dry_base"),
)
_INTEGERS = (
    *("dry_allowed_length", "dry_penalty_last_n", "repeat_last_n", "no_repeat_ngram_size"),
    "allowed",
)
SAMPLER_OPTIONS = np.dtype([*((f, "f4") for f in _FLOATS), *((i, "i4") for i in _INTEGERS)])
"""A sampling row's options beyond the arrays of `SamplingInputs`, named as in `SamplingParams`
(csrc/runtime/step.h has the same struct); `allowed` is an index into `SamplerExtras.allowed`, or -1
for every token."""


@dataclass(frozen=True, slots=True)
class SamplerExtras:
    """Options of those of the S sampled positions whose rows have any.

    Attributes:
        row: int32 [S]: index of the position's options, or -1.
        options: uint8 [E, SAMPLER_OPTIONS.itemsize]: records of SAMPLER_OPTIONS.
        breakers_start, breakers: int32 [E + 1], int32: tokens that DRY's sequences do not cross.
        bad_words_start, bad_words: int32 [E + 1], int32: sequences that the generated tokens must
            not contain, each after its length.
        allowed: uint8 [A, bytes], bits as of `StepHandle.set_mask`; tokens beyond them are banned.
    """

    row: Int32
    options: UInt8
    breakers_start: Int32
    breakers: Int32
    bad_words_start: Int32
    bad_words: Int32
    allowed: UInt8


@dataclass(slots=True)
class SamplingInputs:
    """Arrays over the S sampled positions of a step, in row order: one of each row with sample
    True, and one more of each of its drafts. The position after a draft has the arguments of a step
    of its own in which the draft is a known token.

    Attributes:
        temperature, top_p, min_p, presence, frequency, repetition: float32 [S]; see
            contract.sampling.SamplingParams for their meaning and order.
        top_k: int32 [S]; 0 keeps all.
        seed: uint64 [S].
        choice: int32 [S]; second word of the random key.
        position: int32 [S]; position of the token that is sampled; third word of the key.
        num_logprobs: int32 [S]; number of alternatives; -1 for no logprobs.
        bias_start: int32 [S + 1]; row s adds bias_value[i] to logit bias_id[i] for i in
            bias_start[s] .. bias_start[s + 1]; -inf bans.
        bias_id, bias_value: int32, float32.
        history_start: int32 [S + 1]; token history of row s, only for penalized rows (else empty):
            prompt then generated tokens. When the row's input is FUTURE, that token is not yet in
            it and the backend counts it as generated.
        history: int32.
        history_prompt: int32 [S]; number of the history's tokens that are the prompt.
        extras: see `SamplerExtras`; None: no row has further options. Rows whose options look at
            the history have one.
        candidates: int32 [S]; rows above 0 are beams: they return so many candidates instead of
            sampling (`CandidateArrays`). None: no row is a beam.
    """

    temperature: Float32
    top_p: Float32
    min_p: Float32
    presence: Float32
    frequency: Float32
    repetition: Float32
    top_k: Int32
    seed: UInt64
    choice: Int32
    position: Int32
    num_logprobs: Int32
    bias_start: Int32
    bias_id: Int32
    bias_value: Float32
    history_start: Int32
    history: Int32
    history_prompt: Int32
    candidates: Int32 | None = None
    extras: SamplerExtras | None = None

    @classmethod
    def neutral(cls, count: int) -> SamplingInputs:
        """Of positions that are not sampled, or by another process: values that change nothing."""
        zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
        none, ints = np.zeros(0, np.int32), np.zeros(count, np.int32)
        starts = np.zeros(count + 1, np.int32)
        return cls(
            temperature=zeros,
            top_p=ones,
            min_p=zeros,
            presence=zeros,
            frequency=zeros,
            repetition=ones,
            top_k=ints,
            seed=np.zeros(count, np.uint64),
            choice=ints,
            position=ints,
            num_logprobs=np.full(count, -1, np.int32),
            bias_start=starts,
            bias_id=none,
            bias_value=np.zeros(0, np.float32),
            history_start=starts,
            history=none,
            history_prompt=ints,
        )


@dataclass(frozen=True, slots=True)
class LayerSlice:
    """A range of layers computed for a step's last row, instead of all layers.

    A long prompt chunk is computed over several steps, a few layers in each, so that decoding
    streams do not wait for the whole chunk. The backend holds the output of a slice's last layer
    until a step continues with the same sequence and tokens. A failed step may be submitted again.

    Attributes:
        sequence: sequence of the row.
        begin, end: the layers, `end` exclusive. A slice that ends before the last layer has no
            logits.
    """

    sequence: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class EmbeddingOverrides:
    """Vectors in place of tokens' embeddings (soft prompts, images).

    They stand for rows of the embedding after `embed_scale`: learned positions, token types and the
    norm of embeddings are applied to them. Per-layer inputs (`LayerInputs`) look the token up.

    Attributes:
        tokens: int32 [N], ascending: indices of the step's tokens.
        rows: float32 [N, hidden_size].
    """

    tokens: Int32
    rows: Float32


@dataclass(slots=True)
class StepInputs:
    """One step over R rows and T tokens.

    Attributes:
        step_id: the plan's.
        token_ids: int32 [T], row after row. A value v < 0 means FUTURE: the token sampled by row
            -1 - v of the previous submitted step.
        row_start: int32 [R + 1]; row r computes tokens row_start[r] .. row_start[r + 1].
        context_len: int32 [R]; tokens of the row's sequence already in the cache: the position of
            its first computed token.
        block_tables: per cache group int32 [R, B], padded with -1.
        logits: uint8 [R]; LOGITS_NONE, LOGITS_LAST (of a row with drafts: of each sampled position)
            or LOGITS_ALL.
        sample: uint8 [R]; 1 for rows that sample (they have LOGITS_LAST or LOGITS_ALL).
        await_mask: uint8 [R]; 1 for rows whose sampling waits for `StepHandle.set_mask`.
        drafts: int32 [R]; how many of a row's last tokens are drafts, fewer than its tokens; only
            of rows that sample, none of whose tokens is FUTURE. The positions of a row are sampled
            in order as long as each token is the draft that the next one stands on. What rejected
            drafts leave in the cache is overwritten by the sequence's next row. None: no row has
            any.
        target_ids: int32 [T]; for LOGITS_ALL rows the known next token of each position, -1 where
            it is unknown or its logprob is not requested.
        target_logprobs: int32 [R]; alternatives per target of LOGITS_ALL rows; -1 for no logprobs.
        copies: per cache group int32 [C, 2]: blocks (source, target) copied before the rows run.
        sampling: see `SamplingInputs`.
        states: int32 [R, 2] for models with recurrent layers, else empty: the state each row reads
            (-1 at position 0, where the state is empty) and the state it writes. No row reads or
            writes a state that another row writes. A failed step leaves every state that a row
            reads unchanged.
        snapshots: int32 [N, 3]: row, token count, and the additional state written after that many
            of the row's tokens, as it is behind each draft but the last; ascending by row, then
            not descending by token count.
        slice: layers computed for the last row; None: all. Other rows always compute all layers.
        skip: int32, ascending: layers that are left out, of a step that drafts: x passes them
            unchanged, and they write no K and V; the number of layers stands for the last norm. Not
            with `slice` or a layer whose K and V others read; of a model with states, all layers or
            none. None: none are.
        return_logits: also return the float32 logits of all rows that have logits (for tests).
        hidden: uint8 [R]; HIDDEN_NONE, HIDDEN_LAST or HIDDEN_ALL: tokens whose final hidden states
            (after the last norm) are returned; LAST: of each sampled position. None: no tokens.
        hidden_layers: int32 [N], ascending: layers in front of which the residual stream of the
            same tokens is returned too; 0 is the embedding, the number of layers what the last
            layer leaves, before the last norm. Not with `slice`. None: no layers.
        overrides: see `EmbeddingOverrides`; None: none.
        second: int32 [R]: position from which a row's tokens have type 1; 0 for a row without such
            tokens. None: no row has any.
        adapters: int32 [R]: slot of each row's adapter (`Backend.load_adapter`), -1 for the base
            model. None: every row is the base's.
    """

    step_id: int
    token_ids: Int32
    row_start: Int32
    context_len: Int32
    block_tables: tuple[Int32, ...]
    logits: UInt8
    sample: UInt8
    await_mask: UInt8
    target_ids: Int32
    target_logprobs: Int32
    copies: tuple[Int32, ...]
    sampling: SamplingInputs
    states: Int32 = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    snapshots: Int32 = field(default_factory=lambda: np.zeros((0, 3), np.int32))
    slice: LayerSlice | None = None
    skip: Int32 | None = None
    return_logits: bool = False
    hidden: UInt8 | None = None
    hidden_layers: Int32 | None = None
    overrides: EmbeddingOverrides | None = None
    second: Int32 | None = None
    drafts: Int32 | None = None
    adapters: Int32 | None = None


@dataclass(slots=True)
class LogprobArrays:
    """Log-probabilities of N tokens: chosen [N] float32; top ids/values [N, K], where K is the
    largest number of alternatives that a row of the step requests; rows are padded with -1."""

    chosen: Float32
    top_ids: Int32
    top_values: Float32


@dataclass(slots=True)
class CandidateArrays:
    """The most likely tokens of S sampling rows, best first (ties: the lowest id first).

    Attributes:
        ids: int32 [S, K], where K is the largest number that a row of the step requests; -1 beyond
            a row's last candidate. A banned token is no candidate.
        scores: float32 [S, K]: the log-softmax of the raw logits, to which mask, bias and penalties
            are applied, without normalizing again.
        logprobs: float32 [S, K], of the raw logits.
    """

    ids: Int32
    scores: Float32
    logprobs: Float32


@dataclass(slots=True)
class StepOutputs:
    """Results of a step.

    Attributes:
        sampled: int32 [S]; -1 where a mask left no token, -2 where the logits are not finite,
            NOT_REACHED after a rejected draft.
        logprobs: of the S sampled positions, or None. Those that requested no logprobs hold NaN.
        targets: of all positions of LOGITS_ALL rows with a target, in order, or None.
        logits: float32 [L, vocab] when `return_logits`, in row order (LAST: one, or one per sampled
            position, ALL: each token).
        seconds: (queued, forward, sampling, total); forward excludes the wait for weights that are
            not loaded yet.
        hidden: float32 [H, hidden_size], in row order (LAST: one, or one per sampled position, ALL:
            each token), or None.
        layer_hidden: float32 [hidden_layers, H, hidden_size], or None.
        candidates: of the S sampling rows, or None. A beam's `sampled` is its best candidate.
    """

    sampled: Int32
    logprobs: LogprobArrays | None = None
    targets: LogprobArrays | None = None
    logits: Float32 | None = None
    seconds: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    hidden: Float32 | None = None
    layer_hidden: Float32 | None = None
    candidates: CandidateArrays | None = None


@dataclass(slots=True)
class KernelCount:
    """What a kernel took in a part of the steps; see `contract.profile.KernelTime`."""

    part: str
    kernel: str
    weights: str
    activations: str
    few: bool
    calls: int
    ns: float
    busy_ns: float
    nbytes: int
    operations: int


@dataclass(slots=True)
class BackendProfile:
    """What was counted of steps; see `contract.profile.StepCounters`."""

    steps: int
    rows: int
    tokens: int
    step_ns: float
    kernels: list[KernelCount]
    events: bytes = b""
    cut_events: int = 0
    parts: tuple[str, ...] = ()
    kernel_names: tuple[str, ...] = ()
    weight_types: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What the machine can do at most with the backend's threads: bytes read per second, and
    operations per second by the type of activations (a multiply-add counts two)."""

    read_bandwidth: float
    operations: dict[str, float] = field(default_factory=dict)


class StepHandle(Protocol):
    """A submitted step. At most two may be in flight; they run in order."""

    def set_mask(self, row: int, draft: int, bits: UInt8) -> None:
        """Set a token mask that a row waits for. bits: uint8 [ceil(vocab / 8)], little-endian bit
        order, 1 allows. draft: the mask is of what follows the row's first so many drafts; a row
        with drafts waits for one of each sampled position that it reaches."""

    def done(self, seconds: float = 0.0) -> bool:
        """Whether `result` would return without blocking. Waits up to `seconds` for that."""

    def result(self) -> StepOutputs:
        """Wait for the step (the GIL is released) and return its results.

        Raises TidemillError when the step failed. Steps submitted after it fail too, and their
        results are discarded.
        """


@dataclass(slots=True)
class ExportedBlocks:
    """Blocks in a portable form: per layer K [blocks, block_size, kv_heads, head_dim] and V
    [blocks, block_size, kv_heads, v_dim].

    `kv_dtype` is the element type (bfloat16 is stored as uint16 bits, int4 as one uint8 per value);
    int8 and int4 carry float32 `scales`, [blocks, block_size, kv_heads, *scales_shape]
    (`models/kv_types.py`), per layer for K and V.
    """

    kv_dtype: str
    keys: list[NDArray[np.generic]]
    values: list[NDArray[np.generic]]
    key_scales: list[Float32] = field(default_factory=list)
    value_scales: list[Float32] = field(default_factory=list)


class Backend(Protocol):
    """An executor of any DecoderSpec it supports. Construct it with (spec, tensors, options).

    Attributes:
        spec: the model's spec.
        options: the resolved options.
        slices_layers: whether it accepts steps with a `LayerSlice`.
        verifies_drafts: whether it accepts steps with `drafts`.
    """

    spec: DecoderSpec
    options: BackendOptions
    slices_layers: bool
    verifies_drafts: bool

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """Register a callback that is called once: with None when the backend holds all weights in
        its own form, or with the error that ended loading. Returns True when loading has already
        ended; the callback then runs at once. Otherwise it runs on another thread. It does not run
        when the backend is closed first.

        Steps may be submitted earlier. They wait for the weights that they need and fail with the
        error when loading fails.
        """

    def stop_loading(self) -> None:
        """Cancel loading. Steps that need weights not loaded yet fail as UNAVAILABLE, including
        those that already wait; callbacks do not run. Returns at once; idempotent."""

    def memory(self) -> BackendMemory:
        """Memory held now."""

    def allocate_cache(
        self,
        num_blocks: tuple[int, ...],
        kv_dtype: str | None = None,
        states: int = 2,
        *,
        unchecked: bool = False,
    ) -> None:
        """Allocate the KV cache, replacing an earlier one: a number of blocks per cache group of
        `spec.cache_groups()`, and `states` states when the model has recurrent layers.

        `kv_dtype` overrides the element type of the options, for comparisons. Blocks are exported
        and imported only in the options' type. `unchecked`: not all of it will be used, so it may
        exceed the free memory where pages are taken only when they are written.

        Raises TidemillError of kind RESOURCE when memory is insufficient.
        """

    def limit_cache(self, blocks: int) -> None:
        """Blocks from this one on, of every group, are not handed out until the limit is raised:
        no memory is taken for them ahead of their use. No step may be in flight."""

    def empty_cache(self) -> None:
        """Forget what all blocks and states hold and return their memory to the system, as far as
        that can be done. The sizes stay. No step may be in flight."""

    def release_weights(self) -> None:
        """Return the memory of the weights to the system; `restore_weights` follows before the next
        step. No step may be in flight. Idempotent.

        Raises TidemillError: UNSUPPORTED when the weights can only be loaded again, UNAVAILABLE
        (retryable) while they are loaded or stored.
        """

    def restore_weights(self) -> None:
        """Map the weights again. Returns when they are in memory."""

    def submit(self, inputs: StepInputs) -> StepHandle:
        """Queue a step. Returns at once; at most two may be in flight."""

    def load_adapter(self, slot: int, changes: Changes) -> int:
        """Hold an adapter in a free slot (0 to `MAX_ADAPTERS` - 1); returns the bytes that it
        takes. Later steps may name the slot. Called on any thread, also while steps run, which it
        does not delay; calls do not overlap.

        Raises TidemillError: UNSUPPORTED naming a tensor whose change the backend does not compute,
        RESOURCE when memory is insufficient. Then the slot stays free.
        """

    def unload_adapter(self, slot: int) -> None:
        """Free a slot, which no step in flight names. Unknown ones are ignored."""

    def copy_blocks(self, group: int, pairs: Int32) -> None:
        """Copy blocks at once: int32 [C, 2] of (source, target). No step may be in flight."""

    def give_back_blocks(self, group: int, blocks: Int32) -> None:
        """Return the memory of blocks, int32 in ascending order, to the system where that can be
        done: what they hold is lost, and it is taken again when they are written. No step may be
        outstanding."""

    def export_blocks(self, group: int, blocks: Int32) -> ExportedBlocks:
        """Read blocks out in a portable form, for comparisons. No step may be in flight."""

    def import_blocks(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """Write blocks exported earlier. No step may be in flight."""

    def start_profile(self, events: int) -> None:
        """Count where the time of the steps that begin from now on goes, with the first `events`
        records of a trace. Called on any thread, also while steps run. A backend that counts
        nothing does nothing."""

    def end_profile(self) -> BackendProfile | None:
        """Stop counting; None where nothing was counted."""

    def machine_rates(self) -> MachineRates | None:
        """Measure what the machine can do (takes about 0.3 s, on any thread); None: not known."""

    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of a block of each cache group in the backend's own form. Raises UNSUPPORTED where
        blocks cannot leave the cache."""

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None:
        """Copy blocks, one after the other, into `out`, uint8 [blocks * block_bytes], in the
        backend's own form: it means the same to an engine with equal weights, types, block size,
        instruction set and build. Called on any thread, also while steps run; what a step writes to
        these blocks meanwhile may be copied in part. Calls do not overlap."""

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None:
        """Write what `read_blocks` read. As there; no step in flight may touch these blocks."""

    def state_bytes(self) -> int:
        """Bytes of one recurrent state in the backend's own form; 0 without recurrent layers.
        Raises UNSUPPORTED where states cannot leave the cache."""

    def read_state(self, state: int, at: int, out: UInt8) -> None:
        """Copy bytes of a state from `at` on into `out`. As `read_blocks`."""

    def write_state(self, state: int, at: int, data: UInt8, tokens: int) -> None:
        """Write what `read_state` read. As `write_blocks`.

        Args:
            state, at, data: where, and what.
            tokens: that the state covers, with its last part; -1: it is not complete yet.
        """

    def checksum(self, data: UInt8) -> int:
        """64 bits over bytes, against corruption. On any thread."""

    def progress(self) -> int:
        """A counter that advances while a step computes. It separates a slow step from a stalled
        one."""

    def close(self) -> None:
        """Free everything. Steps in flight fail, and loading is cancelled."""


class PackedWeights(Protocol):
    """Storage for a model's weights in a backend's own form, which outlives the process.

    `layout` covers everything that this form depends on except the model's content and the build.
    `checksum` is the backend's checksum over the bytes of an array.
    """

    def find(self, layout: str, nbytes: int, checksum: Checksum) -> UInt8 | None:
        """The stored weights: uint8 [nbytes], read-only, complete and undamaged; or None."""

    def open_copy(self, data: UInt8) -> tuple[int, int]:
        """(file descriptor, offset) of a file that has `data`, which was passed to `keep`, from a
        page boundary on. The caller closes it.

        Raises TidemillError: UNAVAILABLE while `data` is being stored, UNSUPPORTED when it could
        not be stored.
        """

    def keep(self, layout: str, data: UInt8, checksum: Checksum) -> None:
        """Store `data` in the background. It must not change until `close`."""

    def close(self) -> None:
        """Stop reading `data`. Idempotent."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """How a backend would hold a tensor.

    Attributes:
        nbytes: bytes of memory.
        in_file: rows are read in its mapped file when a step needs them.
    """

    nbytes: int
    in_file: bool = False


class HeldTensors(Protocol):
    """A backend's way of holding weights, from their headers alone."""

    def __call__(
        self, spec: DecoderSpec, tensors: Mapping[str, TensorHeader], options: BackendOptions
    ) -> dict[str, HeldTensor]:
        """Canonical name -> how it would be held. Raises CONFIG for an instruction set that this
        machine lacks."""


def held_as_floats(
    tensors: Mapping[str, TensorHeader], options: BackendOptions
) -> dict[str, HeldTensor]:
    """`HeldTensors` of a backend that expands every weight to the computing type."""
    size = {"float32": 4, "bfloat16": 2}[options.dtype]
    return {
        name: HeldTensor(math.prod(tensor.shape) * (size if len(tensor.shape) > 1 else 4))
        for name, tensor in tensors.items()
    }


class BackendFactory(Protocol):
    """Loads a model into a new backend."""

    def __call__(
        self,
        spec: DecoderSpec,
        tensors: TensorMap,
        options: BackendOptions,
        packed: PackedWeights | None = None,
    ) -> Backend: ...
