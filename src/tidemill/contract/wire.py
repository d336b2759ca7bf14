"""Messages between a client (the API process) and an engine, over a local stream socket.

Framing: a 4-byte little-endian length, then one msgpack message (a tagged union, see `ToEngine`
and `ToClient`). The client speaks first, with `Hello`; the engine answers `Welcome` or `Refused`
and closes. Several clients may connect; request ids are namespaced by connection. The engine exits
when the connection of its owner closes. No pickle anywhere.

What an engine sends is cut into frames of about `FRAME_BYTES` (`frames`): a step's outputs over
several messages, and a prompt's logprobs over several outputs. So no answer, however large, is one
message, and its reader has pauses while it comes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from tidemill.base.files import OpenedFile
from tidemill.base.vector_data import NOTHING_SAID, VectorData
from tidemill.contract.cache import CacheNews
from tidemill.contract.moves import TierStats
from tidemill.contract.profile import EngineProfile
from tidemill.contract.request import AdapterUse, ChoiceOutput, EngineRequest, RequestError
from tidemill.contract.speculation import LOOKUP

PROTOCOL_VERSION = 3
MAX_MESSAGE_BYTES = 256 * 2**20
FRAME_BYTES = 2**18
_LENGTH = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a client. `owner`: the engine lives as long as this connection."""

    protocol: int
    build: str
    config_digest: str
    owner: bool = False


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine resolved at start, for `/v1/models`, `/readyz`, logs and responses.

    Attributes:
        model: name it is served under.
        backend, isa, device: what computes.
        dtype, quantization, kv_dtype: number types in use.
        threads: compute threads.
        vocab_size: size of the output layer.
        max_model_len: positions a request may use (prompt plus output).
        block_size, num_blocks: KV cache geometry (tokens per block; blocks).
        reserved_blocks: blocks that the cache may grow to; 0: `num_blocks`.
        state_bytes: of all recurrent states, part of `kv_bytes`.
        kv_bytes_per_token: bytes of KV cache one token takes over all layers.
        kv_bytes, weight_bytes: bytes held.
        max_num_seqs, max_step_tokens: scheduler bounds.
        prefix_caching: whether finished blocks are found again.
        recurrent_sequences, recurrent_snapshots, recurrent_drafts: of a recurrent model, how many
            sequences have states, how many snapshots of states there are, and how many drafts a
            step may verify.
        eos_token_ids: end tokens of the model.
        notes: human-readable lines: what was chosen and why.
        identity: digest of the weights and of how they compute; engines of equal identity (and
            equal sizes) answer alike.
        hidden_size: length of the vectors that a model's requests with `pooling` get.
        vectors: how the model's vectors and scores are made, as its files say.
        generates: it has an output layer; else it only gives vectors.
        whole_prompts: an encoder, whose inputs are computed in one step each.
        files: what was opened of the model, for comparing it with what is there later.
        speculation: what drafts where a request does not say it
            (`contract.speculation.BY_REQUEST`); None: the model verifies no drafts.
        drafters: what a request may have (`contract.speculation.DRAFTERS`).
        role: see `contract.config.EngineConfig`.
        family: of models that it belongs to.
        parameters: how many it has; 0: not known.
    """

    model: str
    backend: str
    isa: str
    device: str
    dtype: str
    quantization: str
    kv_dtype: str
    threads: int
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    kv_bytes: int
    weight_bytes: int
    max_num_seqs: int
    max_step_tokens: int
    prefix_caching: bool
    eos_token_ids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    identity: str = ""
    hidden_size: int = 0
    vectors: VectorData = NOTHING_SAID
    generates: bool = True
    recurrent_sequences: int | None = None
    recurrent_snapshots: int | None = None
    recurrent_drafts: int | None = None
    whole_prompts: bool = False
    files: tuple[OpenedFile, ...] = ()
    reserved_blocks: int = 0
    state_bytes: int = 0
    speculation: str | None = None
    drafters: tuple[str, ...] = (LOOKUP,)
    family: str = ""
    parameters: int = 0
    role: str = "both"


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The engine accepts the client."""

    protocol: int
    build: str
    config_digest: str
    info: EngineInfo


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The engine does not accept the client (another protocol or configuration)."""

    message: str


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Start a request."""

    request: EngineRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop a request's choice (None: all of them); its blocks are free within one step.

    `finish_reason` is what the choice's terminal message will carry (``stop`` when the API process
    met a stop string, ``cancelled`` when the client left).
    """

    request_id: str
    choice: int | None = None
    finish_reason: str = "cancelled"


class StatsRequest(msgspec.Struct, frozen=True, tag="stats?"):
    """Ask for a `Stats` message now."""

    nonce: int = 0


class CacheRequest(msgspec.Struct, frozen=True, tag="cache?"):
    """Ask for what is new in the prefix cache; answered by `CacheTold`.

    Attributes:
        nonce: of the answer.
        cursor: of the news before; empty: everything is asked for.
    """

    nonce: int
    cursor: str = ""


class CacheTold(msgspec.Struct, frozen=True, tag="cache"):
    """Answer to `CacheRequest`; without news where no prefixes are kept."""

    nonce: int
    news: CacheNews | None = None


class ResizeCache(msgspec.Struct, frozen=True, tag="resize"):
    """Let the KV cache take at most so many bytes. The answer, `Controlled`, has what was reached:
    never less than one request of full length, nor more than the engine has reserved, nor less than
    what is in use beyond the new size, which follows as its sequences end."""

    nonce: int
    kv_bytes: int


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Return the weights and the KV cache to the system and keep the process; answered by
    `Controlled`. An error while there are requests (UNAVAILABLE), or where the backend cannot
    (UNSUPPORTED)."""

    nonce: int
    keep_prefixes: bool = False


class Wake(msgspec.Struct, frozen=True, tag="wake"):
    """Map the weights again; answered by `Controlled`."""

    nonce: int


class MemoryRequest(msgspec.Struct, frozen=True, tag="memory?"):
    """Ask for the engine's memory now; answered by `Controlled`. With `map`, also for the states of
    its KV blocks."""

    nonce: int
    map: bool = False


Control = ResizeCache | Sleep | Wake | MemoryRequest


class CheckAdapter(msgspec.Struct, frozen=True, tag="adapter?"):
    """Read an adapter, verify it against the base model and keep it in memory while there is room;
    answered by `CheckedAdapter`."""

    nonce: int
    adapter: AdapterUse


class DropAdapter(msgspec.Struct, frozen=True, tag="drop_adapter"):
    """An adapter is no longer registered: it leaves the memory once no request uses it."""

    digest: str


class StartProfile(msgspec.Struct, frozen=True, tag="profile"):
    """Count where the engine's time goes from now on; answered by `Profiled`, without a profile,
    when that has begun. It ends with `EndProfile`, or with the connection.

    Attributes:
        nonce: of the answer.
        events: records of the trace, at most.
        rates: measure what the machine can do first, if that is not known.
    """

    nonce: int
    events: int = 0
    rates: bool = False


class EndProfile(msgspec.Struct, frozen=True, tag="profile_end"):
    """Stop counting, or do not begin; answered by `Profiled`.

    Attributes:
        nonce: of the answer.
        begun: nonce of the `StartProfile`.
    """

    nonce: int
    begun: int


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """Answer to `StartProfile` and `EndProfile`: what was found, or why nothing was."""

    nonce: int
    profile: EngineProfile | None = None
    error: RequestError | None = None


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A verified adapter.

    Attributes:
        digest: hexadecimal, of settings and values.
        rank: the highest.
        nbytes: memory that it takes.
        targets: number of tensors that it changes.
        invocation, virtual_tokens, prefix: see `AdapterUse`.
    """

    digest: str
    rank: int = 0
    nbytes: int = 0
    targets: int = 0
    invocation: tuple[int, ...] = ()
    virtual_tokens: int = 0
    prefix: bool = False


class CheckedAdapter(msgspec.Struct, frozen=True, tag="adapter"):
    """Answer to `CheckAdapter`: the adapter, or why it cannot be used."""

    nonce: int
    adapter: AdapterInfo | None = None
    error: RequestError | None = None


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """A step's outputs for this client's requests; large ones are split over several messages."""

    outputs: tuple[ChoiceOutput, ...]
    stats: EngineStats | None = None


class DrafterFigures(msgspec.Struct, frozen=True, array_like=True):
    """Counters of a drafter.

    Attributes:
        drafter: its name.
        seconds: time it took.
        verified, accepted: per position in a proposal, drafts that were verified, and those of them
            that became tokens.
    """

    drafter: str
    seconds: float
    verified: tuple[int, ...]
    accepted: tuple[int, ...]


class SpeculationFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of speculation.

    Attributes:
        steps, tokens: steps with drafts, and the tokens that they gave.
        plain_seconds, spent_seconds: predicted time of their tokens by steps without drafts, and
            what they took, drafting and waiting for the result included.
        held_out_predicted_seconds, held_out_seconds: of steps that were to have drafts and had
            none, so that steps without are measured: predicted and measured time.
        drafters: by name.
    """

    steps: int = 0
    tokens: int = 0
    plain_seconds: float = 0.0
    spent_seconds: float = 0.0
    held_out_predicted_seconds: float = 0.0
    held_out_seconds: float = 0.0
    drafters: tuple[DrafterFigures, ...] = ()

    @property
    def saved_seconds(self) -> float:
        """What steps with drafts saved, by the predicted time of steps without."""
        return self.plain_seconds - self.spent_seconds


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Gauges and counters of the engine at one moment; counters since its start.

    Attributes:
        queued, running: sequences waiting, sequences with blocks.
        blocks_used, blocks_total: KV blocks held by sequences; all blocks.
        steps, step_tokens, step_rows: counters over all steps.
        step_seconds, compute_seconds: counters: wall time of steps; share in the backend.
        prompt_tokens, cached_tokens, generated_tokens: counters.
        preemptions: counter.
        resumed_cached_tokens, resumed_brought_tokens, resumed_computed_tokens: counters: tokens of
            preempted sequences that were still cached when they were admitted again, came back from
            a tier, or had to be computed again.
        forced_tokens: counter: tokens that a constraint forced and no step sampled.
        drafted_tokens, drafts_accepted: counters: drafts verified by speculation, and those of them
            that became tokens.
        speculation: its other counters; None before a request has drafters.
        grammars_compiled, grammars_reused, grammars_refused: counters.
        grammar_seconds, mask_seconds: counters: compiling (beside the steps), masks.
        last_step_tokens, last_step_rows, last_step_seconds: the latest step.
        waiting_tokens: tokens that waiting sequences have still to compute.
        tenants: tenants with a request in the engine.
        expired, queue_expired: counters: requests ended by their own deadline, and by the bound on
            the time in the queue.
        predicted_seconds, measured_seconds: counters: over the steps whose time was predicted,
            what was predicted and what they took.
        last_predicted_seconds: of the latest such step; 0 when it was not predicted.
        tiers: what lies below the device; empty without.
        loading: weights are still being packed: steps wait for those that they reach.
    """

    queued: int = 0
    running: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    steps: int = 0
    step_tokens: int = 0
    step_rows: int = 0
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    resumed_cached_tokens: int = 0
    resumed_brought_tokens: int = 0
    resumed_computed_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    drafts_accepted: int = 0
    speculation: SpeculationFigures | None = None
    grammars_compiled: int = 0
    grammars_reused: int = 0
    grammars_refused: int = 0
    grammar_seconds: float = 0.0
    mask_seconds: float = 0.0
    last_step_tokens: int = 0
    last_step_rows: int = 0
    last_step_seconds: float = 0.0
    waiting_tokens: int = 0
    tenants: int = 0
    expired: int = 0
    queue_expired: int = 0
    predicted_seconds: float = 0.0
    measured_seconds: float = 0.0
    last_predicted_seconds: float = 0.0
    tiers: tuple[TierStats, ...] = ()
    loading: bool = False


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Answer to `StatsRequest`."""

    nonce: int
    stats: EngineStats


class EngineMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine holds, in bytes.

    Attributes:
        weights: of the weights; 0 while they are released.
        loading: part of `weights` that is still to be packed.
        kv: what the KV cache may take, with blocks in use beyond its size.
        kv_blocks: blocks per cache group that may be used.
        kv_used: blocks held by sequences.
        kv_cached: blocks that a later prompt can find; those in use are included.
        kv_least, kv_most: bounds of `ResizeCache`: one request of full length, and what the engine
            has reserved.
        states: recurrent states, which are not resized.
        asleep: see `Sleep`.
        kv_map: if it was asked for: a letter for each KV block, or for evenly many of them, see
            `memory.block_map`.
    """

    weights: int
    loading: int = 0
    kv: int
    kv_blocks: int = 0
    kv_used: int = 0
    kv_cached: int = 0
    kv_least: int = 0
    kv_most: int = 0
    states: int = 0
    asleep: bool = False
    kv_map: str = ""


class Controlled(msgspec.Struct, frozen=True, tag="controlled"):
    """Answer to a `Control` message: the memory afterwards, or why it was not done."""

    nonce: int
    memory: EngineMemory | None = None
    error: RequestError | None = None


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """A permanent failure of the engine, which exits after sending this.

    Attributes:
        message: why.
        error: set if a new engine would fail as well (a corrupt model file): none is started.
    """

    message: str
    error: RequestError | None = None


ToEngine = (
    Hello | Submit | Cancel | StatsRequest | Control | CheckAdapter | DropAdapter | StartProfile
    | EndProfile | CacheRequest
)  # fmt: skip
ToClient = (
    Welcome | Refused | Outputs | Stats | Controlled | CheckedAdapter | Profiled | CacheTold | Fatal
)

encoder = msgspec.msgpack.Encoder()
to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
to_client_decoder = msgspec.msgpack.Decoder(ToClient)


def frame(message: ToEngine | ToClient) -> bytes:
    """Encode one message with its length prefix."""
    body = encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def frames(message: ToClient) -> Iterator[bytes]:
    """An engine's message as frames of at most `FRAME_BYTES`, or one output's tokens if those are
    more. In what order they are sent matters."""
    whole = frame(message)
    if len(whole) <= FRAME_BYTES or not isinstance(message, Outputs):
        yield whole
        return
    pieces = -(-len(whole) // FRAME_BYTES)
    del whole
    outputs = message.outputs
    if len(outputs) == 1 and (cut := _cut(outputs[0], pieces)):
        outputs, pieces = cut, len(cut)
    if len(outputs) == 1:
        yield frame(message)
        return
    size = -(-len(outputs) // pieces)
    for start in range(0, len(outputs), size):
        last = start + size >= len(outputs)
        yield from frames(Outputs(outputs[start : start + size], message.stats if last else None))


def _cut(output: ChoiceOutput, pieces: int) -> tuple[ChoiceOutput, ...]:
    """An output whose prompt's logprobs are many as several, the last of which has the rest."""
    logprobs = output.prompt_logprobs
    if not logprobs or len(logprobs) < 2:
        return ()
    size = max(1, len(logprobs) // max(2, pieces))
    ahead = range(0, len(logprobs) - size, size)
    parts = [
        ChoiceOutput(output.request_id, output.choice, prompt_logprobs=logprobs[i : i + size])
        for i in ahead
    ]
    rest = logprobs[ahead[-1] + size :]
    return (*parts, msgspec.structs.replace(output, prompt_logprobs=rest))


class FrameReader:
    """Cuts a byte stream back into message bodies.

    Raises ValueError from `feed` when a length exceeds `MAX_MESSAGE_BYTES`: the stream is not ours
    or is corrupt, and the connection must be closed.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes and return the bodies now complete, in order."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        position = 0
        while len(buffer) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, position)
            if length > MAX_MESSAGE_BYTES:
                raise ValueError(f"message of {length} bytes exceeds {MAX_MESSAGE_BYTES}")
            end = position + _LENGTH.size + length
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[position + _LENGTH.size : end]))
            position = end
        del buffer[:position]
        return bodies
