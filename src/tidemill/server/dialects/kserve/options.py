"""Options of a request, from the places where clients put them; and what they become."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, fields

from tidemill.base.errors import bad_request
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.request import GenerateRequest, Names, TokenTexts
from tidemill.server.dialects.biases import biases_of
from tidemill.server.dialects.fields import equal
from tidemill.server.dialects.kserve.schema import KserveOptions
from tidemill.server.dialects.members import InvalidField, fill
from tidemill.server.dialects.sampling_fields import SAMPLING_FIELDS, sampling_values
from tidemill.text.answering import OutputRequest

_NAMES = tuple(field.name for field in fields(KserveOptions))
_OWN_FORM = ("stop_token_ids", "logit_bias")
PARAMETERS = {name: name for name in (*SAMPLING_FIELDS, "stop", "max_tokens", *_OWN_FORM)}
"""Parameters of `SamplingParams` -> the options that give them."""

_TEXTS = frozenset(("stop", "stop_words", "guided_json", "guided_regex", "guided_grammar"))


def merged(bodies: Sequence[KserveOptions | None]) -> KserveOptions:
    """The options of all places together.

    Raises:
        TidemillError: kind BAD_REQUEST, two places differ.
    """
    found: dict[str, Any] = {}
    for body in bodies:
        for name, value in _given(body):
            if name in found and not equal(found[name], value):
                raise bad_request(name, f"{name} is in two places with different values; send one")
            found[name] = value
    inner = found.pop("sampling_parameters", None)
    for name, value in _given(_sampling_parameters(inner)):
        found.setdefault(name, value)
    return KserveOptions(**found)


def read_options(document: dict[str, Any], place: str) -> KserveOptions:
    """Options as a struct.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member, within `place`.
    """
    try:
        return fill(KserveOptions, document)
    except InvalidField as invalid:
        at = f"{place}.{invalid.path}" if place else invalid.path
        raise bad_request(at, f"{at}: {invalid.reason}") from None


def _given(body: KserveOptions | None) -> Sequence[tuple[str, Any]]:
    if body is None:
        return ()
    values = ((name, getattr(body, name)) for name in _NAMES)
    return [(name, value) for name, value in values if value is not None]


def _sampling_parameters(value: object) -> KserveOptions | None:
    place = "sampling_parameters"
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(place, f"{place} is not valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise bad_request(place, f"{place} must be an object, or its JSON text")
    return read_options({name: _read(name, part) for name, part in value.items()}, place)


def _read(name: str, value: object) -> object:
    """A member of sampling_parameters: Triton's examples write numbers as texts."""
    if not isinstance(value, str) or name in _TEXTS:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def generate_request(
    texts: Sequence[str], options: KserveOptions, caller: Caller, arrival: float
) -> GenerateRequest:
    """The request for a continuation of each text.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    if options.dimensions is not None:
        raise bad_request("dimensions", "dimensions belongs to embeddings, not to a generation")
    given = asdict(options)
    stop = options.stop or ()
    bias, biased = biases_of(options.logit_bias or {})
    sampling = SamplingParams(
        **sampling_values(options),
        max_tokens=options.max_tokens,
        stop_token_ids=tuple(options.stop_token_ids or ()),
        logit_bias=bias,
        stop=(stop,) if isinstance(stop, str) else tuple(text for text in stop if text),
    )
    return GenerateRequest(
        prompts=texts,
        sampling=sampling,
        output=OutputRequest.read(given),
        texts=TokenTexts(biased, tuple(options.bad_words or ())),
        caller=caller,
        arrival=arrival,
        names=Names("text_input"),
        adapter=options.lora_name or None,
    )
