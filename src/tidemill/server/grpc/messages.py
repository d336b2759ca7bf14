"""The messages of the Open Inference Protocol (package `inference`).

The table has what the protocol publishes: names, numbers and types of fields. Classes are made of
it in a pool of their own, so that a client of the same protocol may be in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

PACKAGE = "inference"

# A field: its name, its number, and its type: a scalar, or a message of this table; `*` in front:
# repeated; `map` in front: from strings to that; `?` in front: one of the message's fields.
_Fields = tuple[tuple[str, int, str], ...]

_NAMED: _Fields = (("name", 1, "string"), ("version", 2, "string"))
_PARAMETER: _Fields = (
    ("bool_param", 1, "?bool"),
    ("int64_param", 2, "?int64"),
    ("string_param", 3, "?string"),
    ("double_param", 4, "?double"),
    ("uint64_param", 5, "?uint64"),
)
_TENSOR: _Fields = (
    ("name", 1, "string"),
    ("datatype", 2, "string"),
    ("shape", 3, "*int64"),
    ("parameters", 4, "map InferParameter"),
    ("contents", 5, "InferTensorContents"),
)
_LOAD: _Fields = (
    ("repository_name", 1, "string"),
    ("model_name", 2, "string"),
    ("parameters", 3, "map ModelRepositoryParameter"),
)
_DURATION: _Fields = (("count", 1, "uint64"), ("ns", 2, "uint64"))

MESSAGES: Mapping[str, _Fields] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": (("live", 1, "bool"),),
    "ServerReadyRequest": (),
    "ServerReadyResponse": (("ready", 1, "bool"),),
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": (("ready", 1, "bool"),),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (*_NAMED, ("extensions", 3, "*string")),
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse": (
        ("name", 1, "string"),
        ("versions", 2, "*string"),
        ("platform", 3, "string"),
        ("inputs", 4, "*TensorMetadata"),
        ("outputs", 5, "*TensorMetadata"),
    ),
    "TensorMetadata": (("name", 1, "string"), ("datatype", 2, "string"), ("shape", 3, "*int64")),
    "InferParameter": _PARAMETER,
    "InferTensorContents": (
        ("bool_contents", 1, "*bool"),
        ("int_contents", 2, "*int32"),
        ("int64_contents", 3, "*int64"),
        ("uint_contents", 4, "*uint32"),
        ("uint64_contents", 5, "*uint64"),
        ("fp32_contents", 6, "*float"),
        ("fp64_contents", 7, "*double"),
        ("bytes_contents", 8, "*bytes"),
    ),
    "InferInputTensor": _TENSOR,
    "InferRequestedOutputTensor": (
        ("name", 1, "string"),
        ("parameters", 2, "map InferParameter"),
    ),
    "ModelInferRequest": (
        ("model_name", 1, "string"),
        ("model_version", 2, "string"),
        ("id", 3, "string"),
        ("parameters", 4, "map InferParameter"),
        ("inputs", 5, "*InferInputTensor"),
        ("outputs", 6, "*InferRequestedOutputTensor"),
        ("raw_input_contents", 7, "*bytes"),
    ),
    "InferOutputTensor": _TENSOR,
    "ModelInferResponse": (
        ("model_name", 1, "string"),
        ("model_version", 2, "string"),
        ("id", 3, "string"),
        ("parameters", 4, "map InferParameter"),
        ("outputs", 5, "*InferOutputTensor"),
        ("raw_output_contents", 6, "*bytes"),
    ),
    "ModelStreamInferResponse": (
        ("error_message", 1, "string"),
        ("infer_response", 2, "ModelInferResponse"),
    ),
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": (("config", 1, "ModelConfig"),),
    "ModelConfig": (
        ("name", 1, "string"),
        ("platform", 2, "string"),
        ("max_batch_size", 4, "int32"),
        ("input", 5, "*ModelInput"),
        ("output", 6, "*ModelOutput"),
        ("backend", 17, "string"),
        ("model_transaction_policy", 19, "ModelTransactionPolicy"),
    ),
    "ModelInput": (
        ("name", 1, "string"),
        ("data_type", 2, "int32"),
        ("dims", 4, "*int64"),
        ("optional", 8, "bool"),
    ),
    "ModelOutput": (("name", 1, "string"), ("data_type", 2, "int32"), ("dims", 3, "*int64")),
    "ModelTransactionPolicy": (("decoupled", 1, "bool"),),
    "ModelStatisticsRequest": _NAMED,
    "ModelStatisticsResponse": (("model_stats", 1, "*ModelStatistics"),),
    "ModelStatistics": (
        *_NAMED,
        ("last_inference", 3, "uint64"),
        ("inference_count", 4, "uint64"),
        ("execution_count", 5, "uint64"),
        ("inference_stats", 6, "InferStatistics"),
    ),
    "InferStatistics": (("success", 1, "StatisticDuration"), ("fail", 2, "StatisticDuration")),
    "StatisticDuration": _DURATION,
    "ModelRepositoryParameter": (
        ("bool_param", 1, "?bool"),
        ("int64_param", 2, "?int64"),
        ("string_param", 3, "?string"),
        ("bytes_param", 4, "?bytes"),
    ),
    "RepositoryIndexRequest": (("repository_name", 1, "string"), ("ready", 2, "bool")),
    "RepositoryIndexResponse": (("models", 1, "*ModelIndex"),),
    "ModelIndex": (*_NAMED, ("state", 3, "string"), ("reason", 4, "string")),
    "RepositoryModelLoadRequest": _LOAD,
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": _LOAD,
    "RepositoryModelUnloadResponse": (),
}

DATA_TYPES = {
    f"TYPE_{kind}": number
    for number, kind in enumerate(
        (
            *("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64"),
            *("INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16"),
        )
    )
}
"""Triton's numbers of datatypes, in a model's configuration."""

METHODS: Mapping[str, tuple[str, bool]] = {
    **{
        name: (name, False)
        for name in (
            *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata"),
            *("ModelInfer", "ModelConfig", "ModelStatistics", "RepositoryIndex"),
            *("RepositoryModelLoad", "RepositoryModelUnload"),
        )
    },
    "ModelStreamInfer": ("ModelInfer", True),
}
"""Methods of the service: the message of their requests (without ``Request``), and whether both
sides are streams."""


def message(name: str) -> Any:
    """The class of a message."""
    return _classes()[f"{PACKAGE}.{name}"]


@cache
def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        file.message_type.append(_described(name, fields))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return dict(message_factory.GetMessageClassesForFiles([file.name], pool))


def _described(name: str, fields: _Fields) -> DescriptorProto:
    made = DescriptorProto(name=name)
    if any(kind.startswith("?") for _, _, kind in fields):
        made.oneof_decl.add(name="choice")
    for field, number, kind in fields:
        part = made.field.add(name=field, number=number, json_name=field)
        many, plain = kind.startswith(("*", "map ")), kind.lstrip("*?")
        part.label = FieldDescriptorProto.LABEL_REPEATED if many else part.LABEL_OPTIONAL
        if kind.startswith("?"):
            part.oneof_index = 0
        if plain.startswith("map "):
            entry = _entry(field, plain.removeprefix("map "))
            made.nested_type.append(entry)
            plain = f"{name}.{entry.name}"
        _set_type(part, plain)
    return made


def _entry(field: str, value: str) -> DescriptorProto:
    """The message of a map's entries, named as the language's rules say."""
    entry = DescriptorProto(name="".join(w.capitalize() for w in field.split("_")) + "Entry")
    entry.options.map_entry = True
    for name, number, kind in (("key", 1, "string"), ("value", 2, value)):
        part = entry.field.add(name=name, number=number, json_name=name)
        part.label = FieldDescriptorProto.LABEL_OPTIONAL
        _set_type(part, kind)
    return entry


def _set_type(part: FieldDescriptorProto, kind: str) -> None:
    if kind.partition(".")[0] in MESSAGES:
        part.type = FieldDescriptorProto.TYPE_MESSAGE
        part.type_name = f".{PACKAGE}.{kind}"
    else:
        part.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")


def fields_of(document: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """The members of a JSON document that a message has."""
    known = {field for field, _, _ in MESSAGES[name]}
    return ((key, value) for key, value in document.items() if key in known)
