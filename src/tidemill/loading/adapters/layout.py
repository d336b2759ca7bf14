"""The files of an adapter in PEFT's layout."""

from __future__ import annotations

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"  # of older versions of PEFT
