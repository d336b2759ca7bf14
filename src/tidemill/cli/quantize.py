"""`tidemill quantize` and `tidemill convert`: write a model in another type or container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.declared import argument, option

if TYPE_CHECKING:
    from tidemill.convert.output import Loss, OutTensor
    from tidemill.loading.gguf import GgufFile
    from tidemill.loading.parts import ModelFiles

MODEL = argument(..., help="A Hugging Face folder, a .gguf file, or a name.")
OUT = argument(..., help="What to write: a name that ends in .gguf, or a folder.")
OVERWRITE = option(False, "--overwrite", help="Replace OUT if it exists.")
CHECK_TOKENS = 1024
# llama.cpp's names of mixtures -> the equivalent types here.
_LLAMA_CPP = {"q4_k_s": "q4_k"}


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
    from tidemill.base.errors import config_error
    from tidemill.convert.calibrate.model import METHODS
    from tidemill.convert.folder.integers import TYPES
    from tidemill.convert.plan import GGUF_TYPES

    gguf = out.suffix == ".gguf"
    given, type = type, _LLAMA_CPP.get(type.lower(), type.lower())
    if type not in (GGUF_TYPES if gguf else {**TYPES, **METHODS}):
        known = ", ".join(GGUF_TYPES if gguf else (*TYPES, *METHODS))
        what = "a GGUF file" if gguf else "a folder (for GGUF end its name in .gguf)"
        raise config_error("type", f"--type {given!r} is not known for {what}; it is {known}")
    if (calibrate is not None) != (type in METHODS):
        which = ", ".join(METHODS)
        raise config_error("calibrate", f"--calibrate TEXT belongs to the types {which}, and they "
                           "need it")  # fmt: skip
    if act_order and not type.startswith("gptq"):
        raise config_error("act_order", "--act-order belongs to the gptq types")
    text = None if check is None else _text(check, "check")
    if calibrate is None:
        source = _write(model, out, type, overwrite)
    else:
        from tidemill.cli.calibrate import write_calibrated

        sample = _text(calibrate, "calibrate")
        source = write_calibrated(model, out, type, sample, act_order, overwrite)
    if text is not None:
        _compare(source, out, text)


def convert(
    model: str = MODEL,
    out: Path = OUT,
    overwrite: bool = OVERWRITE,
    dequantize: str | None = option(
        None,
        help="From GGUF to a folder: write quantized weights as f32 (exact), bf16 or f16; they are "
        "refused without it.",
    ),
) -> None:
    """Write a model in another container, every value kept."""
    from tidemill.base.errors import config_error
    from tidemill.cli.to_folder import FLOATS

    if dequantize is not None and dequantize not in FLOATS:
        known = ", ".join(FLOATS)
        raise config_error("dequantize", f"--dequantize {dequantize!r} is not known; it is {known}")
    _write(model, out, None, overwrite, dequantize)


def _text(path: Path, option: str) -> str:
    from tidemill.base.errors import config_error

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise config_error(option, f"--{option} {path} cannot be read as text: {error}") from error


def _write(
    model: str, out: Path, kind: str | None, overwrite: bool, dequantize: str | None = None
) -> Path:
    """Write the model and report the quantization error; returns the source's path."""
    from tidemill.base.errors import config_error, unsupported
    from tidemill.cli.to_folder import gguf_to_folder
    from tidemill.convert.output import Loss, check_target
    from tidemill.loading.locate import locate

    source, _ = locate(model)
    check_target(out, source, overwrite)
    loss = Loss()
    back = source.is_file() and out.suffix != ".gguf"
    if dequantize is not None and not back:
        raise config_error("dequantize", "--dequantize belongs to a GGUF file written as a folder")
    if back:
        if kind is not None:
            raise unsupported(
                "out",
                "a quantized folder is made from a folder: convert the GGUF file to one first",
            )
        gguf_to_folder(source, out, dequantize)
    elif source.is_file():
        _from_gguf(source, out, kind, loss)
    elif out.suffix == ".gguf":
        _to_gguf(source, out, kind, loss)
    else:
        _to_folder(source, out, kind, loss)
    line = f"{out} written"
    if loss.size:
        line += (
            f"; relative error of the quantized weights {loss.relative:.2%}, "
            f"{loss.worst[0]:.2%} in {loss.worst[1]}"
        )
    click.echo(line)
    return source


def _from_gguf(source: Path, out: Path, kind: str | None, loss: Loss) -> None:
    from tidemill.convert.plan import from_gguf
    from tidemill.loading.gguf_split import read_model

    file = read_model(source)
    metadata = {k: v for k, v in file.metadata.items() if not k.startswith("split.")}
    _save_gguf(out, metadata, list(from_gguf(file, kind, loss)), _identity(file, kind))


def _identity(file: GgufFile, kind: str | None) -> str:
    stats = sorted({(str(t.file.path), t.file.size) for t in file.tensors.values()})
    times = [Path(path).stat().st_mtime_ns for path, _ in stats]
    return f"{stats} {times} {kind}"


def _to_gguf(source: Path, out: Path, kind: str | None, loss: Loss) -> None:
    from dataclasses import replace

    from tidemill.convert.gguf.metadata import vocabulary
    from tidemill.convert.gguf.shape import gguf_family, shape_metadata
    from tidemill.convert.plan import to_gguf
    from tidemill.convert.word_rule import check_same, find_rule
    from tidemill.loading.checkpoint import open_model
    from tidemill.loading.gguf_text_side import read_tokenizer
    from tidemill.text.tokenizer import Tokenizer

    files = open_model(source)
    metadata = shape_metadata(files, gguf_family(files))
    data = files.tokenizer
    text = vocabulary(data, files, find_rule(data))
    tokenizer = Tokenizer(data)
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = tokenizer.special_id(f"{role}_token")
        if token is not None:
            text.setdefault(f"tokenizer.ggml.{key}_token_id", token)
    text["tokenizer.ggml.add_bos_token"] = tokenizer.adds("bos_token")
    text["tokenizer.ggml.add_eos_token"] = tokenizer.adds("eos_token")
    check_same(
        replace(data, add_bos=None, add_eos=None),
        read_tokenizer(text),
        "the vocabulary written to GGUF would give other token ids than the model's own; give a "
        "folder as OUT",
    )
    identity = f"{files.digest().hex()} {kind}"
    if files.other_parts:
        click.echo("the vision part is not written: GGUF has a file of its own for it")
    _save_gguf(out, metadata | text, list(to_gguf(files, kind, loss)), identity)


def _save_gguf(
    out: Path, metadata: dict[str, Any], tensors: list[OutTensor], identity: str
) -> None:
    from tidemill.convert.gguf.writer import write_gguf

    with writing_bar(tensors) as bar:
        write_gguf(out, metadata, tensors, identity, bar.tell)


_SIDE_FILES = (
    "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "tiktoken.model",
    "qwen.tiktoken", "o200k_base.tiktoken",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip


def _to_folder(source: Path, out: Path, kind: str | None, loss: Loss) -> None:
    from tidemill.convert.folder.integers import TYPES
    from tidemill.convert.folder.writer import write_safetensors
    from tidemill.convert.plan import to_folder
    from tidemill.loading.checkpoint import open_model

    files: ModelFiles = open_model(source)
    integers = None if kind is None else TYPES[kind]
    tensors, left = to_folder(files, integers, loss)
    out.mkdir(exist_ok=True)
    with writing_bar(tensors) as bar:
        write_safetensors(out, tensors, f"{files.digest().hex()} {kind}", bar.tell)
    section = None
    if integers is not None:
        section = integers.config()
        section["ignore"] += left
    copy_side(source, out, section)


def copy_side(source: Path, out: Path, section: dict[str, Any] | None) -> None:
    """Copy config.json and the side files; `section`, if given, is the ``quantization_config``."""
    import json
    import shutil

    from tidemill.loading.jsonfile import read_object
    from tidemill.loading.schemes import QUANTIZATION_KEYS

    config = read_object(source / "config.json")
    if section is not None:
        config = {k: v for k, v in config.items() if k not in QUANTIZATION_KEYS}
        config["quantization_config"] = section
    (out / "config.json").write_text(json.dumps(config, indent=2))
    for name in _SIDE_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    for template in source.glob("additional_chat_templates/*.jinja"):
        (out / "additional_chat_templates").mkdir(exist_ok=True)
        shutil.copyfile(template, out / "additional_chat_templates" / template.name)


class Bar:
    """A progress bar on a terminal.

    Args:
        title: the label of the bar.
        total: units of work.
        sizes: whether the units are bytes, shown as sizes.
    """

    def __init__(self, title: str, total: int, *, sizes: bool = False) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._bar = Progress(
            title, BarColumn(), DownloadColumn() if sizes else MofNCompleteColumn(),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._bar.stop()

    def tell(self, count: int) -> None:
        """Advance by `count` units."""
        self._bar.advance(self._task, count)


def writing_bar(tensors: list[OutTensor]) -> Bar:
    """A bar over the bytes of the tensors to write."""
    return Bar("writing", sum(t.nbytes for t in tensors), sizes=True)


def _compare(source: Path, out: Path, text: str) -> None:
    import tempfile

    from tidemill.base.errors import bad_request
    from tidemill.convert.compare import compare
    from tidemill.offline.opened import OpenedModel

    opened = OpenedModel.open(source)
    limit = min(CHECK_TOKENS, opened.files.spec.max_positions)
    tokens = opened.text.tokenizer.encode(text[: 16 * limit])[:limit]
    if len(tokens) < 2:
        raise bad_request("check", "the text to compare on has fewer than two tokens")
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        found = compare(source, out, tokens, Path(folder) / "logits.npy")
    click.echo(
        f"on {found.tokens} tokens: perplexity {found.perplexity:.3f} (source "
        f"{found.source_perplexity:.3f}), KL divergence {found.divergence:.4f} nats per token, the "
        f"same first choice at {found.same_choice:.1%}"
    )
