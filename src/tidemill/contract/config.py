"""The engine's configuration: few knobs, resolved once, frozen.

What can be measured or computed is not a setting: None means "chosen at start, and said in the
log". The digest identifies a configuration, so that a client never resumes on a different engine.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from types import NoneType
from typing import get_args

import msgspec

from tidemill.base.errors import config_error
from tidemill.base.sizes import parse_size
from tidemill.contract.speculation import LOOKUP, read_setting

BACKENDS = ("auto", "native", "torch", "transformers")
DTYPES = ("auto", "float32", "bfloat16")
QUANTIZATIONS = ("none", "q8_0", "q4_0", "int8")
KV_DTYPES = ("auto", "float32", "bfloat16", "int8", "int4")
BLOCK_SIZES = (16, 32, 64, 128)
ROLES = ("both", "prefill", "decode")
ROLE_NEEDS = {"prefill": "kv_listen", "decode": "kv_peers"}
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:,\[\]]+):\d{1,5}")

# Settings by which KV blocks leave the cache.
WHOLE_BLOCKS = ("kv_ram", "kv_disk", "kv_listen", "kv_peers")

# Larger values are typing errors: their data structures alone would exhaust memory.
HIGHEST = {
    "max_model_len": 2**31 - 1,
    "kv_memory": 2**60,
    "kv_ram": 2**60,
    "adapter_memory": 2**60,
    "kv_reserve": 2**46,  # less than an address space
    "threads": 1024,
    "tensor_parallel": 64,
    "pipeline_parallel": 64,
    "max_num_seqs": 2**16,
    "max_step_tokens": 2**16,
    "max_itl_ms": 3_600_000,
    "lookup_answers": 2**15,
}


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one engine.

    Attributes:
        model: path of a Hugging Face folder or a GGUF file.
        served_name: the name clients use.
        backend: ``native``, ``torch`` or ``transformers``; ``auto`` is native, or transformers for
            a model that no family describes.
        device: ``cpu``, or for torch and transformers any torch device.
        dtype: computing type; ``auto`` is bfloat16 unless the weights are float32 or transformers
            computes.
        quantize: requantize float weights at load.
        kv_dtype: type of the KV cache; ``auto`` is the computing type.
        block_size: tokens per KV block.
        max_model_len: positions a request may use; None: the model's, bounded by the cache.
        max_num_seqs: sequences that may run at once.
        max_step_tokens: token budget of a step.
        kv_memory: bytes for the KV cache; None: sized from free memory.
        kv_reserve: bytes that the KV cache can grow to while the engine runs; None: it only shrinks
            and grows back to its first size. Address space is taken for it, no memory.
        kv_ram: bytes of memory for KV blocks that left the cache; None: none.
        kv_disk: folder for KV blocks that outlive the process, and after a colon how many bytes
            they may take (`base.sizes`); None: none. Engines may share it.
        kv_listen: HOST:PORT where other engines of the model ask for this one's KV blocks; None:
            they cannot.
        kv_peers: HOST:PORT of other engines whose blocks are fetched where that is quicker than to
            compute them, separated by commas; None: none.
        role: of an engine with `kv_listen` or `kv_peers`, whether others may have it compute
            prompts, and whether it has them computed by others (disaggregated prefill): ``prefill``
            is the first alone, ``decode`` the second, ``both`` either, by what there is to do.
        adapter_memory: bytes that adapters (LoRA) may take; those used least recently leave first.
            None: an eighth of the memory that is free when the first one is loaded.
        threads: compute threads; None: the CPUs this process may use.
        tensor_parallel: processes of this machine that compute the model together, each with a part
            of the weights, of the KV cache and of the threads (docs/parallel.md); 1: this one. It
            never changes an answer.
        pipeline_parallel: processes that compute the model's layers one part after the other
            (docs/parallel.md); 1: this one. It never changes an answer.
        pipeline_peers: HOST:PORT of `tidemill rank` on other machines, separated by commas, which
            compute all parts but the first; None: processes of this machine do.
        prefix_caching: reuse KV blocks of earlier prompts.
        max_itl_ms: milliseconds between two tokens of a stream that a step may take; None: chosen
            (see `sched.policy`).
        speculate: what drafts tokens ahead of a request's output where the request does not say it,
            and what is loaded for that (`contract.speculation.available`). It never changes an
            answer.
        lookup_answers: tokens of recent answers of the same tenant and cache salt in which lookup
            finds drafts as well; None: none.
        isa: force an instruction set (``amx``, ``avx512``, ``avx512bf16``, ``avx512bw``,
            ``avxvnni``, ``avx2``, ``i8mm``, ``neon``, ``portable``); None: the best there is.
        packed_cache: folder where weights are kept as they were packed, for the next start;
            ``auto`` is `tidemill/packed` under the user's cache directory, ``off`` is nowhere.
        recurrent_sequences, recurrent_snapshots, recurrent_drafts: of a recurrent model, sequences
            that have states, snapshots of states and drafts of a step, for which memory is taken
            beside `kv_memory`; None: part of the cache's memory, chosen. Set where an engine takes
            another's place.
    """

    model: str
    served_name: str
    backend: str = "auto"
    device: str = "cpu"
    dtype: str = "auto"
    quantize: str = "none"
    kv_dtype: str = "auto"
    block_size: int = 32
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_step_tokens: int = 512
    kv_memory: int | None = None
    kv_reserve: int | None = None
    kv_ram: int | None = None
    kv_disk: str | None = None
    kv_listen: str | None = None
    kv_peers: str | None = None
    role: str = "both"
    adapter_memory: int | None = None
    threads: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    pipeline_peers: str | None = None
    prefix_caching: bool = True
    isa: str | None = None
    max_itl_ms: float | None = None
    speculate: str = "off"
    lookup_answers: int | None = None
    packed_cache: str = "auto"
    recurrent_sequences: int | None = None
    recurrent_snapshots: int | None = None
    recurrent_drafts: int | None = None

    def validate(self) -> EngineConfig:
        """Return self if every setting is known and in range.

        Raises:
            TidemillError: kind CONFIG, `param` naming the setting.
        """
        self._check_types()
        _one_of("backend", self.backend, BACKENDS)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("quantize", self.quantize, QUANTIZATIONS)
        _one_of("kv_dtype", self.kv_dtype, KV_DTYPES)
        _one_of("block_size", self.block_size, BLOCK_SIZES)
        try:
            read_setting(self.speculate)
        except ValueError as error:
            raise config_error("speculate", f"speculate {error}") from None
        if not self.packed_cache:
            raise config_error("packed_cache", "packed_cache must be auto, off or a folder")
        _one_of("role", self.role, ROLES)
        needed = ROLE_NEEDS.get(self.role)
        if needed is not None and getattr(self, needed) is None:
            raise config_error("role", f"role {self.role} needs {needed}: see docs/kv-transfer.md")
        if self.kv_disk is not None:
            folder_and_size(self.kv_disk)
        for name in ("kv_listen", "kv_peers", "pipeline_peers"):
            for address in (getattr(self, name) or "").split(","):
                if getattr(self, name) is not None and not HOST_AND_PORT.fullmatch(address):
                    raise config_error(name, f"{name} must be HOST:PORT, got {address!r}")
        for name in WHOLE_BLOCKS:
            if getattr(self, name) and not self.prefix_caching:
                raise config_error(name, f"{name} keeps what prefix caching finds, which is off")
        self._check_parallel()
        for name, highest in HIGHEST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= highest:
                raise config_error(name, f"{name} must be between 1 and {highest}, got {value}")
        return self

    @property
    def stages(self) -> int:
        """Parts of the layers that are computed one after the other."""
        peers = self.pipeline_peers
        return self.pipeline_parallel if peers is None else 2 + peers.count(",")

    @property
    def local_ranks(self) -> int:
        """Processes of this machine that compute the model."""
        return max(self.tensor_parallel, 1 if self.pipeline_peers else self.pipeline_parallel)

    def _check_parallel(self) -> None:
        """What needs the model in one process."""
        if self.pipeline_parallel not in (1, self.stages):
            raise config_error(
                "pipeline_parallel",
                f"pipeline_parallel is {self.pipeline_parallel}, and pipeline_peers make "
                f"{self.stages} stages with this machine's; leave pipeline_parallel out",
            )
        if self.stages > 1 and self.tensor_parallel > 1:
            raise config_error(
                "pipeline_parallel", "pipeline_parallel and tensor_parallel do not go together"
            )
        setting = "pipeline_parallel" if self.stages > 1 else "tensor_parallel"
        if self.stages <= 1 and self.tensor_parallel <= 1:
            return
        for name in filter(partial(getattr, self), WHOLE_BLOCKS):
            raise config_error(
                name, f"{name} needs whole KV blocks, which {setting} divides; leave one out"
            )
        if not {*read_setting(self.speculate).drafters} <= {LOOKUP}:
            raise config_error("speculate", f"with {setting}, speculate must be off or lookup")
        if self.backend in ("torch", "transformers") or self.device != "cpu":
            name = "device" if self.device != "cpu" else "backend"
            raise config_error(name, f"{setting} needs the native backend, on the cpu")

    def _check_types(self) -> None:
        # Structs check types when they are decoded, not when Python code makes them.
        for field in msgspec.structs.fields(self):
            value, kinds = getattr(self, field.name), get_args(field.type) or (field.type,)
            if type(value) not in kinds:
                names = " or ".join("None" if k is NoneType else k.__name__ for k in kinds)
                raise config_error(field.name, f"{field.name} must be {names}, got {value!r}")

    def digest(self) -> str:
        """Hexadecimal identity of the configuration (SHA-256 of its canonical encoding)."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def folder_and_size(text: str) -> tuple[str, int | None]:
    """A `kv_disk` setting: the folder, and bytes or None.

    Raises:
        TidemillError: kind CONFIG.
    """
    folder, colon, size = text.rpartition(":")
    if not colon:
        folder, size = text, ""
    if not folder or (colon and not size):
        raise config_error("kv_disk", f"kv_disk must be a folder or FOLDER:SIZE, got {text!r}")
    if not size:
        return folder, None
    try:
        return folder, parse_size(size)
    except ValueError:
        if "/" in size:  # a colon in the path
            return text, None
        raise config_error(
            "kv_disk", f"kv_disk: {size!r} is no size, such as 20GiB, in {text!r}"
        ) from None


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(str(a) for a in allowed)
        raise config_error(name, f"{name} must be one of {choices}; got {value!r}")
