"""PEFT's adapter_config.json of a LoRA: what it says about scales, and what is not supported.

A key that is unknown, or that changes what an adapter computes and is not read, is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.models.adapters import MAX_RANK

# Settings of the training, and others that do not change what the saved tensors mean.
_NEUTRAL = frozenset((
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "lora_ga_config",
    "loftq_config", "megatron_config", "megatron_core", "modules_to_save", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
    "fan_in_fan_out", "bias", "lora_bias",
))  # fmt: skip
_READ = frozenset((
    "peft_type", "r", "lora_alpha", "use_dora", "use_rslora", "rank_pattern", "alpha_pattern",
    "init_lora_weights", "alora_invocation_tokens", "ensure_weight_tying", "target_parameters",
))  # fmt: skip
# Off by these values; anything else changes the computation in a way that is not built.
_OFF: tuple[object, ...] = (None, False, [], {})
# Starting values that leave the base's weights as they are.
_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
_MAX_PATTERNS = 4096
_MAX_PATTERN = 256
# The part of the regular expressions' language that real patterns use, bounded in time: no repeated
# groups and no counts.
_PATTERN = re.compile(r"[\w.\-\\^$|()\[\]*]*")


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """What a configuration says.

    Attributes:
        rank, alpha: of modules that no pattern names.
        ranks, alphas: (expression, value), in order; the first that matches a name's end applies.
        root: the scale is alpha / sqrt(rank) (rsLoRA) instead of alpha / rank.
        dora: every pair of matrices has a magnitude.
        invocation: see `Adapter`.
        parameters: ends of names of adapted parameters that are no module's weight: experts in one
            tensor (`target_parameters`).
        tied: a changed embedding is the output layer as well (`ensure_weight_tying`).
    """

    rank: int
    alpha: float
    ranks: tuple[tuple[re.Pattern[str], int], ...] = ()
    alphas: tuple[tuple[re.Pattern[str], float], ...] = ()
    root: bool = False
    dora: bool = False
    invocation: tuple[int, ...] | None = None
    parameters: tuple[str, ...] = ()
    tied: bool = False

    def rank_of(self, module: str) -> int:
        """The rank of a module, by its name in the base model."""
        return next((v for p, v in self.ranks if p.match(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of B A."""
        alpha = next((v for p, v in self.alphas if p.match(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.root else rank)


def read_settings(config: Mapping[str, Any]) -> LoraSettings:
    """Read adapter_config.json.

    Raises:
        TidemillError: UNSUPPORTED for another kind of adapter and for a key that is not known or
            not supported, MODEL_FILE for an invalid value; `param` is the key.
    """
    kind = config.get("peft_type")
    if kind != "LORA":
        raise unsupported(
            "peft_type",
            f"peft_type {str(kind)[:40]!r} is not supported; LORA, PROMPT_TUNING, P_TUNING "
            "and PREFIX_TUNING are",
        )
    for key, value in config.items():
        if key not in _NEUTRAL and key not in _READ and value not in _OFF:
            raise unsupported(
                key[:80], f"key {key[:80]!r} is not supported; only an empty value of it is"
            )
    start = config.get("init_lora_weights", True)
    if start not in _INITS:
        raise unsupported(
            "init_lora_weights",
            f"init_lora_weights {str(start)[:40]!r} changes the base's weights: save the adapter "
            "for the unchanged base (PEFT's path_initial_model_for_weight_conversion)",
        )
    tokens = config.get("alora_invocation_tokens")
    if tokens is not None and not (
        isinstance(tokens, list) and tokens and all(_natural(t) for t in tokens)
    ):
        raise _invalid("alora_invocation_tokens", "a list of token ids")
    parameters = config.get("target_parameters") or []
    if not isinstance(parameters, list) or not all(isinstance(p, str) for p in parameters):
        raise _invalid("target_parameters", "a list of names")
    return LoraSettings(
        rank=_rank("r", config.get("r", 8)),
        alpha=_alpha("lora_alpha", config.get("lora_alpha", 8)),
        ranks=tuple((p, _rank("rank_pattern", v)) for p, v in _patterns(config, "rank_pattern")),
        alphas=tuple(
            (p, _alpha("alpha_pattern", v)) for p, v in _patterns(config, "alpha_pattern")
        ),
        root=_flag(config, "use_rslora"),
        dora=_flag(config, "use_dora"),
        invocation=None if tokens is None else tuple(tokens),
        parameters=tuple(p for p in parameters if not p.endswith(".weight")),
        tied=_flag(config, "ensure_weight_tying"),
    )


def _patterns(config: Mapping[str, Any], key: str) -> list[tuple[re.Pattern[str], Any]]:
    value = config.get(key) or {}
    if not isinstance(value, dict) or len(value) > _MAX_PATTERNS:
        raise _invalid(key, f"an object of at most {_MAX_PATTERNS} module names")
    found = []
    for text, number in value.items():
        if (
            len(text) > _MAX_PATTERN
            or not _PATTERN.fullmatch(text)
            or ")*" in text
            or text.count("*") > 2
        ):
            raise unsupported(
                key,
                f"{key}: the expression {text[:80]!r} is not supported; names, alternatives and at "
                "most two * are",
            )
        try:
            found.append((re.compile(rf"(?:.*\.)?(?:{text})$"), number))
        except re.error as error:
            raise _invalid(key, f"regular expressions ({text[:80]!r}: {error})") from error
    return found


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value not in (None, True, False) or isinstance(value, int | float) > isinstance(value, bool):
        raise _invalid(key, "true or false")
    return bool(value)


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _rank(key: str, value: Any) -> int:
    if not _natural(value) or not 1 <= value <= MAX_RANK:
        raise _invalid(key, f"an integer from 1 to {MAX_RANK}")
    return int(value)


def _alpha(key: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -1e6 <= value <= 1e6:
        raise _invalid(key, "a number within 1e6 of 0")
    return float(value)


def _invalid(key: str, wanted: str) -> TidemillError:
    return model_file_error(f"{key} must be {wanted}", param=key)
