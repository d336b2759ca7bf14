"""Recurrent mixers in plain torch operations, token by token, and their states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tidemill.backends.torch import layers
from tidemill.models.spec import DecoderSpec, Recurrent

Linear = Callable[[torch.Tensor, str], torch.Tensor]
_UNIT_EPSILON = 1e-6


class States:
    """States of the recurrent layers: the convolution's last inputs and S, float32.

    Attributes:
        tails: layer -> [states, conv_kernel - 1, channels].
        matrices: layer -> [states, value_heads, key_dim, value_dim].
    """

    def __init__(self, spec: DecoderSpec, count: int, device: str) -> None:
        self.tails: dict[int, torch.Tensor] = {}
        self.matrices: dict[int, torch.Tensor] = {}
        for i, m in spec.recurrences().items():
            self.tails[i] = torch.zeros(count, m.conv_kernel - 1, m.channels, device=device)
            shape = (count, m.value_heads, m.key_dim, m.value_dim)
            self.matrices[i] = torch.zeros(shape, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(4 * t.numel() for t in self._all())

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return sum(4 * t[:1].numel() for t in self._all())

    def _all(self) -> tuple[torch.Tensor, ...]:
        return (*self.tails.values(), *self.matrices.values())

    def read(self, state: int, at: int, out: NDArray[np.uint8]) -> None:
        """Copy bytes of a state from `at` on, layer after layer."""
        for part, where in self._parts(state, at, len(out)):
            out[where] = part.cpu().numpy()

    def write(self, state: int, at: int, data: NDArray[np.uint8]) -> None:
        """Write what `read` read."""
        for part, where in self._parts(state, at, len(data)):
            part.copy_(torch.from_numpy(data[where].copy()))

    def _parts(self, state: int, at: int, size: int) -> Iterator[tuple[torch.Tensor, slice]]:
        """The pieces of tensors, uint8, that bytes at .. at + size are, and where among them."""
        begin = 0
        for tensor in self._all():
            flat = tensor[state].view(-1).view(torch.uint8)
            first, last = max(begin, at), min(begin + len(flat), at + size)
            if first < last:
                yield flat[first - begin : last - begin], slice(first - at, last - at)
            begin += len(flat)


@dataclass(slots=True)
class Row:
    """Tokens begin .. end - 1 of a step, with the state read (-1: empty) and the state written.
    `snapshots` maps a token count to the additional states written after that many tokens."""

    begin: int
    end: int
    read: int
    write: int
    snapshots: dict[int, list[int]] = field(default_factory=dict)


def mix(
    layer: int,
    mixer: Recurrent,
    x: torch.Tensor,
    linear: Linear,
    weights: Mapping[str, torch.Tensor],
    states: States,
    rows: list[Row],
    eps: float,
) -> torch.Tensor:
    """The mixer of all tokens of a step; see `Recurrent` for what it computes.

    Args:
        layer: its index.
        mixer: its shape.
        x: [tokens, hidden].
        linear: (input, name of a projection) -> output.
        weights: the layer's tensors, by their names after ``rec.``.
        states: read and written.
        rows: the step's.
        eps: of the norm.
    """
    inputs, z, a = (linear(x, part).float() for part in ("qkv", "z", "a"))
    z, a = z * mixer.scales[0], a * mixer.scales[4]
    time = F.softplus(a + weights["a_bias"].float())
    if mixer.rule == "delta":
        gain = linear(x, "b").float().sigmoid()
    else:
        time = gain = time.clamp(*mixer.time_limits)
    decay = torch.exp(-weights["a_log"].float().exp() * time)
    out = x.new_empty(len(x), mixer.inner, dtype=torch.float32)
    tail, matrix, kept = states.tails[layer], states.matrices[layer], mixer.conv_kernel - 1
    for row in rows:
        before = tail[row.read] if row.read >= 0 else torch.zeros_like(tail[0])
        state = matrix[row.read] if row.read >= 0 else torch.zeros_like(matrix[0])
        seen = torch.cat([before, inputs[row.begin : row.end]])
        mixed = _convolve(mixer, seen, weights)
        q, k, v = _heads(mixer, mixed)
        for t in range(row.begin, row.end):
            i = t - row.begin
            state = state * decay[t, :, None, None]
            value = v[i]
            if mixer.rule == "delta":
                value = value - torch.einsum("hkv,hk->hv", state, k[i])
            state = state + k[i][:, :, None] * (value * gain[t, :, None])[:, None, :]
            found = torch.einsum("hkv,hk->hv", state, q[i])
            if mixer.skip:
                found = found + weights["skip"].float()[:, None] * v[i]
            out[t] = found.flatten()
            for number in row.snapshots.get(i + 1, ()):
                matrix[number] = state
                tail[number] = seen[i + 1 : i + 1 + kept]
        matrix[row.write] = state
        tail[row.write] = seen[len(seen) - kept :]
    return linear(_gate(mixer, out, z, weights, eps).to(x.dtype), "out")


def _convolve(
    mixer: Recurrent, seen: torch.Tensor, weights: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    kernel = weights["conv.weight"].float().view(mixer.channels, 1, mixer.conv_kernel)
    if mixer.rule == "ssd":  # silu of the convolved values, not of their bias
        keys = mixer.key_heads * mixer.key_dim
        widths = torch.tensor([mixer.inner, keys, keys])
        scales = torch.tensor(mixer.scales[1:4]).repeat_interleave(widths)
        kernel = kernel * scales.to(kernel)[:, None, None]
    bias = weights["conv.bias"].float() if mixer.conv_bias else None
    return F.silu(F.conv1d(seen.T[None], kernel, bias, groups=mixer.channels))[0].T


def _heads(
    mixer: Recurrent, mixed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, [tokens, value_heads, dim]."""
    keys = mixer.key_heads * mixer.key_dim
    if mixer.rule == "delta":
        q, k, v = torch.split(mixed, [keys, keys, mixer.inner], dim=-1)
    else:
        v, k, q = torch.split(mixed, [mixer.inner, keys, keys], dim=-1)
    count, repeats = len(mixed), mixer.value_heads // mixer.key_heads
    q, k = (part.reshape(count, mixer.key_heads, mixer.key_dim) for part in (q, k))
    if mixer.rule == "delta":
        q, k = (p * torch.rsqrt((p * p).sum(-1, keepdim=True) + _UNIT_EPSILON) for p in (q, k))
        q = q * mixer.key_dim**-0.5
    if mixer.tiled:
        q, k = (part.repeat(1, repeats, 1) for part in (q, k))
    else:
        q, k = (part.repeat_interleave(repeats, dim=1) for part in (q, k))
    return q, k, v.reshape(count, mixer.value_heads, mixer.value_dim)


def _gate(
    mixer: Recurrent,
    out: torch.Tensor,
    z: torch.Tensor,
    weights: Mapping[str, torch.Tensor],
    eps: float,
) -> torch.Tensor:
    if mixer.gate_first:
        out = out * F.silu(z)
    if mixer.norm_groups:
        parts = out.view(len(out), mixer.norm_groups, -1)
        weight = weights["norm.weight"].float()
        weight = weight if mixer.norm_shared else weight.view(mixer.norm_groups, -1)
        out = layers.norm(parts, "rms", weight, None, eps).flatten(1)
    return out if mixer.gate_first else out * F.silu(z)
