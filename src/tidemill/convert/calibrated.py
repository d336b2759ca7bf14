"""Conversion of a folder to one quantized by GPTQ or AWQ, calibrated on a text."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import numpy as np

from tidemill.base.errors import bad_request, unsupported
from tidemill.convert.calibrate.model import METHODS, Quantizer
from tidemill.convert.calibrate.tensors import calibrated_tensors, stored_name
from tidemill.convert.folder.side_files import copy_side_files
from tidemill.convert.folder.writer import write_safetensors
from tidemill.convert.report import Report
from tidemill.loading.checkpoint import open_model
from tidemill.text.tokenizer import Tokenizer

SEQUENCE, SEQUENCES = 512, 128


def folder_to_calibrated(
    source: Path, out: Path, kind: str, act_order: bool, text: str, report: Report
) -> tuple[int, int]:
    """Quantize a folder into another folder; an interrupted run is resumed layer by layer.

    Args:
        kind: a key of `METHODS`.
        act_order: see `rounding.gptq`.
        text: what the model is calibrated on.

    Returns:
        The number of calibration sequences, and their length in tokens.

    Raises:
        TidemillError: UNSUPPORTED for a model that cannot be calibrated, BAD_REQUEST for a text
            that is too short.
    """
    files = open_model(source)
    if files.other_parts:
        raise unsupported("model", "a model with a vision part is not quantized with a calibration "
                          "text; --type int8 or int4-g32 keeps that part as it is")  # fmt: skip
    for place in (*files.tensors.places.values(), *files.head_tensors.values()):
        stored_name(place)
    length = min(SEQUENCE, files.spec.max_positions)
    ids = np.array(Tokenizer(files.tokenizer).encode(text)[: length * SEQUENCES], np.int64)
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
    with report.bar("layers", len(files.spec.layers), False) as tell:
        quantizer.run(tell)
    tensors = calibrated_tensors(files, quantizer)
    with report.writing(tensors) as tell:
        write_safetensors(out, tensors, identity, tell)
    copy_side_files(source, out, method.config())
    shutil.rmtree(scratch)
    return len(sequences), length
