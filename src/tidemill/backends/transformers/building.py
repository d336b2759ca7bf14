"""Builds a transformers model from a config and tensors that Tidemill has read.

Transformers receives no path, so it reads no file, downloads nothing and runs no code of the
checkpoint.
"""

from __future__ import annotations

import json
import os
from typing import Any

# Transformers reads this at import. Without it, its layers would download kernels from the hub.
os.environ["USE_HUB_KERNELS"] = "NO"

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from tidemill.backends.torch.place import to_torch
from tidemill.base.errors import ErrorKind, TidemillError, model_file_error, unsupported
from tidemill.models.foreign import Foreign
from tidemill.models.tensors import TensorMap

_SHOWN = 3


def build(
    foreign: Foreign, tensors: TensorMap, dtype: torch.dtype, device: torch.device
) -> tuple[Any, tuple[str, ...]]:
    """The model in evaluation mode on its device, and notes for the user.

    Args:
        foreign: the model's config and architecture.
        tensors: by their names in the checkpoint.
        dtype: type of all its floats.
        device: device of its weights.

    Raises:
        TidemillError: UNSUPPORTED for a model that transformers does not know, MODEL_FILE when
            config or weights do not match the model, RESOURCE when memory is insufficient.
    """
    quiet: Any = transformers_logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    config = _config(foreign)
    kind = _class_of(foreign, config)
    state = {name: to_torch(tensors[name], dtype) for name in tensors}
    try:
        model, report = kind.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # rejected below, by name
            local_files_only=True,
        )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise TidemillError(
            ErrorKind.RESOURCE, "the model's weights do not fit into memory", param="model"
        ) from error
    except Exception as error:  # any error of a model's code on an inconsistent config
        raise model_file_error(
            f"transformers {transformers.__version__} cannot build {foreign.architecture}: {error}"
        ) from error
    _check(foreign, report)
    unused = sorted(report["unexpected_keys"])
    notes = []
    if unused:
        notes.append(
            f"transformers has no use for {len(unused)} of the checkpoint's tensors "
            f"({_some(unused)})"
        )
    return model.to(device).eval().requires_grad_(False), tuple(notes)


def _config(foreign: Foreign) -> Any:
    values = json.loads(foreign.config)
    model_type = values["model_type"]
    version = transformers.__version__
    if model_type not in CONFIG_MAPPING:
        raise unsupported(
            "model_type",
            f"transformers {version} does not know models of type {str(model_type)[:80]!r}; a "
            "newer one may (a checkpoint's own code, trust_remote_code, is never run)",
        )
    try:
        return CONFIG_MAPPING[model_type].from_dict(values)
    except Exception as error:
        raise model_file_error(
            f"config.json: transformers {version} does not take it as a {model_type!r}: {error}"
        ) from error


def _class_of(foreign: Foreign, config: Any) -> Any:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise unsupported(
            "architectures",
            f"for transformers {transformers.__version__}, {foreign.architecture} is no causal "
            "language model",
        )
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if kind.__name__ != foreign.architecture and not foreign.architecture.endswith(
        ("ForCausalLM", "LMHeadModel")
    ):
        raise unsupported(
            "architectures",
            f"{foreign.architecture} is not a causal language model: transformers would run it as "
            f"{kind.__name__}, which is another model",
        )
    return kind


def _check(foreign: Foreign, report: dict[str, Any]) -> None:
    for kind, words in (("missing_keys", "are missing"), ("mismatched_keys", "have other shapes")):
        found = sorted(key if isinstance(key, str) else key[0] for key in report[kind])
        if found:
            raise model_file_error(
                f"{len(found)} tensors of {foreign.architecture} {words} in the checkpoint: "
                f"{_some(found)}"
            )
    if report["error_msgs"]:
        raise model_file_error(f"{foreign.architecture}: {report['error_msgs'][0]}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
