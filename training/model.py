"""A compact Qwen3-shaped decoder for training on CPU or CUDA.

The parameter names are those of transformers' ``Qwen3ForCausalLM`` (tied embeddings), so that a
``state_dict`` is a checkpoint. Shapes: B sequences, T positions, D hidden width, V vocabulary.
Architecture after the Qwen3 technical report (2025): pre-norm, grouped-query attention with
RMS-normed queries and keys, rotary positions, gated SiLU feed-forward.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; the names are those of a Hugging Face ``config.json``."""

    vocab_size: int
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021) in the half-split layout; x: [B, H, T, d]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention [B, H, T, d]; one query may follow a longer cache, several may not."""
    t = q.shape[2]
    # On CPU the fused kernel's backward pass is slow for short rows (measured with torch 2.13).
    if q.requires_grad and q.device.type == "cpu" and t <= 512:
        later = torch.full((t, t), float("-inf"), dtype=q.dtype).triu(1)
        return (q @ k.mT * q.shape[-1] ** -0.5 + later).softmax(-1) @ v
    return F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, d = shape.hidden_size, shape.head_dim
        self.heads, self.kv_heads, self.d = shape.num_attention_heads, shape.num_key_value_heads, d
        self.q_proj = nn.Linear(width, self.heads * d, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(self.heads * d, width, bias=False)
        self.q_norm = RMSNorm(d, shape.rms_norm_eps)
        self.k_norm = RMSNorm(d, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list | None) -> Tensor:
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, self.heads, self.d)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.kv_heads, self.d)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.d).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
            past[:] = [k, v]
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = attend(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, self.heads * self.d))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Decoder(nn.Module):
    """Causal language model; ``forward`` returns normed hidden states, ``logits`` the scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * shape.num_hidden_layers) ** -0.5 if residual else 1.0
                std = 0.02 if "embed" in name else shape.hidden_size**-0.5 * 0.6 * scale
                nn.init.normal_(weight, std=std)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of shape [T, head_dim] for integer positions of shape [T]."""
        d = self.shape.head_dim
        steps = torch.arange(0, d, 2, device=positions.device, dtype=torch.float32) / d
        angles = positions.float()[:, None] / self.shape.rope_theta ** steps[None]
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def forward(
        self,
        tokens: Tensor | None = None,
        embeds: Tensor | None = None,
        cache: list[list] | None = None,
        start: int = 0,
    ) -> Tensor:
        """Hidden states [B, T, D] of tokens [B, T] (or of given input embeddings)."""
        x = self.model.embed_tokens(tokens) if embeds is None else embeds
        cos, sin = self.rope(torch.arange(start, start + x.shape[1], device=x.device))
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, cos, sin = x.to(dtype), cos.to(dtype), sin.to(dtype)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if cache is None else cache[i])
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., V]: the output matrix is the embedding (tied)."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def new_cache(self) -> list[list]:
        return [[] for _ in range(self.shape.num_hidden_layers)]


def parameters_of(shape: Shape) -> int:
    """The number of parameters, embeddings counted once."""
    with torch.device("meta"):
        return sum(p.numel() for p in Decoder(shape).parameters())
