"""Muon for the matrices inside the layers, AdamW for embeddings and norms.

Muon (Jordan et al., 2024): momentum whose matrix is orthogonalised by a Newton-Schulz iteration
before it is applied. On models this small it needs about half the tokens of AdamW.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Coefficients of the quintic iteration, as published with Muon.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices to a stack [N, rows, columns], approximately."""
    x = g.bfloat16()
    turned = x.shape[1] > x.shape[2]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return (x.mT if turned else x).to(g.dtype)


class Muon:
    """Keeps one momentum per matrix; matrices of equal shape are orthogonalised as a stack."""

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.02):
        self.params, self.momentum, self.decay = params, momentum, decay
        self.buffers = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, p in enumerate(self.params):
            shapes.setdefault(tuple(p.shape), []).append(i)
        for shape, members in shapes.items():
            updates = []
            for i in members:
                grad = self.params[i].grad
                assert grad is not None
                self.buffers[i].lerp_(grad, 1 - self.momentum)
                updates.append(grad.lerp(self.buffers[i], self.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for i, update in zip(members, orthogonalise(torch.stack(updates)), strict=True):
                self.params[i].mul_(1 - lr * self.decay).add_(update, alpha=-lr * scale)

    def state_dict(self) -> dict:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict) -> None:
        for mine, theirs in zip(self.buffers, state["buffers"], strict=True):
            mine.copy_(theirs)


class Optimizer:
    """Both optimizers behind one step; learning rates are scaled by ``factor``."""

    def __init__(self, model: nn.Module, muon_lr: float = 0.02, adam_lr: float = 0.004) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        inner = [p for n, p in named if p.ndim == 2 and "embed" not in n]
        outer = [p for n, p in named if p.ndim != 2 or "embed" in n]
        self.lrs = (muon_lr, adam_lr)
        self.muon = Muon(inner)
        self.adam = torch.optim.AdamW(outer, lr=adam_lr, betas=(0.9, 0.97), weight_decay=0.0)
        self.params = inner + outer

    def step(self, factor: float) -> float:
        """Clip, apply and clear the gradients; returns the gradient's norm before clipping."""
        norm = float(nn.utils.clip_grad_norm_(self.params, 1.0))
        self.muon.step(self.lrs[0] * factor)
        for group in self.adam.param_groups:
            group["lr"] = self.lrs[1] * factor
        self.adam.step()
        for p in self.params:
            p.grad = None
        return norm

    def state_dict(self) -> dict:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
