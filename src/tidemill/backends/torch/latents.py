"""Latent attention in plain torch operations: the projections before and after it; see `Latent`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tidemill.backends.torch import layers
from tidemill.models.spec import Attention, DecoderSpec, Latent
from tidemill.models.tensors import layer_name

Projected = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def stack_heads(spec: DecoderSpec, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove the per-head matrices from `weights` and stack them, since they are multiplied
    together: name without head -> [heads, out, in]."""
    stacks = {}
    for i, mixer in spec.attentions().items():
        for part in ("k_up", "v_up") if mixer.latent else ():
            name = layer_name(i, f"attn.{part}")
            heads = [weights.pop(f"{name}.{head}.weight") for head in range(mixer.heads)]
            stacks[name] = torch.stack(heads)
    return stacks


def project(
    mixer: Attention,
    latent: Latent,
    x: torch.Tensor,
    linear: Callable[[torch.Tensor, str], torch.Tensor],
    weight: Callable[[str], torch.Tensor],
    k_up: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
) -> Projected:
    """Q in latent space [tokens, heads, head_dim], and K and V as they are cached.

    Args:
        mixer, latent: the layer's.
        x: [tokens, hidden].
        linear: (input, name of a projection) -> output.
        weight: name of a tensor -> tensor.
        k_up: [heads, rank, nope].
        angles: cosines and sines [tokens, rope / 2], or None.
    """

    def normed(part: str, values: torch.Tensor) -> torch.Tensor:
        return layers.norm(values, "rms", weight(f"{part}_norm.weight"), None, latent.norm_eps)

    source = x if latent.q_rank is None else normed("q_down", linear(x, "q_down"))
    q = linear(source, "q").view(len(x), mixer.heads, -1)
    down = linear(x, "kv_down")
    v = normed("kv_down", down[:, : latent.rank])[:, None]
    key, q_rope = down[:, None, latent.rank :], q[..., latent.nope :]
    if angles is not None:
        key, q_rope = layers.rotate(key, *angles), layers.rotate(q_rope, *angles)
    lifted = torch.einsum("thn,hrn->thr", q[..., : latent.nope], k_up)
    return torch.cat([lifted, q_rope], -1), torch.cat([v, key], -1), v


def leave(out: torch.Tensor, v_up: torch.Tensor) -> torch.Tensor:
    """Project attention outputs in latent space, [tokens, heads, rank], to [tokens, heads,
    value]."""
    return torch.einsum("thr,hvr->thv", out, v_up)
