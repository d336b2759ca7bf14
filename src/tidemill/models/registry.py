"""Selects the family that reads a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.dense import Family
from tidemill.models.families import (
    bamba,
    bert,
    bloom,
    cohere,
    deepseek,
    exaone4,
    falcon,
    falcon_h1,
    gemma,
    gemma2,
    gemma4,
    glm4,
    glm4_moe,
    gpt2,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_hybrid,
    granitemoe,
    hunyuan,
    llama,
    llama4,
    llama_likes,
    mamba2,
    ministral,
    ministral3,
    mistral,
    mixtral,
    modernbert,
    mpt,
    nemotron,
    nemotron_h,
    nomic_bert,
    olmo,
    olmo2,
    olmoe,
    opt,
    phi,
    phi3,
    phimoe,
    qwen2,
    qwen3,
    qwen_moe,
    qwen_next,
    smollm3,
    stablelm,
    starcoder2,
)
from tidemill.models.multimodal import ARCHITECTURES as MULTIMODAL

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    ministral.FAMILY,
    ministral3.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    gemma2.GEMMA3,
    gemma4.FAMILY,
    gemma4.UNIFIED,
    phi.FAMILY,
    phi3.FAMILY,
    olmo.FAMILY,
    olmo2.FAMILY,
    granite.FAMILY,
    cohere.FAMILY,
    cohere.COHERE2,
    stablelm.FAMILY,
    starcoder2.FAMILY,
    falcon.FAMILY,
    gpt2.FAMILY,
    gptj.FAMILY,
    gpt_neox.FAMILY,
    opt.FAMILY,
    bloom.FAMILY,
    mpt.FAMILY,
    exaone4.FAMILY,
    glm4.FAMILY,
    glm4.GLM4,
    glm4_moe.FAMILY,
    smollm3.FAMILY,
    nemotron.FAMILY,
    hunyuan.FAMILY,
    llama_likes.INTERNLM2,
    llama_likes.BAICHUAN,
    llama_likes.MINICPM,
    llama_likes.EXAONE,
    mixtral.FAMILY,
    qwen_moe.FAMILY,
    qwen_moe.QWEN3,
    qwen_next.FAMILY,
    qwen_next.QWEN3_5,
    qwen_next.QWEN3_5_MOE,
    olmoe.FAMILY,
    phimoe.FAMILY,
    granitemoe.FAMILY,
    granitemoe.SHARED,
    granite_hybrid.FAMILY,
    bamba.FAMILY,
    nemotron_h.FAMILY,
    nemotron_h.WITH_EXPERTS,
    falcon_h1.FAMILY,
    mamba2.FAMILY,
    gpt_oss.FAMILY,
    deepseek.FAMILY,
    deepseek.V3,
    llama4.FAMILY,
)

# Models that return vectors and do not generate.
ENCODERS: tuple[Family, ...] = (
    bert.FAMILY,
    bert.ROBERTA,
    modernbert.FAMILY,
    nomic_bert.FAMILY,
)

_BY_ARCHITECTURE = {
    name: family for family in (*FAMILIES, *ENCODERS) for name in family.architectures
}
_BY_GGUF = {
    (family.gguf.arch, family.gguf.experts, family.gguf.gating): family
    for family in FAMILIES
    if family.gguf is not None
}


# Endings that replace a causal model's in checkpoints without the output layer.
_HEADLESS = ("ForSequenceClassification", "Model")
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def _causal_name(name: object) -> tuple[str, str]:
    """The architecture's name as a causal language model, and its actual ending: empty, or an entry
    of `_HEADLESS`."""
    text = name if isinstance(name, str) else ""
    if text in _BY_ARCHITECTURE:
        return text, ""
    for suffix in _HEADLESS:
        for causal in _CAUSAL:
            whole = text.removesuffix(suffix) + causal
            if text.endswith(suffix) and whole in _BY_ARCHITECTURE:
                return whole, suffix
    return text, ""


def kind_of(config: Mapping[str, Any]) -> str:
    """Kind of a config.json architecture: ``generate``, ``classify`` or ``vectors`` (headless)."""
    for name in config.get("architectures") or ():
        known, suffix = _causal_name(name)
        if known in _BY_ARCHITECTURE:
            if known.endswith(_HEADLESS[0]) or suffix == _HEADLESS[0]:
                return "classify"
            return "vectors" if suffix or _BY_ARCHITECTURE[known] in ENCODERS else "generate"
    return "generate"


def family_for_config(config: Mapping[str, Any]) -> Family:
    """The family of a config.json's ``architectures``.

    Raises:
        TidemillError: MODEL_FILE when the key is missing, UNSUPPORTED when the family is not known.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise model_file_error(
            "config.json names no architectures; it does not describe a causal language model",
            param="architectures",
        )
    for name in architectures:
        known, _ = _causal_name(name)
        if known in _BY_ARCHITECTURE:
            return _BY_ARCHITECTURE[known]
    raise unsupported(
        "architectures",
        f"architecture {str(architectures[0])[:80]!r} is not supported; "
        f"supported are {', '.join((*_BY_ARCHITECTURE, *MULTIMODAL))}",
    )


def family_for_gguf(metadata: Mapping[str, Any]) -> Family:
    """The family that reads GGUF files of this ``general.architecture``.

    Raises:
        TidemillError: MODEL_FILE when the key is missing, UNSUPPORTED when it is not known.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise model_file_error("the GGUF file has no general.architecture")
    experts = bool(metadata.get(f"{architecture}.expert_count"))
    gating = metadata.get(f"{architecture}.expert_gating_func", 1)
    for wanted in (experts, False, True):
        for rule in (None, gating if isinstance(gating, int) else None):
            if (architecture, wanted, rule) in _BY_GGUF:
                return _BY_GGUF[architecture, wanted, rule]
    known = ", ".join(sorted({name for name, _, _ in _BY_GGUF}))
    raise unsupported(
        "general.architecture",
        f"GGUF architecture {architecture[:80]!r} is not supported; supported are {known}",
    )
