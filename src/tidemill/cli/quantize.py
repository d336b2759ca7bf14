"""`tidemill quantize` and `tidemill convert`: write a model in another type or container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.cli.declared import argument, option

if TYPE_CHECKING:
    from tidemill.convert.compare import Comparison
    from tidemill.convert.pipeline import Written

MODEL = argument(..., help="A Hugging Face folder, a .gguf file, or a name.")
OUT = argument(..., help="What to write: a name that ends in .gguf, or a folder.")
OVERWRITE = option(False, "--overwrite", help="Replace OUT if it exists.")


def quantize(
    model: str = MODEL,
    out: Path = OUT,
    type: str = option(
        ...,
        help="q8_0, q4_0, q4_k (also q4_k_s) or q6_k (GGUF); int8, int4-g32, int4-g64 or int4-g128 "
        "(a folder); with --calibrate also gptq or awq with -g32, -g64 or -g128; in any case.",
    ),
    calibrate: Path | None = option(
        None, help="A text file to calibrate on, of the kind that the model is used for."
    ),
    act_order: bool = option(
        False, "--act-order", help="Of gptq: columns of the largest inputs first."
    ),
    check: Path | None = option(
        None, help="A text file: compare perplexity and distributions with the source on it."
    ),
    overwrite: bool = OVERWRITE,
) -> None:
    """Write a model with its matrices rounded to fewer bits; an interrupted run is taken up."""
    from tidemill.cli.defined import files_of
    from tidemill.cli.progress import bar
    from tidemill.convert import pipeline
    from tidemill.convert.report import Report

    chosen = pipeline.Quantization.of(
        type, out, calibrated=calibrate is not None, act_order=act_order
    )
    text = None if check is None else _text(check, "check")
    sample = None if calibrate is None else _text(calibrate, "calibrate")
    report = Report(click.echo, bar)
    source = files_of(model) or model
    written = pipeline.quantize(source, out, chosen, sample, overwrite=overwrite, report=report)
    _show(out, written)
    if text is not None:
        from tidemill.convert.compare import compare_on

        _show_comparison(compare_on(text, written.source, out))


def convert(
    model: str = MODEL,
    out: Path = OUT,
    overwrite: bool = OVERWRITE,
    dequantize: str | None = option(
        None,
        help="From GGUF to a folder: write quantized weights as f32 (exact), bf16 or f16; they are "
        "refused without it.",
    ),
    merge: Path | None = option(
        None,
        help="An adapter (a folder of PEFT's, or a GGUF LoRA file) to merge into the weights.",
    ),
) -> None:
    """Write a model in another container, every value kept, or with an adapter merged."""
    from tidemill.cli.defined import files_of
    from tidemill.cli.progress import bar
    from tidemill.convert import pipeline
    from tidemill.convert.report import Report

    report = Report(click.echo, bar)
    source = files_of(model) or model
    written = pipeline.convert(
        source, out, dequantize, adapter=merge, overwrite=overwrite, report=report
    )
    _show(out, written)


def _text(path: Path, option: str) -> str:
    from tidemill.base.errors import config_error

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise config_error(option, f"--{option} {path} cannot be read as text: {error}") from error


def _show(out: Path, written: Written) -> None:
    line = f"{out} written"
    if written.calibration is not None:
        count, length = written.calibration
        line += f", calibrated on {count} times {length} tokens"
    loss = written.loss
    if loss.size:
        line += (
            f"; relative error of the quantized weights {loss.relative:.2%}, "
            f"{loss.worst[0]:.2%} in {loss.worst[1]}"
        )
    click.echo(line)


def _show_comparison(found: Comparison) -> None:
    click.echo(
        f"on {found.tokens} tokens: perplexity {found.perplexity:.3f} (source "
        f"{found.source_perplexity:.3f}), KL divergence {found.divergence:.4f} nats per token, the "
        f"same first choice at {found.same_choice:.1%}"
    )
