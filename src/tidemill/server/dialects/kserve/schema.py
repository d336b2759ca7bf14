"""Request bodies of the Open Inference Protocol; types are strict, unknown fields are errors."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from tidemill.server.dialects.biases import LogitBias
from tidemill.server.dialects.fields import Alias, Fields, Neutral
from tidemill.server.dialects.members import Body, checked, documented, wrong_type, wrong_value
from tidemill.server.dialects.sampling_fields import SamplingFields

MAX_TIMEOUT = 86_400 * 10**6


def _check_stop(value: Any) -> None:
    if not isinstance(value, str) and not (
        isinstance(value, list) and all(isinstance(text, str) for text in value)
    ):
        raise wrong_type("expected a string or a list of strings")


def _check_timeout(value: int) -> None:
    if not 1 <= value <= MAX_TIMEOUT:
        raise wrong_value(f"timeout is in microseconds, 1 to {MAX_TIMEOUT}")


def _check_shape(value: list[int]) -> None:
    if any(size < 0 for size in value):
        raise wrong_value("sizes of a shape cannot be negative")


_SHARED = Neutral(feature="shared memory", instead="send the data within the request")
_STOP_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]
}


class KserveOptions(SamplingFields, kw_only=True):
    """Options of a generation, of an embedding, and what is returned.

    Attributes:
        exclude_input_in_output: false (the default, as in Triton's backends): a whole text begins
            with the input; streams never have it.
        return_finish_reason, return_num_input_tokens, return_num_output_tokens: further members of
            an answer of the generate extension.
        lora_name: the name of an adapter.
        sampling_parameters: an object with these options, or its JSON text, as for Triton's vLLM.
        dimensions: numbers of an embedding.
    """

    known: ClassVar[Fields] = {
        "random_seed": Alias("seed"),
        "stop_words": Alias("stop"),
        "bad_words": Neutral(("", [])),
        "return_log_probs": Neutral(
            (False,), feature="logprobs here", instead="use /v1/completions"
        ),
    }

    max_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: LogitBias = None
    bad_words: list[str] | None = None
    stop: Annotated[Any, checked(_check_stop, _STOP_SCHEMA)] = None
    guided_json: Annotated[Any, documented({})] = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    lora_name: str | None = None
    exclude_input_in_output: bool | None = None
    return_finish_reason: bool | None = None
    return_num_input_tokens: bool | None = None
    return_num_output_tokens: bool | None = None
    sampling_parameters: Annotated[Any, documented({"type": ["string", "object", "null"]})] = None
    dimensions: int | None = None


class KserveTensorParameters(Body, kw_only=True):
    """Of an input: how many bytes behind the JSON text are its data."""

    known: ClassVar[Fields] = {
        "shared_memory_region": _SHARED,
        "shared_memory_byte_size": _SHARED,
        "shared_memory_offset": _SHARED,
    }

    binary_data_size: int | None = None


class KserveTensor(Body, kw_only=True):
    """An input; `data` is a list of its elements in row-major order, nested or flat."""

    name: str
    shape: Annotated[list[int], checked(_check_shape)]
    datatype: str
    parameters: KserveTensorParameters | None = None
    data: Annotated[Any, documented({"type": ["array", "null"]})] = None


class KserveOutputParameters(Body, kw_only=True):
    """Of an output: its data stands behind the JSON text."""

    known: ClassVar[Fields] = {
        "classification": Neutral((0,), feature="classification"),
        "shared_memory_region": _SHARED,
        "shared_memory_byte_size": _SHARED,
        "shared_memory_offset": _SHARED,
    }

    binary_data: bool | None = None


class KserveOutput(Body, kw_only=True):
    """An output that is asked for."""

    name: str
    parameters: KserveOutputParameters | None = None


class KserveInferParameters(KserveOptions, kw_only=True):
    """Parameters of an inference.

    Attributes:
        binary_data_output: the data of all outputs stand behind the JSON text.
        timeout: microseconds.
    """

    known: ClassVar[Fields] = {
        **KserveOptions.known,
        "priority": Neutral((0,), feature="priorities here", instead="give the key a weight"),
        "sequence_id": Neutral((0, ""), feature="sequences", instead="send the whole text"),
        "sequence_start": Neutral((False,), feature="sequences"),
        "sequence_end": Neutral((False,), feature="sequences"),
    }

    binary_data_output: bool | None = None
    timeout: Annotated[int, checked(_check_timeout)] | None = None


class KserveInfer(Body, kw_only=True):
    """Body of POST /v2/models/{model}/infer.

    Attributes:
        model_name, model_version: KServe's own client repeats what the path says.
    """

    model_name: str | None = None
    model_version: str | None = None
    id: str | None = None
    parameters: KserveInferParameters | None = None
    inputs: list[KserveTensor]
    outputs: list[KserveOutput] | None = None


class KserveGenerateInputs(KserveOptions, kw_only=True):
    """What the bodies of the generate extension share; options may stand in `parameters`, too."""

    id: str | None = None
    text_input: str


class KserveGenerateParameters(KserveOptions, kw_only=True):
    """Options of a whole answer."""

    known: ClassVar[Fields] = {
        **KserveOptions.known,
        "stream": Neutral((False,), feature="streams here", instead="use generate_stream"),
    }


class KserveStreamParameters(KserveOptions, kw_only=True):
    """Options of a streamed answer."""

    known: ClassVar[Fields] = {
        **KserveOptions.known,
        "stream": Neutral((True,), feature="whole answers here", instead="use generate"),
    }


class KserveGenerate(KserveGenerateInputs, kw_only=True):
    """Body of POST /v2/models/{model}/generate."""

    known: ClassVar[Fields] = KserveGenerateParameters.known

    parameters: KserveGenerateParameters | None = None


class KserveStream(KserveGenerateInputs, kw_only=True):
    """Body of POST /v2/models/{model}/generate_stream."""

    known: ClassVar[Fields] = KserveStreamParameters.known

    parameters: KserveStreamParameters | None = None


class KserveIndex(Body, kw_only=True):
    """Body of POST /v2/repository/index: with `ready`, only models that are loaded."""

    ready: bool | None = None


class KserveLoadParameters(Body, kw_only=True):
    """What may be said of loading and unloading."""

    known: ClassVar[Fields] = {
        "unload_dependents": Neutral((False, True), feature="values that are not true or false"),
        "config": Neutral(feature="a model's configuration here", instead="use /admin/models"),
    }


class KserveLoad(Body, kw_only=True):
    """Body of POST /v2/repository/models/{model}/load and unload."""

    parameters: KserveLoadParameters | None = None
