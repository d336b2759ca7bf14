"""Writes a model in another type or container: the way from any source to any result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.base.errors import config_error, unsupported
from tidemill.convert.calibrate.model import METHODS
from tidemill.convert.calibrated import folder_to_calibrated
from tidemill.convert.folder.integers import TYPES
from tidemill.convert.gguf.tensors import GGUF_TYPES
from tidemill.convert.output import Loss, check_target
from tidemill.convert.report import SILENT, Report
from tidemill.convert.to_folder import FLOATS, folder_to_folder, gguf_to_folder, merged_folder
from tidemill.convert.to_gguf import folder_to_gguf, gguf_to_gguf, merged_gguf
from tidemill.loading.locate import locate

# llama.cpp's names of mixtures -> the equivalent types here.
_LLAMA_CPP = {"q4_k_s": "q4_k"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """A type to quantize to, which its container has.

    Attributes:
        kind: a key of `GGUF_TYPES` (a GGUF file), or of `TYPES` or `METHODS` (a folder).
        act_order: of GPTQ; see `rounding.gptq`.
    """

    kind: str
    act_order: bool = False

    @classmethod
    def of(
        cls, name: str, out: Path, *, calibrated: bool = False, act_order: bool = False
    ) -> Quantization:
        """The quantization that options of `tidemill quantize` name.

        Args:
            name: --type, in any case.
            out: the result; a GGUF file by its suffix, else a folder.
            calibrated: whether there is a calibration text.

        Raises:
            TidemillError: CONFIG for an unknown type, and for options that contradict it.
        """
        kind = _LLAMA_CPP.get(name.lower(), name.lower())
        gguf = _is_gguf(out)
        known = (*GGUF_TYPES,) if gguf else (*TYPES, *METHODS)
        if kind not in known:
            what = "a GGUF file" if gguf else "a folder (for GGUF end its name in .gguf)"
            raise config_error(
                "type", f"--type {name!r} is not known for {what}; it is {', '.join(known)}"
            )
        if calibrated != (kind in METHODS):
            which = ", ".join(METHODS)
            raise config_error("calibrate", f"--calibrate TEXT belongs to the types {which}, and "
                               "they need it")  # fmt: skip
        if act_order and not kind.startswith("gptq"):
            raise config_error("act_order", "--act-order belongs to the gptq types")
        return cls(kind, act_order)


@dataclass(frozen=True, slots=True)
class Written:
    """A finished conversion.

    Attributes:
        source: path of the model that was read.
        loss: error of the weights that were rounded to nearest; empty if there are none.
        calibration: number of calibration sequences and their length in tokens, or None.
    """

    source: Path
    loss: Loss
    calibration: tuple[int, int] | None = None


def quantize(
    model: str | Path,
    out: Path,
    quantization: Quantization,
    text: str | None = None,
    *,
    overwrite: bool = False,
    report: Report = SILENT,
) -> Written:
    """Write a model with its matrices rounded to fewer bits; an interrupted run is resumed.

    Args:
        model: as `locate` takes it.
        out: a name that ends in ``.gguf``, or a folder.
        text: the calibration text, for types that need one.

    Raises:
        TidemillError: CONFIG for a target that may not be written, UNSUPPORTED if the container
            cannot represent the model, BAD_REQUEST for a calibration text that is too short.
    """
    if text is None:
        return _write(model, out, quantization.kind, None, overwrite, report)
    source, _ = locate(model)
    if not source.is_dir():
        raise unsupported("model", "a folder is quantized with a calibration text, no GGUF file")
    check_target(out, source, overwrite)
    kind, act_order = quantization.kind, quantization.act_order
    calibration = folder_to_calibrated(source, out, kind, act_order, text, report)
    return Written(source, Loss(), calibration)


def convert(
    model: str | Path,
    out: Path,
    dequantize: str | None = None,
    *,
    adapter: Path | None = None,
    overwrite: bool = False,
    report: Report = SILENT,
) -> Written:
    """Write a model in another container, every value kept.

    Args:
        model, out: see `quantize`.
        dequantize: a key of `FLOATS`, for the quantized weights of a GGUF file, which a folder
            cannot hold.
        adapter: merged into the weights; see `open_adapter`.

    Raises:
        TidemillError: see `quantize`, `open_adapter` and `merge.merged`.
    """
    if dequantize is not None and dequantize not in FLOATS:
        known = ", ".join(FLOATS)
        raise config_error("dequantize", f"--dequantize {dequantize!r} is not known; it is {known}")
    return _write(model, out, None, dequantize, overwrite, report, adapter)


def _is_gguf(out: Path) -> bool:
    return out.suffix == ".gguf"


def _write(
    model: str | Path, out: Path, kind: str | None, dequantize: str | None, overwrite: bool,
    report: Report, adapter: Path | None = None,
) -> Written:  # fmt: skip
    source, _ = locate(model)
    check_target(out, source, overwrite)
    loss = Loss()
    from_gguf, to_gguf = source.is_file(), _is_gguf(out)
    if dequantize is not None and (to_gguf or not from_gguf):
        raise config_error("dequantize", "--dequantize belongs to a GGUF file written as a folder")
    if to_gguf and not from_gguf:
        folder_to_gguf(source, out, kind, loss, report, adapter)
    elif to_gguf and adapter is not None:
        merged_gguf(source, out, adapter, loss, report)
    elif to_gguf:
        gguf_to_gguf(source, out, kind, loss, report)
    elif not from_gguf and adapter is not None:
        merged_folder(source, out, adapter, report)
    elif not from_gguf:
        folder_to_folder(source, out, kind, loss, report)
    elif kind is None:
        gguf_to_folder(source, out, dequantize, report, adapter)
    else:
        raise unsupported(
            "out", "a quantized folder is made from a folder: convert the GGUF file to one first"
        )
    return Written(source, loss)
