"""Request bodies of TGI's dialect. Types are strict, and unknown fields are errors."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from tidemill.server.dialects.fields import Alias, Fields, Neutral
from tidemill.server.dialects.id_lists import Ids
from tidemill.server.dialects.members import (
    Body,
    checked,
    documented,
    wrong_type,
    wrong_value,
)

MAX_SEED = 2**64 - 1


def _check_seed(value: int) -> None:
    if not 0 <= value <= MAX_SEED:
        raise wrong_value(f"seed must be between 0 and {MAX_SEED}")


def _positive(value: int) -> None:
    if value < 1:
        raise wrong_value(f"expected at least 1, got {value}")


Positive = Annotated[int, checked(_positive, {"minimum": 1})]


class TgiGrammar(Body, kw_only=True):
    """What the generated text must obey.

    Attributes:
        type: json: `value` is a JSON schema (or its JSON text); json_schema: an object with the
            member `schema`; regex: a regular expression.
    """

    type: Literal["json", "json_schema", "regex"]
    value: Annotated[Any, documented({})]


class TgiParameters(Body, kw_only=True):
    """Parameters of a generation, by TGI's names.

    Attributes:
        do_sample: false is greedy unless temperature, top_k or top_p ask for sampling.
        max_new_tokens: 100 where it is left out.
        details: the answer has the tokens, their logprobs and the finish reason.
        decoder_input_details: with details, also the prompt's tokens.
        top_n_tokens: likeliest tokens shown at each position.
        best_of: generate so many and return the one with the highest mean logprob.
        truncate: use only the last so many tokens of the input.
        return_full_text: put the input before the generated text.
        adapter_id: the name of an adapter.
    """

    known: ClassVar[Fields] = {
        "watermark": Neutral((False,), feature="watermarks", instead="leave watermark out"),
        "stop_sequences": Alias("stop"),
    }

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Annotated[int, checked(_check_seed, {"minimum": 0, "maximum": MAX_SEED})] | None = None
    stop: list[str] | None = None
    max_new_tokens: int | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: int | None = None
    best_of: int | None = None
    grammar: TgiGrammar | None = None
    truncate: Positive | None = None
    return_full_text: bool | None = None
    adapter_id: str | None = None


def _check_inputs(value: Any) -> None:
    if isinstance(value, str | Ids) or (
        isinstance(value, list) and all(type(one) is int for one in value)
    ):
        return
    raise wrong_type("expected a text, or a list of token ids; send a request for each of several")


_INPUTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}


class TgiInputs(Body, kw_only=True):
    """What the bodies share.

    Attributes:
        inputs: a text, or as an extension its token ids.
        model: an extension: the model's name, where several are served.
    """

    inputs: Annotated[Any, checked(_check_inputs, _INPUTS)]
    parameters: TgiParameters | None = None
    model: str | None = None


class TgiRequest(TgiInputs, kw_only=True):
    """Body of POST /: whole or streamed."""

    stream: bool | None = None


class TgiGenerateRequest(TgiInputs, kw_only=True):
    """Body of POST /generate."""

    known: ClassVar[Fields] = {
        "stream": Neutral((False,), feature="streams here", instead="use /generate_stream")
    }


class TgiStreamRequest(TgiInputs, kw_only=True):
    """Body of POST /generate_stream."""

    known: ClassVar[Fields] = {
        "stream": Neutral(
            (True,), feature="whole answers at /generate_stream", instead="use /generate"
        )
    }
