"""Operations of a decoder other than its matrix products, in plain torch operations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tidemill.models.spec import Attention, Moe

_CLAMP = 7.0  # of swiglu_clamped
_SIGMOID_SLOPE = 1.702


def norm(
    x: torch.Tensor,
    kind: str,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """The RMS norm ``rms`` or layer norm ``layer`` over the last axis, computed in float32."""
    values = x.float()
    if kind == "layer":
        values = values - values.mean(dim=-1, keepdim=True)
    values = values * torch.rsqrt(values.pow(2).mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        values = weight.float() * values
    return (values if bias is None else values + bias.float()).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half rope on the first 2 * cos.shape[-1] dimensions of x [tokens, heads, dim]."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap)."""
    return torch.tanh(x / cap) * cap


def attention_temperature(rule: tuple[float, float, int], positions: torch.Tensor) -> torch.Tensor:
    """Factors of queries at [positions]; see `Attention.attention_temperature`."""
    scale, floor, shift = rule
    return torch.log1p(((positions.float() + shift) / floor).floor()) * scale + 1.0


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def activate(name: str, gate: torch.Tensor | None, up: torch.Tensor) -> torch.Tensor:
    """act(gate) * up, or act(up) without a gate; `name` is one of spec.ACTIVATIONS."""
    if gate is None:
        return _UNARY[name](up)
    if name == "swiglu_clamped":
        g, u = gate.clamp(max=_CLAMP), up.clamp(-_CLAMP, _CLAMP)
        return g * torch.sigmoid(g * _SIGMOID_SLOPE) * (u + 1)
    return _UNARY[name](gate) * up


def attend(
    mixer: Attention,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of one row in float32.

    Args:
        mixer: the layer's attention.
        q: [count, heads, head_dim]; keys: [context, kv_heads, head_dim]; values: [context,
            kv_heads, v_dim]; positions: [count].
        last: [count]: the last position each query sees; its own position in causal attention.
        sinks: [heads] or None.

    Returns:
        [count, heads, v_dim] in q's type.
    """
    count, heads, dim = q.shape
    group = heads // mixer.kv_heads
    grouped = q.float().view(count, mixer.kv_heads, group, dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, keys) * mixer.score_scale
    if mixer.softcap is not None:
        scores = softcap(scores, mixer.softcap)
    at = torch.arange(keys.shape[0], device=q.device)
    if mixer.slopes:
        slopes = torch.tensor(mixer.slopes, device=q.device).view(mixer.kv_heads, group, 1, 1)
        scores = scores + slopes * (at[None, :] - positions[:, None]).float()
    hidden = at[None, :] > last[:, None]
    if mixer.window is not None:
        oldest = positions - mixer.window + 1
        if mixer.chunked:
            oldest = positions // mixer.window * mixer.window
        hidden |= at[None, :] < oldest[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(mixer.kv_heads, group, 1, 1).expand(-1, -1, count, 1)
        scores = torch.cat([sink, scores], dim=-1)
    weights = scores.softmax(dim=-1)
    if sinks is not None:
        weights = weights[..., 1:]
    return torch.einsum("hgqk,khd->qhgd", weights, values).reshape(count, heads, -1).to(q.dtype)


def route(
    moe: Moe, logits: torch.Tensor, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and their weights, [tokens, top_k] each, best first; ties go to the lowest id.

    Args:
        moe: the routing rule. The arithmetic follows csrc/model/route.cpp.
        logits: the router's, float32 [tokens, experts].
        correction: [experts] or None.
    """
    if moe.scoring == "sparse_mixer":
        return _sparse_mixer(moe, logits)
    scores = logits
    if moe.scoring == "softmax":
        scores = logits.softmax(dim=-1)
    elif moe.scoring == "sigmoid":
        scores = logits.sigmoid()
    choice = scores if correction is None else scores + correction.float()
    if moe.groups > 1:
        choice = _best_groups(moe, choice, correction is not None)
    # A stable sort keeps the order of equal scores; topk does not.
    chosen = choice.sort(dim=-1, descending=True, stable=True).indices[:, : moe.top_k]
    weights = scores.gather(-1, chosen)
    if moe.scoring == "softmax_chosen":
        weights = weights.softmax(dim=-1)
    elif moe.scoring == "sigmoid_chosen":
        weights = weights.sigmoid()
    if moe.normalize and moe.scoring != "softmax_chosen":
        least = 1e-20 if moe.scoring == "sigmoid" else 0.0
        weights = weights / (weights.sum(dim=-1, keepdim=True) + least)
    return chosen, weights * moe.scale


def _best_groups(moe: Moe, choice: torch.Tensor, corrected: bool) -> torch.Tensor:
    grouped = choice.view(len(choice), moe.groups, -1)
    best = grouped.topk(2 if corrected and grouped.shape[-1] > 1 else 1, dim=-1).values
    order = best.sum(dim=-1).sort(dim=-1, descending=True, stable=True).indices
    left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool)
    left_out.scatter_(1, order[:, : moe.top_groups], False)
    return grouped.masked_fill(left_out[..., None], float("-inf")).flatten(1)


def _sparse_mixer(moe: Moe, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left, chosen, weights = logits.clone(), [], []
    for _ in range(moe.top_k):
        largest, best = left.max(dim=-1, keepdim=True)
        factor = torch.maximum(logits.abs(), largest)
        far = (largest - logits) / factor > 2 * moe.jitter
        near = left.masked_fill(far, float("-inf")).softmax(dim=-1)
        chosen.append(best)
        weights.append(near.gather(-1, best))
        left = left.scatter(-1, best, float("-inf"))
    return torch.cat(chosen, -1), torch.cat(weights, -1)
