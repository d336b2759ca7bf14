"""What a model is, in the words of /api/show and /api/tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tidemill.server.host.made import NOT_SAID, Made
from tidemill.server.host.served import ServedModel
from tidemill.text.fill_middle import fill_marks

if TYPE_CHECKING:
    from tidemill.base.vector_data import VectorData
    from tidemill.generation.preset import Preset
    from tidemill.server.host.engine_loader import Described
    from tidemill.text.answering import ChatSide
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

_MANY = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

NOT_KNOWN: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
"""`details` of a model whose files were never opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a model, loaded or not; see `EngineInfo` and `ServedModel`."""

    name: str
    family: str
    parameters: int
    hidden_size: int
    vocab_size: int
    context: int
    dtype: str
    quantization: str
    generates: bool
    gguf: bool
    vectors: VectorData
    tokenizer: Tokenizer
    template: ChatTemplate
    chat: ChatSide
    defaults: Mapping[str, float | int]
    preset: Preset
    made: Made = NOT_SAID
    pipeline: bool = False

    @classmethod
    def of_loaded(cls, model: ServedModel) -> Facts:
        """Of a model that is loaded."""
        info = model.info
        return cls(
            name=model.name,
            family=info.family,
            parameters=info.parameters,
            hidden_size=info.hidden_size,
            vocab_size=info.vocab_size,
            context=info.max_model_len,
            dtype=info.dtype,
            quantization=info.quantization,
            generates=info.generates,
            gguf=any(file.path.endswith(".gguf") for file in info.files),
            vectors=info.vectors,
            tokenizer=model.tokenizer,
            template=model.template,
            chat=model.chat,
            defaults=model.defaults,
            preset=model.preset,
            made=model.made,
            pipeline=model.pipeline is not None,
        )

    @classmethod
    def of_files(cls, name: str, described: Described) -> Facts:
        """Of a model that is not."""
        facts, text = described.facts, described.text
        return cls(
            name=name,
            family=facts.family,
            parameters=facts.parameters,
            hidden_size=facts.hidden_size,
            vocab_size=facts.vocab_size,
            context=described.context,
            dtype=facts.dtype,
            quantization=facts.quantization,
            generates=facts.generates,
            gguf=described.gguf,
            vectors=facts.vectors,
            tokenizer=text.tokenizer,
            template=text.template,
            chat=text.chat,
            defaults=text.defaults,
            preset=text.preset,
            made=described.made,
        )


def shown_model(facts: Facts) -> dict[str, Any]:
    """The answer of /api/show, without `modified_at`."""
    family, preset = facts.family or "model", facts.preset
    of_family: dict[str, Any] = {
        "context_length": facts.context,
        "embedding_length": facts.hidden_size,
        "vocab_size": facts.vocab_size,
    }
    return {
        "license": facts.made.licence,
        "modelfile": "\n".join(_modelfile(facts)),
        "parameters": "\n".join(_parameters(facts)),
        "template": facts.template.source or "",
        "details": details_of(facts),
        "model_info": {
            "general.architecture": family,
            "general.basename": facts.name,
            **({"general.parameter_count": facts.parameters} if facts.parameters else {}),
            **{f"{family}.{name}": value for name, value in of_family.items()},
        },
        "capabilities": _capabilities(facts),
        **({"system": preset.system} if preset.system else {}),
        **({"messages": list(preset.messages)} if preset.messages else {}),
    }


def _modelfile(facts: Facts) -> list[str]:
    """A Modelfile that makes the model again where its base and its adapters are; those are named
    without their folders, which are no client's business."""
    made, preset = facts.made, facts.preset
    return [
        f"FROM {made.base or facts.name}",
        *(f"ADAPTER {PurePath(path).name}" for path in made.adapters),
        *([f"SYSTEM {_quoted(preset.system)}"] if preset.system else []),
        *_parameters(facts, "PARAMETER "),
        *(f"MESSAGE {m['role']} {_quoted(m['content'])}" for m in preset.messages),
        *([f"LICENSE {_quoted(made.licence)}"] if made.licence else []),
    ]


def _quoted(text: str) -> str:
    return f'"""{text}"""'


def details_of(facts: Facts) -> dict[str, Any]:
    """`details` of a model."""
    kept = facts.dtype if facts.quantization == "none" else facts.quantization
    return {
        **NOT_KNOWN,
        "parent_model": facts.made.base,
        "format": "gguf" if facts.gguf else "safetensors",
        "family": facts.family,
        "families": [facts.family] if facts.family else [],
        "parameter_size": _rounded(facts.parameters) if facts.parameters else "",
        "quantization_level": _FLOATS.get(kept, kept.upper()),
    }


def _capabilities(facts: Facts) -> list[str]:
    if facts.pipeline:
        return ["completion"]
    if not facts.generates:
        return ["embedding"] if facts.vectors.head != "score" else []
    tools = facts.chat.tool_abilities.tools and facts.chat.calls
    return [
        "completion",
        *(["insert"] if fill_marks(facts.tokenizer) is not None else []),
        *(["tools"] if tools else []),
        *(["thinking"] if facts.chat.thinks else []),
    ]


def _parameters(facts: Facts, before: str = "") -> list[str]:
    """What is set for requests that say nothing, by Ollama's names."""
    values = {**facts.defaults, **facts.preset.sampling}
    if facts.made.context is not None:
        values["num_ctx"] = facts.made.context
    names = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
    return [
        f"{before}{names.get(name, name)} {json.dumps(one)}"
        for name, value in values.items()
        for one in (value if isinstance(value, list | tuple) else [value])
        if isinstance(one, int | float | str)
    ]


def _rounded(count: int) -> str:
    """A number of parameters as people write it: ``7.6B``, ``494.03M``."""
    unit, letter = next(((u, letter) for u, letter in _MANY if count >= u), (1.0, ""))
    digits = 1 if unit >= 1e9 else 2
    return f"{count / unit:.{digits}f}{letter}" if letter else str(count)
