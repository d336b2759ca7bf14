"""MemoryNeeds: what a model needs, computed from its headers before anything is loaded."""

from __future__ import annotations

import msgspec

from tidemill.base.vector_data import VectorData

# Sequences whose logits are expected at once.
TYPICAL_SEQUENCES = 16


class CacheNeeds(msgspec.Struct, frozen=True):
    """Bytes of KV cache of a group of layers.

    Attributes:
        kind: ``full`` attention, or sliding ``window``.
        layers: how many.
        window: tokens that a token of a ``window`` group sees. Blocks beyond it are not reused yet,
            so they take memory as well.
        token_bytes: of one token over all these layers.
    """

    kind: str
    layers: int
    window: int | None
    token_bytes: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is, as its headers say; by the names of `EngineInfo`."""

    family: str
    parameters: int
    hidden_size: int
    vocab_size: int
    generates: bool
    dtype: str
    quantization: str
    vectors: VectorData


class MemoryNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine of a model takes, in bytes; see `worker.needs`.

    Attributes:
        backend, dtype, kv_dtype: as resolved.
        files: size of the weight files.
        weights: part of the model -> bytes in memory, in the form that computes.
        file_rows: part of the weights of which rows are read in their file when they are needed.
            They fill the page cache as they are used, and the system may drop them.
        caches: the cache groups.
        block_tokens: tokens per KV block.
        context: tokens of one request at most.
        state: one recurrent state; 0 for models without. A running sequence has two.
        tables: rotations of positions up to the context.
        step: working memory of the largest step, without its logits.
        sequence: logits of one sequence that a step samples.
        process: the interpreter, its libraries and the vocabulary.
        ram_tier: KV blocks that left the cache (`--kv-ram`).
        facts: what the model is.
    """

    backend: str
    dtype: str
    kv_dtype: str
    files: int
    weights: dict[str, int]
    file_rows: int = 0
    caches: tuple[CacheNeeds, ...]
    block_tokens: int
    context: int
    state: int = 0
    tables: int = 0
    step: int
    sequence: int
    process: int
    ram_tier: int = 0
    facts: ModelFacts | None = None

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return sum(self.weights.values())

    @property
    def token_bytes(self) -> int:
        """KV cache of one token over all layers."""
        return sum(cache.token_bytes for cache in self.caches)

    @property
    def least_cache(self) -> int:
        """The smallest KV cache: one request of full length, in whole blocks, with its states."""
        return self.cache_of(self.context)

    def cache_of(self, tokens: int) -> int:
        """The KV cache of one request of so many tokens, in whole blocks, with its states. For a
        server that must choose a shorter context (`max_model_len`) than the model's."""
        blocks = -(-tokens // self.block_tokens)
        return blocks * self.block_tokens * self.token_bytes + 2 * self.state

    def working(self, sequences: int) -> int:
        """Beside weights and cache, with so many sequences at once."""
        return self.tables + self.step + sequences * self.sequence

    def total(self, cache: int | None = None, sequences: int = TYPICAL_SEQUENCES) -> int:
        """Everything that a process takes.

        Args:
            cache: bytes of KV cache and recurrent states; None: the smallest.
            sequences: that run at once.
        """
        cache = self.least_cache if cache is None else cache
        working = self.working(sequences) + self.process + self.ram_tier
        return self.weight_bytes + cache + working
