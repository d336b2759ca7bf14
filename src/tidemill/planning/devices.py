"""Devices as data: what hardware can do, with the source of every number."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.base.errors import config_error
from tidemill.base.files import open_regular
from tidemill.base.sizes import parse_size

TYPES = ("float32", "bfloat16", "int8")
"""Arithmetic by type; ``int8`` is any of 8 bits (INT8, FP8)."""

_EIGHT_BITS = ("q8_0", "int8", "i8", "f8_e4m3", "f8_e5m2")
_MAX_FILE_BYTES = 2**20
_GIGA, _TERA = 1e9, 1e12

BEYOND = 2.0
"""Weights that differ by this factor from those measured are extrapolated."""


@dataclass(frozen=True, slots=True)
class Attainment:
    """How much of a device's published peaks an engine attains, fitted to published measurements.

    Attributes:
        read: share of the bandwidth at which weights and cache are read.
        compute: share of the arithmetic at which large matrix products run.
        layer_seconds: per layer and step, what neither hides: launches and small operations.
        spread: relative: nine of ten measurements lie within prediction / (1 + spread) and
            prediction * (1 + spread).
        basis: what it was fitted to.
        weights: (least, most) bytes of the weights of models that it was fitted to or checked with:
            other sizes are extrapolated.
    """

    read: float
    compute: float
    layer_seconds: float
    spread: float
    basis: str
    weights: tuple[float, float] = (0.0, math.inf)

    def beyond(self, nbytes: float) -> str | None:
        """What weights of so many bytes extrapolate, in words; None for nothing."""
        least, most = self.weights
        if least / BEYOND <= nbytes <= most * BEYOND:
            return None
        return (
            f"weights of {nbytes / _GIGA:.3g} GB (measured: {least / _GIGA:.3g} to "
            f"{most / _GIGA:.3g} GB)"
        )


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        name: as `--device` takes it.
        memory: bytes.
        bandwidth: bytes per second, as published.
        flops: operations per second by type (`TYPES`), dense, as published; of a machine that was
            measured also by type of quantized weights (``q4_0``).
        watts: of the device under load, as published.
        price: US dollars per hour; None: not known.
        attainment: see `Attainment`.
        source: of the numbers.
    """

    name: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    watts: float | None
    price: float | None
    attainment: Attainment
    source: str

    def rate(self, weight_type: str) -> float:
        """Operations per second for weights of a type.

        Narrower types are multiplied in 8 bits, or widened to bfloat16, where nothing is said.
        """
        if weight_type in self.flops:
            return self.flops[weight_type]
        wide = "float32" if weight_type == "float32" else "bfloat16"
        kinds = ("int8", wide) if weight_type in _EIGHT_BITS else (wide,)
        return self.flops[next((kind for kind in kinds if kind in self.flops), "float32")]


_KEYS = {
    "memory", "bandwidth_gbps", "tflops", "watts", "usd_per_hour", "source", "like", "read_share",
    "compute_share", "layer_microseconds", "spread",
}  # fmt: skip


def read_devices(path: Path, known: Mapping[str, Device]) -> dict[str, Device]:
    """Devices of a TOML file: a table per device, as docs/planning.md describes.

    Args:
        known: devices whose attainment `like` may name.

    Raises:
        TidemillError: CONFIG naming the table and key.
    """
    try:
        with open_regular(path) as file:
            document = tomllib.loads(file.read(_MAX_FILE_BYTES).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise config_error("devices", f"{path}: cannot be read as TOML: {error}") from error
    return {name: _device(name, table, known) for name, table in document.items()}


def _device(name: str, table: Any, known: Mapping[str, Device]) -> Device:
    def wrong(key: str, what: str) -> Exception:
        return config_error("devices", f"device {name!r}: {key} {what}")

    if not isinstance(table, dict):
        raise wrong("it", "must be a table")
    for key in table.keys() - _KEYS:
        raise wrong(key, f"is unknown; there are {', '.join(sorted(_KEYS))}")

    def number(key: str, default: float | None = None) -> float:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise wrong(key, "must be a number above 0")
        return float(value)

    tflops = table.get("tflops")
    if not isinstance(tflops, dict) or not tflops or not tflops.keys() <= set(TYPES):
        raise wrong("tflops", f"must be a table with some of {', '.join(TYPES)}")
    for kind, value in tflops.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise wrong(f"tflops.{kind}", "must be a number above 0")
    if "float32" not in tflops and "bfloat16" not in tflops:
        raise wrong("tflops", "needs float32 or bfloat16")
    like = table.get("like")
    if like is not None and like not in known:
        raise wrong("like", f"names no device; there are {', '.join(known)}")
    base = None if like is None else known[like].attainment
    try:
        memory = parse_size(str(table.get("memory", "")))
    except ValueError:
        raise wrong("memory", "must be a size such as 80GiB") from None
    flops = {kind: float(value) * _TERA for kind, value in tflops.items()}
    if "float32" not in flops:
        flops["float32"] = flops["bfloat16"] / 2
    return Device(
        name=name,
        memory=memory,
        bandwidth=number("bandwidth_gbps") * _GIGA,
        flops=flops,
        watts=number("watts") if "watts" in table else None,
        price=number("usd_per_hour") if "usd_per_hour" in table else None,
        attainment=Attainment(
            number("read_share", base.read if base else None),
            number("compute_share", base.compute if base else None),
            number("layer_microseconds", base.layer_seconds * 1e6 if base else None) / 1e6,
            number("spread", base.spread if base else 1.0),
            f"as {like}" if like else f"shares given in {_file_word(table)}",
            base.weights if base else (0.0, math.inf),
        ),
        source=str(table.get("source", "not given")),
    )


def _file_word(table: Mapping[str, Any]) -> str:
    return f"the devices file ({table['source']})" if "source" in table else "the devices file"
