"""Weights of the base model and of its adapters, and a step's rows by adapter.

Low-rank changes of matrix products are added to the base's products. The few matrices that are not
multiplied as such (latent heads, convolutions, tables of positions) are held merged.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F

from tidemill.backends.base import Int32, StepInputs
from tidemill.backends.torch import latents
from tidemill.models import tensors as names
from tidemill.models.adapters import Changes, Product, merged
from tidemill.models.spec import DecoderSpec

_HEADS = re.compile(r"\.attn\.[kv]_up\.\d+\.weight$")
_MERGED = re.compile(rf"{_HEADS.pattern}|\.rec\.conv\.weight$")
_TABLES = (names.POSITIONS, names.TYPES, names.LAYER_INPUTS)


@dataclass(frozen=True, slots=True)
class LowRank:
    """A `Product` in the computing type."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    gain: torch.Tensor | None
    input_gain: torch.Tensor | None

    def linear(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The changed product of x [..., in]: [..., out]."""
        if self.input_gain is not None:
            x = x * self.input_gain
        y = F.linear(x, weight) + F.linear(F.linear(x, self.a), self.b) * self.scale
        return y if self.gain is None else y * self.gain

    def rows(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the changed table."""
        found = table[ids] + (self.b[ids] @ self.a) * self.scale
        if self.gain is not None:
            found = found * self.gain[ids, None]
        return found if self.input_gain is None else found * self.input_gain


@dataclass(frozen=True, slots=True)
class Weights:
    """What rows are computed with.

    Attributes:
        tensors: canonical name -> tensor, without latent heads.
        heads: latent heads, see `latents.stack_heads`.
        products: changes of matrix products, by canonical name.
    """

    tensors: Mapping[str, torch.Tensor]
    heads: Mapping[str, torch.Tensor]
    products: Mapping[str, LowRank] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        held = {id(t): t for t in (*self.tensors.values(), *self.heads.values())}
        return sum(t.numel() * t.element_size() for t in held.values())

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A projection of x [..., in], with its bias."""
        bias = self.tensors.get(f"{name}.bias")
        return self._product(x, f"{name}.weight", bias)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding."""
        table, change = self.tensors[names.EMBED], self.products.get(names.EMBED)
        return table[ids] if change is None else change.rows(table, ids)

    def output(self, x: torch.Tensor) -> torch.Tensor:
        """The output layer of x [tokens, hidden]."""
        bias = self.tensors.get(names.LM_HEAD_BIAS)
        return self._product(x, names.LM_HEAD, bias)

    def _product(self, x: torch.Tensor, name: str, bias: torch.Tensor | None) -> torch.Tensor:
        weight, change = self.tensors[name], self.products.get(name)
        if change is None:
            return F.linear(x, weight, bias)
        y = change.linear(weight, x)
        return y if bias is None else y + bias


def base_weights(spec: DecoderSpec, tensors: dict[str, torch.Tensor]) -> Weights:
    """The base model's; a tied output layer is found under its own name as well."""
    heads = latents.stack_heads(spec, tensors)
    if spec.tied_embeddings and names.EMBED in tensors:
        tensors[names.LM_HEAD] = tensors[names.EMBED]
    return Weights(tensors, heads)


def adapted_weights(base: Weights, changes: Changes) -> tuple[Weights, int]:
    """An adapter's, beside those of the base that it does not change; and the bytes it takes."""
    like = next(iter(base.tensors.values()))
    own: dict[str, torch.Tensor] = {}
    heads = dict(base.heads)
    low_rank: dict[str, LowRank] = {}

    def tensor(values: np.ndarray, kind: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(like.device, kind)

    for name, values in changes.replaced.items():
        own[name] = tensor(values, base.tensors[name].dtype)
    for name, vector in changes.added.items():
        before = own.get(name, base.tensors[name])
        own[name] = before + tensor(vector, before.dtype)
    for name, product in changes.products.items():
        if _HEADS.search(name):
            _merge_head(heads, base.heads, name, product)
        elif _MERGED.search(name) or name in _TABLES:
            before = own.get(name, base.tensors[name])
            shape = (product.b.shape[0], product.a.shape[1])
            changed = merged(before.float().cpu().numpy().reshape(shape), product)
            own[name] = tensor(changed.reshape(before.shape), before.dtype)
        else:
            kind = base.tensors[name].dtype
            gains = (product.gain, product.input_gain)
            low_rank[name] = LowRank(
                tensor(product.a, kind),
                tensor(product.b, kind),
                product.scale,
                *(None if gain is None else tensor(gain, kind) for gain in gains),
            )
    arrays = [*own.values(), *(h for n, h in heads.items() if h is not base.heads[n])]
    arrays += [t for change in low_rank.values() for t in (change.a, change.b)]
    nbytes = sum(t.numel() * t.element_size() for t in arrays)
    tensors = ChainMap(own, dict(base.tensors)) if own else base.tensors
    return Weights(tensors, heads, low_rank), nbytes


def _merge_head(
    heads: dict[str, torch.Tensor], base: Mapping[str, torch.Tensor], name: str, product: Product
) -> None:
    """Merge the change of one head of a stack, which is copied first."""
    stack, index = name.removesuffix(".weight").rsplit(".", 1)
    if heads[stack] is base[stack]:
        heads[stack] = base[stack].clone()
    head = heads[stack][int(index)]
    head.copy_(torch.from_numpy(merged(head.float().cpu().numpy(), product)).to(head))


def by_slot(inputs: StepInputs) -> Iterator[tuple[int, StepInputs, Int32, Int32]]:
    """A step's rows by adapter: slot, inputs of the rows that the layers read, the rows, and their
    tokens, both as indices."""
    assert inputs.adapters is not None
    counts = np.diff(inputs.row_start)
    row_of = np.repeat(np.arange(len(counts)), counts)
    for slot in np.unique(inputs.adapters).tolist():
        rows = np.flatnonzero(inputs.adapters == slot).astype(np.int32)
        tokens = np.flatnonzero(np.isin(row_of, rows)).astype(np.int32)
        yield slot, _of_rows(inputs, rows, tokens, counts), rows, tokens


def _of_rows(inputs: StepInputs, rows: Int32, tokens: Int32, counts: Int32) -> StepInputs:
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts[rows], out=starts[1:])
    overrides = inputs.overrides
    if overrides is not None:
        mine = np.isin(overrides.tokens, tokens)
        at = np.searchsorted(tokens, overrides.tokens[mine]).astype(np.int32)
        overrides = replace(overrides, tokens=at, rows=overrides.rows[mine])
    snapshots = inputs.snapshots
    if len(snapshots):
        snapshots = snapshots[np.isin(snapshots[:, 0], rows)].copy()
        snapshots[:, 0] = np.searchsorted(rows, snapshots[:, 0])
    return replace(
        inputs,
        token_ids=inputs.token_ids[tokens],
        row_start=starts,
        context_len=inputs.context_len[rows],
        block_tables=tuple(table[rows] for table in inputs.block_tables),
        logits=inputs.logits[rows],
        sample=inputs.sample[rows],
        drafts=None if inputs.drafts is None else inputs.drafts[rows],
        states=inputs.states[rows] if len(inputs.states) else inputs.states,
        snapshots=snapshots,
        overrides=overrides,
        second=None if inputs.second is None else inputs.second[rows],
        adapters=None,
    )
