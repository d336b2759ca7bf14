"""`tidemill show`: a model's facts, read from its headers alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from tidemill.loading import ModelSummary, TensorLine
    from tidemill.models.spec import DecoderSpec


def show(
    model: str = typer.Argument(..., help="Folder, .gguf file, bundled name or hub id."),
    tensors: bool = typer.Option(False, "--tensors", help="List every tensor."),
) -> None:
    """Show a model's architecture, tensors and KV bytes per token. Reads no weights."""
    from rich.console import Console
    from rich.table import Table

    from tidemill.loading import inspect_model

    summary = inspect_model(model)
    table = Table(show_header=False, box=None)
    for name, value in _facts(summary):
        table.add_row(f"[bold]{name}[/bold]", value)
    console = Console()
    console.print(table)
    console.print(_tensor_table(summary.tensors, grouped=not tensors))


def _facts(summary: ModelSummary) -> list[tuple[str, str]]:
    from tidemill.cli.machine import human_bytes

    spec = summary.spec
    ends = ", ".join(map(str, summary.eos_token_ids)) or "none"
    text = "present" if summary.has_vocabulary else "none"
    template = "present" if summary.has_chat_template else "none"
    kv = ", ".join(
        f"{human_bytes(spec.kv_bytes_per_token(t))} in {t}" for t in ("float32", "bfloat16", "int8")
    )
    full = spec.kv_bytes_per_token("bfloat16") * spec.max_positions
    return [
        ("model", f"{summary.path} ({summary.format})"),
        ("family", spec.family),
        ("parameters", f"{summary.parameters:,}"),
        ("weights", f"{human_bytes(summary.weight_bytes)}, mostly {spec.weights_dtype}"),
        ("layers", _describe_layers(spec)),
        ("hidden size", f"{spec.hidden_size}, vocabulary {spec.vocab_size:,}"),
        ("embeddings", "tied" if spec.tied_embeddings else "untied"),
        ("context", f"{spec.max_positions:,} tokens"),
        ("KV per token", kv),
        ("KV of a full context", f"{human_bytes(full)} in bfloat16"),
        ("vocabulary", f"{text}; chat template: {template}; end tokens: {ends}"),
    ]


def _describe_layers(spec: DecoderSpec) -> str:
    mixer, mlp = spec.layers[0].mixer, spec.layers[0].mlp
    extras = [
        *(["q/k norm"] if mixer.qk_norm else []),
        *(["q/k/v biases"] if mixer.q_bias else []),
        *([f"window {mixer.window}"] if mixer.window else []),
    ]
    if mixer.rope is not None:
        scaling = f", {mixer.rope.scaling.kind} scaling" if mixer.rope.scaling else ""
        extras.append(f"rope {mixer.rope.theta:g}{scaling}")
    return (
        f"{len(spec.layers)} x ({mixer.heads} heads, {mixer.kv_heads} KV heads of "
        f"{mixer.head_dim}, MLP {mlp.intermediate}; {', '.join(extras)})"
    )


def _tensor_table(lines: Iterable[TensorLine], *, grouped: bool) -> Table:
    """All tensors, or one line per kind of layer tensor (the index replaced by a star)."""
    from rich.table import Table

    from tidemill.cli.machine import human_bytes

    groups: dict[tuple[str, str, tuple[int, ...]], list[TensorLine]] = {}
    for line in lines:
        parts = line.name.split(".")
        if grouped and parts[0] == "layers":
            parts[1] = "*"
        groups.setdefault((".".join(parts), line.dtype, line.shape), []).append(line)
    table = Table("tensor", "type", "shape", "count", "bytes", box=None, header_style="bold")
    for (name, dtype, shape), members in groups.items():
        size = human_bytes(sum(m.nbytes for m in members))
        table.add_row(name, dtype, " x ".join(map(str, shape)), str(len(members)), size)
    return table
