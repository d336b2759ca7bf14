"""TorchBackend: any DecoderSpec in plain torch operations, one readable module.

On the CPU in float32 it is the reference for the tests. It runs on any torch device. Steps run in
order on one worker thread, so that masks may arrive while the layers run. Unlike the native backend
it is not batch-invariant: torch selects matrix product kernels by shape, so a row's bits may depend
on its batch.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tidemill.backends.base import (
    LOGITS_ALL,
    LOGITS_NONE,
    BackendMemory,
    BackendOptions,
    BackendProfile,
    ExportedBlocks,
    Int32,
    MachineRates,
    StepInputs,
    UInt8,
)
from tidemill.backends.torch import latents, layers, recurrent
from tidemill.backends.torch.adapters import Weights, adapted_weights, base_weights, by_slot
from tidemill.backends.torch.cache import PagedCache
from tidemill.backends.torch.hidden import LayerHidden, LayerHiddenPart, requested
from tidemill.backends.torch.place import DTYPES, open_device, to_torch
from tidemill.backends.torch.steps import Computed, Handle, StepThread, sampled_positions
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError, unsupported
from tidemill.models import tensors as names
from tidemill.models.adapters import Changes
from tidemill.models.quantization import QUANTIZED_TYPES, convert, stored_type
from tidemill.models.spec import (
    Attention,
    DecoderSpec,
    Layer,
    LayerInputs,
    Mlp,
    Moe,
    Norm,
    QkNorm,
    Recurrent,
    Rope,
    inverse_frequencies,
)
from tidemill.models.tensors import RawTensor, TensorMap, layer_name


class TorchBackend:
    """See backends.base.Backend."""

    slices_layers = False

    def __init__(self, spec: DecoderSpec, tensors: TensorMap, options: BackendOptions) -> None:
        self.spec = spec
        self.options = options
        self._dtype = DTYPES[options.dtype]
        self._device = open_device(options)
        loaded = {name: self._load(name, tensor) for name, tensor in tensors.items()}
        self._base = base_weights(spec, loaded)
        self._adapters: dict[int, Weights] = {}
        self._use = self._base  # of the rows that are being computed
        self._inverse = {
            index: torch.tensor(
                inverse_frequencies(mixer.rope, options.max_positions),
                dtype=torch.float32,
                device=self._device,
            )
            for index, mixer in spec.attentions().items()
            if mixer.rope is not None
        }
        self._cache: PagedCache | None = None
        self._states = recurrent.States(spec, 0, str(self._device))
        self._steps = StepThread(self._compute, lambda: spec.vocab_size)
        self.verifies_drafts = spec.causal
        self._progress = 0

    def _load(self, name: str, tensor: RawTensor) -> torch.Tensor:
        kind = stored_type(name, tensor, self.options.quantize)
        stored = convert(tensor, kind) if kind in QUANTIZED_TYPES else tensor
        return to_torch(stored, self._dtype, self._device)

    # --- the interface -------------------------------------------------------------------------

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See backends.base.Backend. The weights are loaded in the constructor."""
        on_loaded(None)
        return True

    def stop_loading(self) -> None:
        """See backends.base.Backend. No loading is in progress."""

    def memory(self) -> BackendMemory:
        """See backends.base.Backend."""
        weights = self._base.nbytes
        kv = self._cache.nbytes + self._states.nbytes if self._cache else 0
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
        options = self.options
        kv_dtype = kv_dtype or options.kv_dtype
        self._cache = PagedCache(
            self.spec, num_blocks, options.block_size, kv_dtype, str(self._device)
        )
        self._states = recurrent.States(self.spec, states, str(self._device))
        self._allocated = num_blocks, kv_dtype, states

    def limit_cache(self, blocks: int) -> None:
        """See backends.base.Backend. No memory is taken ahead."""

    def empty_cache(self) -> None:
        """See backends.base.Backend."""
        self.allocate_cache(*self._allocated)

    def release_weights(self) -> None:
        """See backends.base.Backend: UNSUPPORTED."""
        raise unsupported("backend", "the torch backend cannot sleep; unload the model instead")

    def restore_weights(self) -> None:
        """See backends.base.Backend. They were never released."""

    def submit(self, inputs: StepInputs) -> Handle:
        """See backends.base.Backend."""
        self._ready_cache()
        return self._steps.submit(inputs)

    def load_adapter(self, slot: int, changes: Changes) -> int:
        """See backends.base.Backend."""
        self._adapters[slot], nbytes = adapted_weights(self._base, changes)
        return nbytes

    def unload_adapter(self, slot: int) -> None:
        """See backends.base.Backend."""
        self._adapters.pop(slot, None)

    def copy_blocks(self, group: int, pairs: Int32) -> None:
        """See backends.base.Backend."""
        self._ready_cache().copy(group, pairs)

    def give_back_blocks(self, group: int, blocks: Int32) -> None:
        """See backends.base.Backend: the memory of its tensors stays."""

    def export_blocks(self, group: int, blocks: Int32) -> ExportedBlocks:
        """See backends.base.Backend."""
        return self._ready_cache().export(group, blocks)

    def import_blocks(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """See backends.base.Backend."""
        self._ready_cache().restore(group, blocks, data)

    def start_profile(self, events: int) -> None:
        """See backends.base.Backend. It counts nothing."""

    def end_profile(self) -> BackendProfile | None:
        """See backends.base.Backend."""
        return None

    def machine_rates(self) -> MachineRates | None:
        """See backends.base.Backend."""
        return None

    def block_bytes(self) -> tuple[int, ...]:
        """See backends.base.Backend."""
        return self._ready_cache().block_bytes()

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None:
        """See backends.base.Backend."""
        self._ready_cache().read_blocks(group, blocks, out)

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None:
        """See backends.base.Backend."""
        self._ready_cache().write_blocks(group, blocks, data)

    def state_bytes(self) -> int:
        """See backends.base.Backend."""
        return self._states.state_bytes

    def read_state(self, state: int, at: int, out: UInt8) -> None:
        """See backends.base.Backend."""
        self._states.read(state, at, out)

    def write_state(self, state: int, at: int, data: UInt8, tokens: int) -> None:
        """See backends.base.Backend."""
        self._states.write(state, at, data)

    def checksum(self, data: UInt8) -> int:
        """See backends.base.Backend: CRC-32."""
        return zlib.crc32(data.data)

    def progress(self) -> int:
        """Layers computed so far."""
        return self._progress

    def close(self) -> None:
        """See backends.base.Backend."""
        self._steps.close()
        self._use = self._base = Weights({}, {})
        self._adapters = {}
        self._cache = None

    # --- one step ------------------------------------------------------------------------------

    def _ready_cache(self) -> PagedCache:
        if self._cache is None:
            raise TidemillError(ErrorKind.INTERNAL, "the backend is closed or has no cache yet")
        return self._cache

    def _compute(self, tokens: Int32, inputs: StepInputs) -> Computed:
        for group, pairs in enumerate(inputs.copies):
            self._ready_cache().copy(group, pairs)
        if not inputs.context_len.size:  # a step may only copy blocks
            return Computed()
        if inputs.adapters is not None:
            return self._compute_adapted(replace(inputs, token_ids=tokens))
        kept = LayerHidden(inputs)
        hidden = self._forward(torch.from_numpy(tokens).long().to(self._device), inputs, kept)
        return Computed(self._logits(hidden, inputs), requested(hidden, inputs), kept.stacked())

    def _compute_adapted(self, inputs: StepInputs) -> Computed:
        """As `_compute`, the rows of one adapter after those of another."""
        hidden = torch.empty(
            len(inputs.token_ids), self.spec.hidden_size, dtype=self._dtype, device=self._device
        )
        kept, logits = LayerHidden(inputs), [np.empty((0, 0), np.float32)] * len(inputs.logits)
        try:
            for slot, part, rows, tokens in by_slot(inputs):
                self._use = self._base if slot < 0 else self._adapters[slot]
                ids = torch.from_numpy(part.token_ids).long().to(self._device)
                found = self._forward(ids, part, kept.part(tokens))
                hidden[torch.from_numpy(tokens).long()] = found
                for row, values in zip(rows.tolist(), self._logits(found, part), strict=True):
                    logits[row] = values
        finally:
            self._use = self._base
        return Computed(logits, requested(hidden, inputs), kept.stacked())

    def _forward(
        self, tokens: torch.Tensor, inputs: StepInputs, kept: LayerHidden | LayerHiddenPart
    ) -> torch.Tensor:
        """Final hidden states [tokens, hidden] of all rows; writes the KV cache."""
        spec, weights = self.spec, self._use.tensors
        positions, slots, contexts = self._addresses(inputs)
        x = self._use.embedded(tokens) * spec.embed_scale
        if (given := inputs.overrides) is not None:
            x[torch.from_numpy(given.tokens).long()] = torch.from_numpy(given.rows).to(x)
        if spec.learned_positions:
            x = x + weights[names.POSITIONS][positions]
        if spec.token_types:
            x = x + weights[names.TYPES][self._types(inputs, positions)]
        if spec.embed_norm:
            x = self._norm("embed_norm", spec.norm, x)
        own = None if spec.layer_inputs is None else self._own_inputs(spec.layer_inputs, tokens, x)
        for i, layer in enumerate(spec.layers):
            kept.take(i, x)
            if inputs.skip is not None and i in inputs.skip:
                continue
            h, attended = x, None
            if layer.mixer is not None:
                h = self._block_norm(i, "attn_norm", layer.has_norm("attn"), x)
                attended = self._mix(i, layer, h, positions, slots, contexts, inputs)
                attended = attended * spec.residual_scale
                if not layer.parallel:
                    x = self._block_norm(i, "attn_post_norm", layer.sum_norm, x + attended)
            if layer.mlp is not None:
                if not layer.shared_norm:
                    h = self._block_norm(i, "mlp_norm", layer.pre_norm, x)
                fed = self._mlp(i, layer.mlp, h, x)
                behind = layer.post_norm and not layer.sum_norm
                fed = self._block_norm(i, "mlp_post_norm", behind, fed)
                fed = fed * (spec.residual_scale * layer.mlp_scale)
                x = self._block_norm(i, "mlp_post_norm", layer.sum_norm, x + fed)
            if layer.parallel and attended is not None:
                x = x + attended
            if own is not None and spec.layer_inputs is not None:
                gate = self._linear(x, layer_name(i, "inputs.gate"))
                taken = layers.activate(spec.layer_inputs.activation, gate, own[:, i])
                taken = self._linear(taken, layer_name(i, "inputs.out"))
                x = x + self._block_norm(i, "inputs_post_norm", True, taken)
            if layer.scaled:
                x = x * weights[layer_name(i, "scale")]
            self._progress += 1
        kept.take(len(spec.layers), x)
        if inputs.skip is not None and len(spec.layers) in inputs.skip:
            return x
        return self._norm("final_norm", spec.norm, x) if spec.last_norm else x

    def _own_inputs(
        self, inputs: LayerInputs, tokens: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        """Per-layer inputs, [tokens, layers, width]; x is the embedded tokens."""
        shape = (len(tokens), -1, inputs.width)
        projected = self._linear(x, "layer_inputs.projection") * inputs.projection_scale
        normed = self._norm("layer_inputs.norm", self.spec.norm, projected.view(shape))
        looked_up = self._use.tensors[names.LAYER_INPUTS][tokens].view(shape) * inputs.embed_scale
        return (normed + looked_up) * inputs.sum_scale

    def _mix(
        self,
        index: int,
        layer: Layer,
        h: torch.Tensor,
        positions: torch.Tensor,
        slots: list[torch.Tensor],
        contexts: list[list[torch.Tensor]],
        inputs: StepInputs,
    ) -> torch.Tensor:
        """Output of the layer's mixer or two parallel mixers, after post norm and scale."""
        behind, scales = layer.post_norm and not layer.sum_norm, [layer.mixer_scale]
        made = []
        if layer.attention is not None:
            made.append(
                self._attention(index, layer.attention, h, positions, slots, contexts, inputs)
            )
            scales.append(layer.parallel_scale)
        if layer.recurrent is not None:
            made.append(self._recurrent(index, layer.recurrent, h, inputs))
        found = torch.zeros_like(h)
        for scale, part in zip(scales, made, strict=False):
            found = found + self._block_norm(index, "attn_post_norm", behind, part) * scale
        return found

    def _norm(self, name: str, kind: Norm, x: torch.Tensor) -> torch.Tensor:
        weight, bias = (
            self._use.tensors.get(f"{name}.weight"),
            self._use.tensors.get(f"{name}.bias"),
        )
        return layers.norm(x, kind.kind, weight, bias, self.spec.norm_eps)

    def _block_norm(self, index: int, name: str, present: bool, x: torch.Tensor) -> torch.Tensor:
        return self._norm(layer_name(index, name), self.spec.norm, x) if present else x

    def _addresses(
        self, inputs: StepInputs
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[list[torch.Tensor]]]:
        """Positions [tokens]; per cache group the slots written [tokens]; per group and row the
        slots of positions 0 up to the row's last one."""
        size = self.options.block_size
        starts = inputs.row_start.tolist()
        spans = [
            (int(context), int(context) + end - begin)
            for context, begin, end in zip(
                inputs.context_len.tolist(), starts, starts[1:], strict=False
            )
        ]
        ranges = [np.arange(a, b) for a, b in spans]
        positions = torch.from_numpy(np.concatenate(ranges)).to(self._device)
        written, contexts = [], []
        for table in inputs.block_tables:
            of_row = []
            for row, (_, end) in enumerate(spans):
                p = np.arange(end)
                flat = table[row, p // size].astype(np.int64) * size + p % size
                of_row.append(torch.from_numpy(flat).to(self._device))
            written.append(torch.cat([c[a:] for c, (a, _) in zip(of_row, spans, strict=True)]))
            contexts.append(of_row)
        return positions, written, contexts

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._use.linear(x, name)

    def _mlp(self, index: int, mlp: Mlp | Moe, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Output of the feed-forward block for h, the normed x."""
        name = layer_name(index, "mlp")
        if isinstance(mlp, Moe):
            return self._experts(name, mlp, h, x)
        return self._feed_forward(name, mlp, h)

    def _feed_forward(self, name: str, mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
        gate = self._linear(x, f"{name}.gate") if mlp.gated else None
        if gate is not None:
            gate = gate * mlp.gate_scale
        inner = layers.activate(mlp.activation, gate, self._linear(x, f"{name}.up"))
        return self._linear(inner, f"{name}.down")

    def _experts(self, name: str, moe: Moe, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        norm = self.spec.norm
        routed = self._norm(f"{name}.router_norm", norm, x) if moe.separate_norms else h
        logits = self._linear(routed, f"{name}.router").float() * moe.router_scale
        correction = self._use.tensors.get(f"{name}.correction")
        chosen, weights = layers.route(moe, logits, correction)
        if moe.expert_scales:
            weights = weights * self._use.tensors[f"{name}.expert_scales"].float()[chosen]
        read = self._norm(f"{name}.experts_norm", norm, x) if moe.separate_norms else h
        parts = x.new_zeros(*chosen.shape, x.shape[-1])
        for expert in torch.unique(chosen).tolist():
            at = (chosen == expert).nonzero(as_tuple=True)
            sent = read[at[0]]
            if moe.scale_inputs:
                sent = sent * weights[at][:, None].to(x.dtype)
            parts[at] = self._feed_forward(f"{name}.experts.{expert}", moe.expert, sent)
        if moe.scale_inputs:
            weights = torch.ones_like(weights)
        out = torch.zeros_like(x)
        for rank in range(moe.top_k):
            out = out + parts[:, rank] * weights[:, rank, None].to(x.dtype)
        if moe.shared is None:
            return out
        shared = self._feed_forward(f"{name}.shared", moe.shared, h)
        if moe.shared_gate:
            shared = shared * self._linear(h, f"{name}.shared_gate").sigmoid()
        if moe.separate_norms:
            out = self._norm(f"{name}.experts_post_norm", norm, out)
            shared = self._norm(f"{name}.shared_post_norm", norm, shared)
        return out + shared

    def _attention(
        self,
        index: int,
        mixer: Attention,
        x: torch.Tensor,
        positions: torch.Tensor,
        slots: list[torch.Tensor],
        contexts: list[list[torch.Tensor]],
        inputs: StepInputs,
    ) -> torch.Tensor:
        cache = self._ready_cache()
        q, *own = self._project(index, mixer, x, positions)
        source = index if mixer.kv_layer is None else mixer.kv_layer
        group = cache.group_of[source]
        if own:
            cache.write(index, slots[group], *own)
        out = q.new_empty(*q.shape[:2], mixer.v_dim)
        sinks = self._use.tensors.get(layer_name(index, "attn.sinks"))
        seen = positions
        if not self.spec.causal:
            seen = self._ends(inputs, positions)
            if mixer.window is not None:
                seen = seen.minimum(positions + mixer.window - 1)
        for row, context in enumerate(contexts[group]):
            begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
            keys, values = cache.read(source, context)
            at = slice(begin, end)
            out[at] = layers.attend(mixer, q[at], keys, values, positions[at], seen[at], sinks)
        if mixer.latent is not None:
            out = latents.leave(out, self._use.heads[layer_name(index, "attn.v_up")])
        heads = out.flatten(1)
        if mixer.gated:
            heads = heads * self._linear(x, layer_name(index, "attn.gate")).sigmoid()
        return self._linear(heads, layer_name(index, "attn.o"))

    def _recurrent(
        self, index: int, mixer: Recurrent, x: torch.Tensor, inputs: StepInputs
    ) -> torch.Tensor:
        name = layer_name(index, "rec.")
        own = {k.removeprefix(name): w for k, w in self._use.tensors.items() if k.startswith(name)}
        starts = inputs.row_start.tolist()
        rows = [
            recurrent.Row(begin, end, *states)
            for begin, end, states in zip(starts, starts[1:], inputs.states.tolist(), strict=False)
        ]
        for row, count, state in inputs.snapshots.tolist():
            rows[row].snapshots.setdefault(count, []).append(state)
        return recurrent.mix(
            index,
            mixer,
            x,
            lambda values, part: self._linear(values, name + part),
            own,
            self._states,
            rows,
            self.spec.norm_eps,
        )

    def _angles(
        self, index: int, rope: Rope, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.float()[:, None] * self._inverse[index][None, :]
        scale = rope.attention_factor
        return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)

    def _types(self, inputs: StepInputs, positions: torch.Tensor) -> torch.Tensor:
        """Type of each token: 1 from the start of its row's second text."""
        if inputs.second is None:
            return torch.zeros_like(positions)
        second = np.repeat(inputs.second, np.diff(inputs.row_start))
        begins = torch.from_numpy(np.where(second > 0, second, np.iinfo(np.int32).max))
        return (positions >= begins.to(positions)).long()

    def _ends(self, inputs: StepInputs, positions: torch.Tensor) -> torch.Tensor:
        """Last position of each token's row, which bounds what the token sees in non-causal
        attention."""
        if inputs.context_len.any():
            raise TidemillError(ErrorKind.INTERNAL, "an encoder's input is computed whole")
        counts = np.diff(inputs.row_start)
        return torch.from_numpy(np.repeat(counts - 1, counts)).to(positions)

    def _project(
        self, index: int, mixer: Attention, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Q, K and V as [tokens, heads, head_dim], normed and rotated; only Q for a layer that
        reads another layer's K and V."""
        if mixer.latent is not None:
            name = layer_name(index, "attn")
            angles = self._angles(index, mixer.rope, positions, x.dtype) if mixer.rope else None
            return latents.project(
                mixer,
                mixer.latent,
                x,
                lambda values, part: self._linear(values, f"{name}.{part}"),
                lambda part: self._use.tensors[f"{name}.{part}"],
                self._use.heads[f"{name}.k_up"],
                angles,
            )
        qk = mixer.qk_norm
        names_of = {"q": "q", "k": "k", "v": "k" if mixer.v_from_k else "v"}
        parts = {}
        for name in "qkv" if mixer.kv_layer is None else "q":
            part = self._linear(x, layer_name(index, f"attn.{names_of[name]}"))
            heads = mixer.heads if name == "q" else mixer.kv_heads
            if qk is not None and not qk.after_rope and name != "v":
                part = self._qk_norm(index, name, qk, heads, part)
            part = part.view(-1, heads, mixer.head_dim)
            if name == "v" and mixer.v_norm:
                part = layers.norm(part, "rms", None, None, self.spec.norm_eps)
            if mixer.clip is not None:
                part = part.clamp(-mixer.clip, mixer.clip)
            parts[name] = part
        for name in [n for n in parts if n != "v"]:
            part = parts[name]
            if mixer.rope is not None:
                part = layers.rotate(part, *self._angles(index, mixer.rope, positions, part.dtype))
            if qk is not None and qk.after_rope:
                part = self._qk_norm(index, name, qk, part.shape[1], part.flatten(1)).view_as(part)
            parts[name] = part
        if mixer.attention_temperature is not None:
            temperature = layers.attention_temperature(mixer.attention_temperature, positions)[
                :, None, None
            ]
            parts["q"] = parts["q"] * temperature.to(parts["q"].dtype)
        return tuple(parts.values())

    def _qk_norm(
        self, index: int, part: str, qk: QkNorm, heads: int, x: torch.Tensor
    ) -> torch.Tensor:
        """Norm of Q or K, [tokens, heads * dim]."""
        name = layer_name(index, f"attn.{part}_norm")
        weight, bias = (
            self._use.tensors.get(f"{name}.weight"),
            self._use.tensors.get(f"{name}.bias"),
        )
        if qk.scope != "full":
            x = x.view(len(x), heads, -1)
        if qk.scope == "heads":
            weight = None if weight is None else weight.view(heads, -1)
            bias = None if bias is None else bias.view(heads, -1)
        return layers.norm(x, qk.norm.kind, weight, bias, self.spec.norm_eps).flatten(1)

    # --- logits and tokens ---------------------------------------------------------------------

    def _logits(self, hidden: torch.Tensor, inputs: StepInputs) -> list[NDArray[np.float32]]:
        """Per row float32 [count, vocab] (an empty array for rows without logits)."""
        rows, counts = [], sampled_positions(inputs).tolist()
        for row, wanted in enumerate(inputs.logits.tolist()):
            begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
            if wanted == LOGITS_NONE:
                rows.append(np.empty((0, self.spec.vocab_size), np.float32))
                continue
            first = begin if wanted == LOGITS_ALL else end - max(1, counts[row])
            chosen = hidden[first:end]
            values = self._use.output(chosen).float()
            values = values * self.spec.logit_scale
            if self.spec.logit_softcap is not None:
                values = layers.softcap(values, self.spec.logit_softcap)
            rows.append(values.cpu().numpy())
        return rows
