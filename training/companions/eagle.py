"""An EAGLE-3 head for brook (Li et al., 2025, "EAGLE-3"; the trunk stays frozen).

At position t the head takes g_t (a map of three of brook's residual streams there) beside the
embedding of token t + 1 and guesses what brook says of token t + 2. Of what it drafted itself it
knows no g, and takes its own output of the position before instead. So it is trained as it drafts
("training-time test"): in pass j the last j states of every position's context are its own.

It is scored by brook's output matrix behind a norm of its own.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.batches import Batch
from training.companions.adapters import write
from training.companions.fit import batches, fit
from training.data.mixture import draw
from training.data.source import Source
from training.model import MLP, Decoder, RMSNorm, Shape, rotate

LAYERS = (1, 3, 5)
"""Of brook: the head reads the residual stream in front of each."""
PASSES = 4
FILE = "model.safetensors"


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, d = shape.hidden_size, shape.head_dim
        self.heads, self.kv_heads, self.d = shape.num_attention_heads, shape.num_key_value_heads, d
        self.q_proj = nn.Linear(2 * width, self.heads * d, bias=False)
        self.k_proj = nn.Linear(2 * width, self.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(2 * width, self.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(self.heads * d, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, passes: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Attend from each position to keys of the first pass, and of one position of each later.

        Args:
            x: [B, T, 2 D].
            cos, sin: of the positions.
            passes: keys and values of the passes before; this one's are added.
        """
        b, t, _ = x.shape
        q, k, v = (
            each(x).view(b, t, -1, self.d).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.heads // self.kv_heads
        passes.append((k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
        last = len(passes) - 1
        # In pass j position u sees the first pass up to u - j, and of pass i position u - j + i.
        later = torch.full((t, t), float("-inf"), dtype=q.dtype, device=q.device).triu(1 - last)
        scores = [q @ passes[0][0].mT * self.d**-0.5 + later]
        scores += [
            (q * moved(passes[i][0], last - i)).sum(-1, keepdim=True) * self.d**-0.5
            for i in range(1, last + 1)
        ]
        # Positions before the first have seen nothing of the first pass: not learned from.
        weights = torch.cat(scores, dim=-1).softmax(-1)
        out = weights[..., :t].nan_to_num() @ passes[0][1]
        for i in range(1, last + 1):
            out = out + weights[..., t + i - 1 : t + i] * moved(passes[i][1], last - i)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, self.heads * self.d))


def moved(x: Tensor, by: int) -> Tensor:
    """x [..., T, d] later by so many positions, zeros in front."""
    return F.pad(x, (0, 0, by, 0))[..., : x.shape[-2], :] if by else x


class Head(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.rms_norm_eps
        self.fc = nn.Linear(len(LAYERS) * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, eps)
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = MLP(shape)
        self.norm = RMSNorm(width, eps)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim == 2:
                    small = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.6
                    nn.init.normal_(weight, std=small * weight.shape[1] ** -0.5)

    def forward(
        self, g: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, passes: list
    ) -> Tensor:
        """The states behind [B, T, D]; `norm` of them is scored."""
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(g)], dim=-1)
        g = g + self.self_attn(x, cos, sin, passes)
        return g + self.mlp(self.post_attention_layernorm(g))


def streams_of(brook: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(residual streams in front of `LAYERS` [B, T, 3 D], final hidden states [B, T, D])."""
    x = brook.model.embed_tokens(tokens)
    cos, sin = brook.rope(torch.arange(tokens.shape[1], device=x.device))
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, cos, sin = x.to(dtype), cos.to(dtype), sin.to(dtype)
    found = []
    for i, layer in enumerate(brook.model.layers):
        if i in LAYERS:
            found.append(x)
        x = layer(x, cos, sin, None)
    return torch.cat(found, dim=-1), brook.model.norm(x)


def eagle_loss(brook: Decoder, head: Head, batch: Batch) -> Tensor:
    """Mean cross-entropy with brook's distributions over all passes, pass j weighted by 0.8**j."""
    with torch.autocast(batch.tokens.device.type, torch.bfloat16):
        with torch.no_grad():
            streams, final = streams_of(brook, batch.tokens)
            following = brook.model.embed_tokens(batch.tokens)[:, 1:].to(streams.dtype)
        answer = torch.zeros_like(batch.tokens, dtype=torch.bool)
        answer[batch.where[:, 0], batch.where[:, 1]] = True
        cos, sin = brook.rope(torch.arange(following.shape[1], device=streams.device))
        cos, sin = cos.to(streams.dtype), sin.to(streams.dtype)
        g = head.fc(streams[:, :-1])
        total = g.new_zeros((), dtype=torch.float32)
        passes: list[tuple[Tensor, Tensor]] = []
        for j in range(PASSES):
            g = head(g, following, cos, sin, passes)
            # Position u says what brook says at u + 1; the first j have no state of pass j.
            rows, columns = answer[:, 1 + j :].nonzero(as_tuple=True)
            columns = columns + j
            with torch.no_grad():
                wanted = brook.logits(final[rows, columns + 1]).float().softmax(-1)
            scores = brook.logits(head.norm(g[rows, columns]))
            total = total + 0.8**j * F.cross_entropy(scores.float(), wanted)
            g = moved(g, 1)
    return total


def train_eagle(
    brook: Decoder, tokenizer: Tokenizer, output: Path, minutes: float, warm: bool = False
) -> dict[str, float]:
    """Train the head, from the one that is there if `warm`, and `save` it."""
    torch.manual_seed(5)
    for p in brook.parameters():
        p.requires_grad_(False)
    where = next(brook.parameters()).device
    head, shape = Head(brook.shape), brook.shape
    if warm and (output / FILE).exists():
        stored = load_file(output / FILE)
        head.load_state_dict({n.removeprefix("midlayer."): t.float() for n, t in stored.items()})
    head = head.to(where)
    source = Source("eagle")
    data = batches(tokenizer, lambda: draw(source), "eagle")
    facts = fit(
        head.parameters(), data, lambda b, _: eagle_loss(brook, head, b), minutes, 0.002,
        "eagle", where,
    )  # fmt: skip
    save(output, head, shape)
    return facts


def save(output: Path, head: Head, shape: Shape) -> None:
    """Write a head as published ones are, but for ``lm_head``, which is brook's."""
    outside = ("fc", "norm")
    tensors = {
        name if name.split(".")[0] in outside else f"midlayer.{name}": weight
        for name, weight in head.named_parameters()
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1, "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads, "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps, "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size, "hidden_act": "silu",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(LAYERS)},
        "base_model_name_or_path": "brook",
    }  # fmt: skip
    write(output, FILE, tensors, config)
