"""TorchBackend: any DecoderSpec in plain torch operations, one readable module.

On the CPU in float32 it is the reference the tests compare with. It runs on any torch device.
Steps run in order on one worker thread, so that masks may arrive while the layers run. Unlike the
native backend it does not promise that a row's bits are independent of its batch: torch's matrix
products choose their kernels by shape.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tidemill.backends.base import (
    HIDDEN_ALL,
    HIDDEN_LAST,
    HIDDEN_NONE,
    LOGITS_ALL,
    LOGITS_NONE,
    BackendMemory,
    BackendOptions,
    ExportedBlocks,
    Int32,
    StepInputs,
)
from tidemill.backends.torch import latents, layers, recurrent
from tidemill.backends.torch.cache import PagedCache
from tidemill.backends.torch.steps import Computed, Handle, StepThread
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.models import tensors as names
from tidemill.models.quantization import QUANTIZED_TYPES, convert, stored_type, to_float32
from tidemill.models.spec import (
    Attention,
    DecoderSpec,
    Mlp,
    Moe,
    Norm,
    QkNorm,
    Recurrent,
    Rope,
    inverse_frequencies,
)
from tidemill.models.tensors import RawTensor, TensorMap, layer_name

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _to_torch(tensor: RawTensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    values = to_float32(tensor)
    # A mapped file is read-only memory, which torch does not take.
    owned = values if values.flags.writeable else values.copy()
    return torch.from_numpy(owned).to(device=device, dtype=dtype)


class TorchBackend:
    """See backends.base.Backend."""

    slices_layers = False

    def __init__(self, spec: DecoderSpec, tensors: TensorMap, options: BackendOptions) -> None:
        self.spec = spec
        self.options = options
        self._dtype = _DTYPES[options.dtype]
        try:
            self._device = torch.device(options.device)
            torch.zeros(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            raise config_error("device", f"device {options.device!r}: {error}") from error
        if self._device.type == "cpu":
            torch.set_num_threads(options.threads)
        self._weights = {name: self._load(name, tensor) for name, tensor in tensors.items()}
        self._heads = latents.stack_heads(spec, self._weights)
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
        self._progress = 0

    def _load(self, name: str, tensor: RawTensor) -> torch.Tensor:
        kind = stored_type(name, tensor, self.options.quantize)
        stored = convert(tensor, kind) if kind in QUANTIZED_TYPES else tensor
        return _to_torch(stored, self._dtype, self._device)

    # --- the interface -------------------------------------------------------------------------

    def memory(self) -> BackendMemory:
        """See backends.base.Backend."""
        held = (*self._weights.values(), *self._heads.values())
        weights = sum(t.numel() * t.element_size() for t in held)
        kv = self._cache.nbytes + self._states.nbytes if self._cache else 0
        isa = torch.backends.cpu.get_cpu_capability() if self._device.type == "cpu" else ""
        return BackendMemory(weights, kv, isa, str(self._device))

    def allocate_cache(
        self, num_blocks: tuple[int, ...], kv_dtype: str | None = None, states: int = 2
    ) -> None:
        """See backends.base.Backend."""
        options = self.options
        kv_dtype = kv_dtype or options.kv_dtype
        self._cache = PagedCache(
            self.spec, num_blocks, options.block_size, kv_dtype, str(self._device)
        )
        self._states = recurrent.States(self.spec, states, str(self._device))

    def submit(self, inputs: StepInputs) -> Handle:
        """See backends.base.Backend."""
        self._ready_cache()
        return self._steps.submit(inputs)

    def copy_blocks(self, group: int, pairs: Int32) -> None:
        """See backends.base.Backend."""
        self._ready_cache().copy(group, pairs)

    def export_blocks(self, group: int, blocks: Int32) -> ExportedBlocks:
        """See backends.base.Backend."""
        return self._ready_cache().export(group, blocks)

    def import_blocks(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """See backends.base.Backend."""
        self._ready_cache().restore(group, blocks, data)

    def progress(self) -> int:
        """Layers computed so far."""
        return self._progress

    def close(self) -> None:
        """See backends.base.Backend."""
        self._steps.close()
        self._weights, self._heads = {}, {}
        self._cache = None

    # --- one step ------------------------------------------------------------------------------

    def _ready_cache(self) -> PagedCache:
        if self._cache is None:
            raise TidemillError(ErrorKind.INTERNAL, "the backend is closed or has no cache yet")
        return self._cache

    def _compute(self, tokens: Int32, inputs: StepInputs) -> Computed:
        for group, pairs in enumerate(inputs.copies):
            self._ready_cache().copy(group, pairs)
        if not inputs.context_len.size:  # a step may do nothing but copy
            return Computed()
        hidden = self._forward(torch.from_numpy(tokens).long().to(self._device), inputs)
        return Computed(self._logits(hidden, inputs), _hidden(hidden, inputs))

    def _forward(self, tokens: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        """Final hidden states [tokens, hidden] of all rows, the KV cache written."""
        spec, weights = self.spec, self._weights
        positions, slots, contexts = self._addresses(inputs)
        x = weights[names.EMBED][tokens] * spec.embed_scale
        if spec.learned_positions:
            x = x + weights[names.POSITIONS][positions]
        if spec.token_types:
            x = x + weights[names.TYPES][self._types(inputs, positions)]
        if spec.embed_norm:
            x = self._norm("embed_norm", spec.norm, x)
        for i, layer in enumerate(spec.layers):
            h, attended = x, None
            if layer.mixer is not None:
                h = self._block_norm(i, "attn_norm", layer.has_norm("attn"), x)
                if isinstance(layer.mixer, Recurrent):
                    attended = self._recurrent(i, layer.mixer, h, inputs)
                else:
                    mixer = layer.mixer
                    attended = self._attention(i, mixer, h, positions, slots, contexts, inputs)
                behind = layer.post_norm and not layer.sum_norm
                attended = self._block_norm(i, "attn_post_norm", behind, attended)
                attended = attended * spec.residual_scale
                if not layer.parallel:
                    x = self._block_norm(i, "attn_post_norm", layer.sum_norm, x + attended)
            if layer.mlp is not None:
                if not layer.shared_norm:
                    h = self._block_norm(i, "mlp_norm", layer.pre_norm, x)
                fed = self._mlp(i, layer.mlp, h)
                behind = layer.post_norm and not layer.sum_norm
                fed = self._block_norm(i, "mlp_post_norm", behind, fed) * spec.residual_scale
                x = self._block_norm(i, "mlp_post_norm", layer.sum_norm, x + fed)
            if layer.parallel and attended is not None:
                x = x + attended
            self._progress += 1
        return self._norm("final_norm", spec.norm, x) if spec.last_norm else x

    def _norm(self, name: str, kind: Norm, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._weights.get(f"{name}.weight"), self._weights.get(f"{name}.bias")
        return layers.norm(x, kind.kind, weight, bias, self.spec.norm_eps)

    def _block_norm(self, index: int, name: str, present: bool, x: torch.Tensor) -> torch.Tensor:
        return self._norm(layer_name(index, name), self.spec.norm, x) if present else x

    def _addresses(
        self, inputs: StepInputs
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[list[torch.Tensor]]]:
        """Positions [tokens]; per cache group the slots written [tokens]; per group and row the
        slots of positions 0 .. the row's last."""
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
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _mlp(self, index: int, mlp: Mlp | Moe, x: torch.Tensor) -> torch.Tensor:
        name = layer_name(index, "mlp")
        if isinstance(mlp, Moe):
            return self._experts(name, mlp, x)
        return self._feed_forward(name, mlp, x)

    def _feed_forward(self, name: str, mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
        gate = self._linear(x, f"{name}.gate") if mlp.gated else None
        inner = layers.activate(mlp.activation, gate, self._linear(x, f"{name}.up"))
        return self._linear(inner, f"{name}.down")

    def _experts(self, name: str, moe: Moe, x: torch.Tensor) -> torch.Tensor:
        logits = self._linear(x, f"{name}.router").float()
        correction = self._weights.get(f"{name}.correction")
        chosen, weights = layers.route(moe, logits, correction)
        parts = x.new_zeros(*chosen.shape, x.shape[-1])
        for expert in torch.unique(chosen).tolist():
            at = (chosen == expert).nonzero(as_tuple=True)
            sent = x[at[0]]
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
        shared = self._feed_forward(f"{name}.shared", moe.shared, x)
        if moe.shared_gate:
            shared = shared * self._linear(x, f"{name}.shared_gate").sigmoid()
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
        q, k, v = self._project(index, mixer, x, positions)
        group = cache.group_of[index]
        cache.write(index, slots[group], k, v)
        out = q.new_empty(*q.shape[:2], mixer.v_dim)
        sinks = self._weights.get(layer_name(index, "attn.sinks"))
        seen = positions
        if not self.spec.causal:
            seen = self._ends(inputs, positions)
            if mixer.window is not None:
                seen = seen.minimum(positions + mixer.window - 1)
        for row, context in enumerate(contexts[group]):
            begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
            keys, values = cache.read(index, context)
            at = slice(begin, end)
            out[at] = layers.attend(mixer, q[at], keys, values, positions[at], seen[at], sinks)
        if mixer.latent is not None:
            out = latents.leave(out, self._heads[layer_name(index, "attn.v_up")])
        heads = out.flatten(1)
        if mixer.gated:
            heads = heads * self._linear(x, layer_name(index, "attn.gate")).sigmoid()
        return self._linear(heads, layer_name(index, "attn.o"))

    def _recurrent(
        self, index: int, mixer: Recurrent, x: torch.Tensor, inputs: StepInputs
    ) -> torch.Tensor:
        name = layer_name(index, "rec.")
        own = {k.removeprefix(name): w for k, w in self._weights.items() if k.startswith(name)}
        starts = inputs.row_start.tolist()
        rows = [
            recurrent.Row(begin, end, *states)
            for begin, end, states in zip(starts, starts[1:], inputs.states.tolist(), strict=False)
        ]
        for row, count, state in inputs.snapshots.tolist():
            rows[row].snapshots[count] = state
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
        """The type of each token: 1 from where its row's second text begins."""
        if inputs.second is None:
            return torch.zeros_like(positions)
        second = np.repeat(inputs.second, np.diff(inputs.row_start))
        begins = torch.from_numpy(np.where(second > 0, second, np.iinfo(np.int32).max))
        return (positions >= begins.to(positions)).long()

    def _ends(self, inputs: StepInputs, positions: torch.Tensor) -> torch.Tensor:
        """The last position of each token's row: what it sees where nothing is causal."""
        if inputs.context_len.any():
            raise TidemillError(ErrorKind.INTERNAL, "an encoder's input is computed whole")
        counts = np.diff(inputs.row_start)
        return torch.from_numpy(np.repeat(counts - 1, counts)).to(positions)

    def _project(
        self, index: int, mixer: Attention, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q, K, V as [tokens, heads, head_dim], normed and rotated."""
        if mixer.latent is not None:
            name = layer_name(index, "attn")
            angles = self._angles(index, mixer.rope, positions, x.dtype) if mixer.rope else None
            return latents.project(
                mixer,
                mixer.latent,
                x,
                lambda values, part: self._linear(values, f"{name}.{part}"),
                lambda part: self._weights[f"{name}.{part}"],
                self._heads[f"{name}.k_up"],
                angles,
            )
        qk = mixer.qk_norm
        parts = []
        for name, heads in (("q", mixer.heads), ("k", mixer.kv_heads), ("v", mixer.kv_heads)):
            part = self._linear(x, layer_name(index, f"attn.{name}"))
            if qk is not None and not qk.after_rope and name != "v":
                part = self._qk_norm(index, name, qk, heads, part)
            if mixer.clip is not None:
                part = part.clamp(-mixer.clip, mixer.clip)
            parts.append(part.view(-1, heads, mixer.head_dim))
        q, k, v = parts
        if mixer.rope is not None:
            cos, sin = self._angles(index, mixer.rope, positions, q.dtype)
            q, k = layers.rotate(q, cos, sin), layers.rotate(k, cos, sin)
        if qk is not None and qk.after_rope:
            q = self._qk_norm(index, "q", qk, mixer.heads, q.flatten(1)).view_as(q)
            k = self._qk_norm(index, "k", qk, mixer.kv_heads, k.flatten(1)).view_as(k)
        if mixer.tuning is not None:
            q = q * layers.tuning(mixer.tuning, positions)[:, None, None].to(q.dtype)
        return q, k, v

    def _qk_norm(
        self, index: int, part: str, qk: QkNorm, heads: int, x: torch.Tensor
    ) -> torch.Tensor:
        """Q or K [tokens, heads * dim] normed."""
        name = layer_name(index, f"attn.{part}_norm")
        weight, bias = self._weights.get(f"{name}.weight"), self._weights.get(f"{name}.bias")
        if qk.scope != "full":
            x = x.view(len(x), heads, -1)
        if qk.scope == "heads":
            weight = None if weight is None else weight.view(heads, -1)
            bias = None if bias is None else bias.view(heads, -1)
        return layers.norm(x, qk.norm.kind, weight, bias, self.spec.norm_eps).flatten(1)

    # --- logits and tokens ---------------------------------------------------------------------

    def _logits(self, hidden: torch.Tensor, inputs: StepInputs) -> list[NDArray[np.float32]]:
        """Per row float32 [wanted, vocab] (an empty array for rows that want none)."""
        head = names.EMBED if self.spec.tied_embeddings else names.LM_HEAD
        rows = []
        for row, wanted in enumerate(inputs.logits.tolist()):
            begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
            if wanted == LOGITS_NONE:
                rows.append(np.empty((0, self.spec.vocab_size), np.float32))
                continue
            chosen = hidden[begin:end] if wanted == LOGITS_ALL else hidden[end - 1 : end]
            bias = self._weights.get(names.LM_HEAD_BIAS)
            values = F.linear(chosen, self._weights[head], bias).float()
            values = values * self.spec.logit_scale
            if self.spec.logit_softcap is not None:
                values = layers.softcap(values, self.spec.logit_softcap)
            rows.append(values.cpu().numpy())
        return rows


def _hidden(hidden: torch.Tensor, inputs: StepInputs) -> NDArray[np.float32] | None:
    """The final hidden states that rows want, float32 [wanted, hidden]."""
    if inputs.hidden is None or not inputs.hidden.any():
        return None
    parts = []
    for row, wanted in enumerate(inputs.hidden.tolist()):
        begin, end = int(inputs.row_start[row]), int(inputs.row_start[row + 1])
        first = {HIDDEN_NONE: end, HIDDEN_LAST: end - 1, HIDDEN_ALL: begin}[wanted]
        parts.append(hidden[first:end])
    return torch.cat(parts).float().cpu().numpy()
