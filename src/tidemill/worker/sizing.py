"""How much memory the weights will take, and how much the KV cache gets."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.models.spec import DecoderSpec
from tidemill.worker.states import STATES_PER_SEQUENCE

_GIB = 2**30
# Left alone: the step's activations and logits, the interpreter, and the rest of the machine.
RESERVE_BYTES = 512 * 2**20
# Of what is free beyond the reserve. The cache fills slowly and keeps prefixes for long, and other
# processes (a second model, a browser) come later than we do.
CACHE_SHARE = 0.6

# A cache beyond this holds nothing but old prefixes: every sequence at a typical length, or a few
# that use the whole context.
TYPICAL_TOKENS = 2048
FULL_CONTEXTS = 4

# Of a recurrent model: a running sequence has a pair of states, and beside it a prompt keeps two.
# At most this share of the cache's memory is theirs; sequences beyond that wait.
SNAPSHOTS_PER_SEQUENCE = 2
STATE_SHARE = 0.5
# A draft that is verified has a state of its own, until it is known whether it came true.
DRAFT_STATES = 32
DRAFT_STATE_SHARE = 1 / 16


def reserve(needs: MemoryNeeds, config: EngineConfig) -> int:
    """Bytes that the cache leaves alone: what the largest step takes, at least
    `RESERVE_BYTES`, and the tier in RAM."""
    working = max(RESERVE_BYTES, needs.working(config.max_num_seqs) + needs.process)
    return working + needs.ram_tier


def check_weights_fit(needs: MemoryNeeds, free: int, model: str) -> None:
    """Refuse a model that is larger than memory, before anything of it is loaded.

    Raises:
        TidemillError: kind RESOURCE, with the numbers.
    """
    extra = max(RESERVE_BYTES, needs.working(1) + needs.process)
    if needs.weight_bytes + extra > free:
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"the weights of {model} need {needs.weight_bytes / _GIB:.2f} GiB, a step "
            f"{extra / _GIB:.1f} GiB beside them, and {free / _GIB:.2f} GiB of memory are free: "
            "quantize with --quantize q8_0 or q4_0, use a smaller model, or free memory",
            param="model",
        )


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The KV cache as it will be.

    Attributes:
        num_blocks: per cache group.
        reserved_blocks: per cache group, what it may grow to.
        max_model_len: positions a request may use.
        max_num_seqs: sequences that may run at once.
        snapshots: of a recurrent model, states that can be kept for later prompts.
        draft_states: of a recurrent model, drafts that a step may verify.
        notes: what was chosen and why, a line each.
    """

    num_blocks: int
    reserved_blocks: int
    max_model_len: int
    max_num_seqs: int
    snapshots: int
    draft_states: int
    notes: tuple[str, ...]

    @property
    def states(self) -> int:
        """Recurrent states in all."""
        return STATES_PER_SEQUENCE * self.max_num_seqs + self.snapshots + self.draft_states


def check_cache_setting(kv_memory: int | None, total: int) -> None:
    """Raise RESOURCE for a KV cache that is larger than the memory there is.

    What is free is no bound: pages are taken as they fill, and an engine that takes another's
    place starts while that one's memory is on its way back.
    """
    if kv_memory is not None and kv_memory > total:
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"--kv-memory asks for {kv_memory / _GIB:.1f} GiB and this machine (or its container) "
            f"has {total / _GIB:.1f} GiB of memory; give less, or leave it out to take what is "
            "free",
            param="kv_memory",
        )


def plan_cache(
    config: EngineConfig,
    spec: DecoderSpec,
    kv_dtype: str,
    free: int,
    reserve: int = RESERVE_BYTES,
    draft_bytes: int = 0,
) -> CachePlan:
    """Size the KV cache.

    Args:
        config: its `kv_memory`, `max_model_len`, `max_num_seqs`, `block_size` and what it says of
            recurrent states count.
        spec: the model.
        kv_dtype: element type of the cache.
        free: bytes of memory free now, with the weights loaded.
        reserve: bytes of it that the cache leaves alone.
        draft_bytes: bytes of a drafter's own cache, per token.

    Raises:
        TidemillError: CONFIG when the context asked for exceeds the model's, RESOURCE when it (or
            a single block) does not fit.
    """
    wanted = wanted_len(config, spec)
    per_token = spec.kv_bytes_per_token(kv_dtype) + draft_bytes
    per_block = per_token * config.block_size
    if config.kv_memory is not None:
        budget, why = config.kv_memory, "as set by --kv-memory"
    else:
        budget = int(max(0, free - reserve) * CACHE_SHARE)
        why = f"{CACHE_SHARE:.0%} of the {free / _GIB:.1f} GiB free less a reserve"
    sequences, snapshots, drafts = _states(config, spec, budget)
    state_bytes = (STATES_PER_SEQUENCE * sequences + snapshots + drafts) * spec.state_bytes
    if config.recurrent_sequences is None:
        budget -= state_bytes
    blocks = budget // per_block
    useful, what = _useful_blocks(config, wanted)
    if blocks > useful:
        blocks, why = useful, f"room for {what}"
    if blocks < 1:
        more = "free memory" if config.kv_memory is None else "raise --kv-memory"
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"one KV block takes {per_block} bytes and {budget} are there for the cache; {more}, "
            "or try --kv-dtype int8 (or int4) or a smaller --block-size",
            param="kv_memory",
        )
    capacity = blocks * config.block_size
    notes = [
        f"KV cache: {blocks * per_block / _GIB:.2f} GiB, {blocks} blocks of {config.block_size} "
        f"tokens ({capacity} tokens): {why}"
    ]
    if state_bytes and spec.foreign is None:
        notes.append(
            f"recurrent states: {state_bytes / _GIB:.2f} GiB, for {sequences} sequences at once, "
            f"{snapshots} beginnings of prompts and {drafts} drafts of a step"
        )
    if capacity < wanted:
        if config.max_model_len is not None:
            raise TidemillError(
                ErrorKind.RESOURCE,
                f"the KV cache holds {capacity} tokens, less than the context of {wanted} asked "
                "for; lower --max-model-len, or give more --kv-memory",
                param="max_model_len",
            )
        notes.append(
            f"context: {capacity} tokens (the cache holds no more; the model has {wanted})"
        )
    else:
        whose = _whose(spec) if config.max_model_len is None else "as set by --max-model-len"
        notes.append(f"context: {wanted} tokens, {whose}")
    reserved = max(blocks, min(useful, (config.kv_reserve or 0) // per_block))
    return CachePlan(
        int(blocks),
        int(reserved),
        min(wanted, capacity),
        sequences,
        snapshots,
        drafts,
        tuple(notes),
    )


def _whose(spec: DecoderSpec) -> str:
    """Where the usual context comes from."""
    reach, trained = spec.reach, spec.max_positions
    if reach.usual > trained:
        return f"the model's {trained} stretched by its rope scaling"
    if reach.longest > trained:
        return (
            f"the model's; its rope scaling allows --max-model-len up to {reach.longest}, beyond "
            f"{trained} at other angles for all"
        )
    return "the model's"


def _states(config: EngineConfig, spec: DecoderSpec, budget: int) -> tuple[int, int, int]:
    """Sequences that run at once, snapshots, and drafts of a step.

    As many sequences as are set, of a recurrent model fewer where states would take more than their
    share of the memory. At least one, for which blocks may then be too few.
    """
    if not spec.state_bytes:
        return config.max_num_seqs, 0, 0
    if config.recurrent_sequences is not None:
        snapshots, drafts = config.recurrent_snapshots or 0, config.recurrent_drafts or 0
        return config.recurrent_sequences, snapshots, drafts
    keeps = config.prefix_caching and spec.foreign is None
    each = SNAPSHOTS_PER_SEQUENCE if keeps else 0
    fitting = int(budget * STATE_SHARE) // spec.state_bytes
    sequences = max(1, min(config.max_num_seqs, fitting // (STATES_PER_SEQUENCE + each)))
    spare = max(0, fitting - STATES_PER_SEQUENCE * sequences)
    drafts = min(DRAFT_STATES, int(budget * DRAFT_STATE_SHARE) // spec.state_bytes)
    return sequences, min(spare, each * sequences), drafts if spec.foreign is None else 0


def _useful_blocks(config: EngineConfig, wanted: int) -> tuple[int, str]:
    """Blocks that running sequences can fill, and in words what they are for.

    Memory that was set explicitly is bounded by what can be used at all.
    """
    typical = wanted if config.kv_memory is not None else min(wanted, TYPICAL_TOKENS)
    few = min(FULL_CONTEXTS, config.max_num_seqs)
    if few * wanted > config.max_num_seqs * typical:
        return few * -(-wanted // config.block_size), f"{few} sequences of {wanted} tokens"
    count = config.max_num_seqs * -(-typical // config.block_size)
    return count, f"{config.max_num_seqs} sequences of {typical} tokens"


def wanted_len(config: EngineConfig, spec: DecoderSpec) -> int:
    """Positions a request may use if memory allows it; CONFIG error beyond the model's."""
    wanted, reach = config.max_model_len, spec.reach
    if wanted is None:
        return reach.usual
    if wanted > reach.longest:
        scaled = " (its rope scaling counted)" if reach.longest > spec.max_positions else ""
        raise config_error(
            "max_model_len",
            f"--max-model-len {wanted} exceeds the {reach.longest} positions the model was made "
            f"for{scaled}",
        )
    return wanted
