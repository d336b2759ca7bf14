"""Request bodies of llama.cpp's API."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from tidemill.server.dialects.adapters import LoraScale
from tidemill.server.dialects.biases import LogitBias
from tidemill.server.dialects.fields import Fields
from tidemill.server.dialects.id_lists import Ids
from tidemill.server.dialects.keep_alive import KeepAlive
from tidemill.server.dialects.llamacpp import neutral
from tidemill.server.dialects.members import (
    Body,
    InvalidField,
    checked,
    documented,
    unsupported,
    wrong_type,
    wrong_value,
)
from tidemill.server.dialects.sampler_order import EVERYWHERE, ORDER
from tidemill.server.dialects.sampling_fields import DryBreakers

INFILL = "infill"
_NEVER_ON = ("tfs_z", "mirostat")

_SHORT = {
    **{"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p"},
    **{"p": "top_p", "m": "min_p", "x": "xtc", "t": "temperature", "i": INFILL},
}


def _is_ids(value: object) -> bool:
    return isinstance(value, Ids) or (
        isinstance(value, list) and all(type(one) is int for one in value)
    )


def _check_prompt(value: Any) -> None:
    if isinstance(value, str) or _is_ids(value) or _is_object(value):
        return
    if not isinstance(value, list):
        raise wrong_type("expected a text, token ids, or a list of prompts")
    if not _is_mixed(value) and not all(map(_is_prompt, value)):
        raise wrong_type(
            "a prompt is a text, token ids, or a list of texts and token ids; several prompts are "
            "a list of those"
        )


def _is_prompt(value: object) -> bool:
    """One prompt of several: a text (also as an object), token ids, or a list of texts and ids."""
    return isinstance(value, str) or _is_ids(value) or _is_mixed(value) or _is_object(value)


def _is_object(value: object) -> bool:
    """`{"prompt_string": ...}`; with `multimodal_data` only if there is none."""
    if not isinstance(value, dict) or not isinstance(value.get("prompt_string"), str):
        return False
    return not value.get("multimodal_data") and value.keys() <= {"prompt_string", "multimodal_data"}


def _is_mixed(value: object) -> bool:
    return isinstance(value, list) and all(type(one) in (int, str) for one in value)


def _check_texts(value: Any) -> None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong_type("expected a text or a list of texts")


def samplers_of(value: Any) -> list[str]:
    """The samplers of a list of names, or of a text of llama.cpp's letters for them.

    Raises:
        InvalidField: it has others.
    """
    names = [_SHORT.get(letter, letter) for letter in value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise wrong_type("expected a list of names")
    unknown = [name for name in names if name not in (*ORDER, *_NEVER_ON, INFILL)]
    if unknown:
        raise unsupported(f"the sampler {unknown[0][:32]!r} is not known")
    return names


def check_order(names: list[str], used: Collection[str]) -> None:
    """Raise unless the samplers that are used stand in this server's order.

    Raises:
        InvalidField: they do not.
    """
    places = [ORDER[name] for name in names if name in used]
    if places != sorted(places):
        raise unsupported(
            "this server applies penalties, dry, temperature, then top_n_sigma, top_k, top_p and "
            "min_p in any order, then typ_p and xtc; send the samplers in this order, or without "
            "those that are not needed"
        )


def _check_samplers(value: Any) -> None:
    samplers_of(value)


_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_ANY_TEXTS: dict[str, Any] = {"anyOf": [{"type": "string"}, _TEXTS, {"type": "null"}]}
_PROMPT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array"}]}
Prompt = Annotated[Any, checked(_check_prompt, _PROMPT)]
_OBJECTS = documented({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]})


class LlamaGeneration(Body, kw_only=True):
    """Fields that completion and infill share.

    Attributes:
        n_predict: upper bound of the output; where the context has less room, it ends it.
        n_probs: alternatives of each token whose logprobs are in the answer.
        n_cmpl: answers of each prompt.
        samplers: those that are applied; what is not named is off.
        response_fields: members that the answer has, by their paths (``timings/prompt_n``).
        return_tokens: the answer has the token ids; streams always have them.
        lora: adapters with their scales, added up; those left out get 0.
    """

    known: ClassVar[Fields] = neutral.GENERATION

    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: DryBreakers = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stop: Annotated[Any, checked(_check_texts, _ANY_TEXTS)] = None
    logit_bias: LogitBias = None
    n_probs: int | None = None
    n_cmpl: int | None = None
    samplers: Annotated[Any, checked(_check_samplers, _ANY_TEXTS)] = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    response_fields: list[str] | None = None
    keep_alive: KeepAlive = None
    lora: list[LoraScale] | None = None

    def finalize(self) -> None:
        if self.samplers is not None:
            self._check_order()
        if self.response_fields is not None and self.stream:
            invalid = wrong_value("is for answers that are not streamed")
            invalid.path = "response_fields"
            raise invalid

    def _check_order(self) -> None:
        on = {
            "dry": self.dry_multiplier,
            "top_n_sigma": (self.top_n_sigma or 0) > 0,
            "typ_p": self.typical_p not in (None, 1),
            "typical_p": self.typical_p not in (None, 1),
            "xtc": self.xtc_probability,
        }
        try:
            check_order(samplers_of(self.samplers), {*EVERYWHERE, *(n for n in on if on[n])})
        except InvalidField as invalid:
            invalid.path = "samplers"
            raise


class LlamaCompletion(LlamaGeneration, kw_only=True):
    """Body of POST /completion."""

    prompt: Prompt


class OtherFile(Body, kw_only=True):
    """Another file of the project."""

    filename: str | None = None
    text: str


class LlamaInfill(LlamaGeneration, kw_only=True):
    """Body of POST /infill.

    Attributes:
        input_prefix, input_suffix: what stands before and after the gap.
        input_extra: other files.
        prompt: the beginning of the output, which is already known.
    """

    known: ClassVar[Fields] = neutral.INFILL

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[OtherFile] | None = None
    prompt: str | None = None


class LlamaTemplate(Body, kw_only=True):
    """Body of POST /apply-template."""

    known: ClassVar[Fields] = neutral.TEMPLATE

    model: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    tools: Annotated[Any, _OBJECTS] = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class LlamaEmbedding(Body, kw_only=True):
    """Body of POST /embedding and /embeddings.

    Attributes:
        embd_normalize: 2 (length 1, the default), 1 (the sum of the absolute values is 1), or -1
            (as the model makes it).
    """

    known: ClassVar[Fields] = neutral.EMBEDDING

    model: str | None = None
    content: Prompt | None = None
    input: Prompt | None = None
    embd_normalize: int | None = None
    keep_alive: KeepAlive = None

    def finalize(self) -> None:
        if (self.content is None) == (self.input is None):
            raise wrong_value("send content")
        if self.embd_normalize not in (None, -1, 1, 2):
            invalid = unsupported("expected 2, 1 or -1")
            invalid.path = "embd_normalize"
            raise invalid
