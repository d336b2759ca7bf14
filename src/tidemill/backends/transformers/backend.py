"""TransformersBackend: runs models without a Tidemill family through transformers.

Each row is computed alone, with a cache object of transformers. A sequence's past is therefore a
state, like that of a recurrent model. Its blocks count tokens, hold no data and cannot be shared.
It is the slowest backend and supports the most models.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import torch

from tidemill.backends.base import (
    HIDDEN_ALL,
    HIDDEN_NONE,
    LOGITS_ALL,
    LOGITS_NONE,
    BackendMemory,
    BackendOptions,
    BackendProfile,
    ExportedBlocks,
    Float32,
    Int32,
    MachineRates,
    StepInputs,
    UInt8,
)
from tidemill.backends.torch.place import DTYPES, open_device
from tidemill.backends.torch.steps import Computed, Handle, StepThread
from tidemill.backends.transformers.building import build
from tidemill.backends.transformers.past import NOTHING, CallStyle, Past, Stepper, find_call_style
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError, config_error, unsupported
from tidemill.models.adapters import Changes
from tidemill.models.foreign import UNSTATED_POSITIONS, Foreign
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import TensorMap

_MEASURED = (8, 24)
_NO_OWNER = -1
STATES_OF_A_SEQUENCE = 2
"""States 2p and 2p + 1 are one sequence's; see worker.states."""


class TransformersBackend:
    """See backends.base.Backend.

    Attributes:
        notes: notes for the user on how the model runs.
    """

    slices_layers = False
    verifies_drafts = False

    def __init__(self, spec: DecoderSpec, tensors: TensorMap, options: BackendOptions) -> None:
        foreign = spec.foreign
        if foreign is None:
            raise TidemillError(ErrorKind.INTERNAL, "the model was not opened for transformers")
        _check(options)
        self.options = options
        dtype = DTYPES[options.dtype]
        self._device = open_device(options)
        model, notes = build(foreign, tensors, dtype, self._device)
        self._progress = 0
        for module in model.modules():
            module.register_forward_hook(self._advance)
        self._pasts: list[Past] = []
        # The sequence (a pair of states) that used each block last, and the blocks of each
        # sequence.
        self._owner: Int32 = np.zeros(0, np.int32)
        self._held: dict[int, Int32] = {}
        try:
            with torch.inference_mode():
                style = find_call_style(model, spec.vocab_size, dtype)
                self._stepper = Stepper(model, style)
                self.spec = self._measured(spec, foreign)
        except TidemillError:
            raise
        except Exception as error:  # raised by any model's code
            raise unsupported(
                "architectures", f"transformers cannot run {foreign.architecture}: {error!r}"
            ) from error
        self.notes = (*_described(foreign, style, spec.max_positions), *notes)
        self._steps = StepThread(self._compute, lambda: self.spec.vocab_size)

    def _advance(self, *_: object) -> None:
        self._progress += 1

    def _measured(self, spec: DecoderSpec, foreign: Foreign) -> DecoderSpec:
        """The spec with the sizes measured on the loaded model."""
        stepper, sizes = self._stepper, []
        for count in _MEASURED:
            tokens = np.zeros(count, np.int32)
            logits, past = stepper.logits(Past(NOTHING.tokens), tokens, every=False)
            sizes.append(past.nbytes)
        hidden, _ = stepper.hidden(Past(NOTHING.tokens), np.zeros(2, np.int32))
        each = max(0, sizes[1] - sizes[0]) // (_MEASURED[1] - _MEASURED[0])
        fixed = max(0, sizes[0] - each * _MEASURED[0])
        found = replace(
            foreign,
            token_bytes=each,
            fixed_bytes=fixed,
            in_pieces=stepper.style is CallStyle.PIECES,
        )
        return replace(
            spec, vocab_size=logits.shape[-1], hidden_size=hidden.shape[-1], foreign=found
        )

    # --- the interface -------------------------------------------------------------------------

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See backends.base.Backend. The weights are loaded in the constructor."""
        on_loaded(None)
        return True

    def stop_loading(self) -> None:
        """See backends.base.Backend. No loading is in progress."""

    def memory(self) -> BackendMemory:
        """See backends.base.Backend. The cache counts with its maximum size."""
        foreign = self.spec.foreign
        assert foreign is not None
        held = {t.data_ptr(): t for t in self._stepper.model.parameters()}
        weights = sum(t.numel() * t.element_size() for t in held.values())
        kv = len(self._owner) * self.options.block_size * foreign.token_bytes
        kv += len(self._pasts) // STATES_OF_A_SEQUENCE * foreign.fixed_bytes
        isa = torch.backends.cpu.get_cpu_capability() if self._device.type == "cpu" else ""
        return BackendMemory(weights, kv, isa, str(self._device))

    def allocate_cache(
        self,
        num_blocks: tuple[int, ...],
        kv_dtype: str | None = None,
        states: int = 2,
        *,
        unchecked: bool = False,
    ) -> None:
        """See backends.base.Backend."""
        self._pasts = [NOTHING] * states
        self._owner = np.full(num_blocks[0], _NO_OWNER, np.int32)
        self._held = {}

    def limit_cache(self, blocks: int) -> None:
        """See backends.base.Backend. No memory is taken ahead."""

    def empty_cache(self) -> None:
        """See backends.base.Backend. Nothing outlives its sequence."""

    def release_weights(self) -> None:
        """See backends.base.Backend: UNSUPPORTED."""
        raise unsupported(
            "backend", "the transformers backend cannot sleep; unload the model instead"
        )

    def restore_weights(self) -> None:
        """See backends.base.Backend. They were never released."""

    def submit(self, inputs: StepInputs) -> Handle:
        """See backends.base.Backend."""
        return self._steps.submit(inputs)

    def load_adapter(self, slot: int, changes: Changes) -> int:
        """See backends.base.Backend; UNSUPPORTED."""
        raise unsupported(
            "adapter",
            "models that transformers runs take no adapters: merge it (tidemill convert --merge)",
        )

    def unload_adapter(self, slot: int) -> None:
        """See backends.base.Backend. Nothing is loaded."""

    def copy_blocks(self, group: int, pairs: Int32) -> None:
        """See backends.base.Backend. Blocks hold no data."""

    def give_back_blocks(self, group: int, blocks: Int32) -> None:
        """See backends.base.Backend; blocks hold nothing."""

    def export_blocks(self, group: int, blocks: Int32) -> ExportedBlocks:
        """See backends.base.Backend; UNSUPPORTED."""
        raise unsupported("backend", "the transformers backend cannot export KV blocks")

    def import_blocks(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """See backends.base.Backend; UNSUPPORTED."""
        raise unsupported("backend", "the transformers backend cannot import KV blocks")

    def start_profile(self, events: int) -> None:
        """See backends.base.Backend. It counts nothing."""

    def end_profile(self) -> BackendProfile | None:
        """See backends.base.Backend."""
        return None

    def machine_rates(self) -> MachineRates | None:
        """See backends.base.Backend."""
        return None

    def block_bytes(self) -> tuple[int, ...]:
        """See backends.base.Backend; UNSUPPORTED."""
        raise unsupported("backend", "the transformers backend has no KV blocks that could leave")

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None:
        """See backends.base.Backend; UNSUPPORTED, as `block_bytes`."""
        self.block_bytes()

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None:
        """See backends.base.Backend; UNSUPPORTED, as `block_bytes`."""
        self.block_bytes()

    def state_bytes(self) -> int:
        """See `block_bytes`."""
        self.block_bytes()
        return 0

    def read_state(self, state: int, at: int, out: UInt8) -> None:
        """See `block_bytes`."""
        self.block_bytes()

    def write_state(self, state: int, at: int, data: UInt8, tokens: int) -> None:
        """See `block_bytes`."""
        self.block_bytes()

    def checksum(self, data: UInt8) -> int:
        """See backends.base.Backend: CRC-32."""
        return zlib.crc32(data.data)

    def progress(self) -> int:
        """Modules computed so far."""
        return self._progress

    def close(self) -> None:
        """See backends.base.Backend."""
        self._steps.close()
        self._pasts = []

    # --- one step ------------------------------------------------------------------------------

    def _compute(self, tokens: Int32, inputs: StepInputs) -> Computed:
        if inputs.overrides is not None or inputs.hidden_layers is not None:
            what = "the transformers backend takes token ids and returns final hidden states alone"
            raise unsupported("backend", what)
        rows: list[Float32] = []
        hidden: list[torch.Tensor] = []
        wanted = inputs.hidden
        for row, (read, write) in enumerate(inputs.states.tolist()):
            begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
            self._take_blocks(inputs, row, end - begin, write)
            past = self._past(read, int(inputs.context_len[row]))
            kind = HIDDEN_NONE if wanted is None else int(wanted[row])
            asked = int(inputs.logits[row])
            if kind != HIDDEN_NONE:
                states, past = self._stepper.hidden(past, tokens[begin:end])
                hidden.append(states if kind == HIDDEN_ALL else states[-1:])
                rows.append(np.empty((0, self.spec.vocab_size), np.float32))
            else:
                logits, past = self._stepper.logits(
                    past, tokens[begin:end], every=asked == LOGITS_ALL
                )
                # Inference tensors convert to numpy only after a copy to the CPU.
                found = logits[: 0 if asked == LOGITS_NONE else None]
                rows.append(np.ascontiguousarray(found.cpu().numpy()))
            self._pasts[write] = past
        return Computed(rows, torch.cat(hidden).cpu().numpy() if hidden else None)

    def _past(self, read: int, count: int) -> Past:
        """The past that a row continues. The state keeps its tokens and gives up its cache, because
        the row may be submitted again."""
        if read < 0:
            return Past(NOTHING.tokens)
        kept = self._pasts[read]
        if len(kept.tokens) != count:
            raise TidemillError(
                ErrorKind.INTERNAL, f"a state has {len(kept.tokens)} tokens, but {count} are read"
            )
        self._pasts[read] = Past(kept.tokens)
        return kept

    def _take_blocks(self, inputs: StepInputs, row: int, count: int, write: int) -> None:
        """Take ownership of the row's blocks. The past of a sequence that used them before is
        dropped, since no later step reads it."""
        used = -(-(int(inputs.context_len[row]) + count) // self.options.block_size)
        blocks = inputs.block_tables[0][row, :used]
        pair = write // STATES_OF_A_SEQUENCE
        for other in set(self._owner[blocks].tolist()) - {pair, _NO_OWNER}:
            first = other * STATES_OF_A_SEQUENCE
            self._pasts[first : first + STATES_OF_A_SEQUENCE] = [NOTHING] * STATES_OF_A_SEQUENCE
        held = self._held.get(pair)
        if held is not None:
            mine = held[self._owner[held] == pair]
            self._owner[mine] = _NO_OWNER
        self._owner[blocks] = pair
        self._held[pair] = blocks.copy()


def _check(options: BackendOptions) -> None:
    if options.quantize != "none":
        raise config_error(
            "quantize", "the transformers backend does not quantize: remove --quantize"
        )
    if options.kv_dtype != options.dtype:
        raise config_error(
            "kv_dtype",
            f"the transformers backend keeps its cache in the computing type, {options.dtype}: "
            "remove --kv-dtype",
        )


def _described(foreign: Foreign, style: CallStyle, positions: int) -> tuple[str, ...]:
    """Notes on how the model runs, for the log."""
    import transformers

    lines = [
        f"{foreign.architecture} is run by transformers {transformers.__version__}, sequence by "
        "sequence: slower than a model family built into Tidemill"
    ]
    if positions == UNSTATED_POSITIONS:
        lines.append(f"config.json states no context length: up to {positions} tokens are accepted")
    if style is CallStyle.TOKENS:
        lines.append("the model reads a prompt whole or token by token: prefill is not chunked")
    if style is CallStyle.RECOMPUTE:
        lines.append("the model has no cache: every token recomputes all tokens before it")
    return tuple(lines)
