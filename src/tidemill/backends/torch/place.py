"""The torch device, and the transfer of stored weights to it."""

from __future__ import annotations

import torch

from tidemill.backends.base import BackendOptions
from tidemill.base.errors import config_error
from tidemill.models.quantization import to_float32
from tidemill.models.tensors import RawTensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Computing types, by their names in the configuration."""


def open_device(options: BackendOptions) -> torch.device:
    """The configured device. On the CPU it also sets torch's thread count.

    Raises:
        TidemillError: CONFIG when torch cannot use it.
    """
    try:
        device = torch.device(options.device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise config_error("device", f"device {options.device!r}: {error}") from error
    if device.type == "cpu":
        torch.set_num_threads(options.threads)
    return device


def to_torch(
    tensor: RawTensor, dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Values of a stored tensor, on `device` or the CPU."""
    values = to_float32(tensor)
    # A mapped file is read-only memory, which torch rejects.
    owned = values if values.flags.writeable else values.copy()
    return torch.from_numpy(owned).to(device=device, dtype=dtype)
