"""`tidemill quantize --calibrate`: GPTQ and AWQ."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import click

SEQUENCE, SEQUENCES = 512, 128


def write_calibrated(
    model: str, out: Path, kind: str, text: str, act_order: bool, overwrite: bool
) -> Path:
    """Quantize a folder into another folder; returns the source's path."""
    import shutil

    import numpy as np

    from tidemill.base.errors import bad_request, unsupported
    from tidemill.cli.quantize import Bar, copy_side, writing_bar
    from tidemill.convert.calibrate.model import METHODS, Quantizer
    from tidemill.convert.calibrate.tensors import calibrated_tensors, stored_name
    from tidemill.convert.folder.writer import write_safetensors
    from tidemill.convert.output import check_target
    from tidemill.loading.locate import locate
    from tidemill.offline.opened import OpenedModel

    source, _ = locate(model)
    if not source.is_dir():
        raise unsupported("model", "a folder is quantized with a calibration text, no GGUF file")
    check_target(out, source, overwrite)
    opened = OpenedModel.open(source)
    files = opened.files
    if files.other_parts:
        raise unsupported("model", "a model with a vision part is not quantized with a calibration "
                          "text; --type int8 or int4-g32 keeps that part as it is")  # fmt: skip
    for place in files.tensors.places.values():
        stored_name(place)
    length = min(SEQUENCE, files.spec.max_positions)
    ids = np.array(opened.text.tokenizer.encode(text)[: length * SEQUENCES], np.int64)
    if len(ids) < length:
        raise bad_request("calibrate", f"the text has {len(ids)} tokens; at least {length} are "
                          "needed, and some ten thousand do well")  # fmt: skip
    sequences = list(ids[: len(ids) // length * length].reshape(-1, length))
    method = dataclasses.replace(METHODS[kind], act_order=act_order)
    digest = hashlib.sha256(ids.tobytes()).hexdigest()
    identity = f"{files.digest().hex()} {method} {digest}"
    out.mkdir(exist_ok=True)
    scratch = out / "calibration.part"
    quantizer = Quantizer(files, method, sequences, scratch, identity)
    with Bar("layers", len(files.spec.layers)) as bar:
        quantizer.run(bar.tell)
    tensors = calibrated_tensors(files, quantizer)
    with writing_bar(tensors) as writing:
        write_safetensors(out, tensors, identity, writing.tell)
    copy_side(source, out, method.config())
    shutil.rmtree(scratch)
    click.echo(f"{out} written, calibrated on {len(sequences)} times {length} tokens")
    return source
