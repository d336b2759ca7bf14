"""Tensors between the messages of gRPC and the bodies of HTTP, whose binary form both share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.base.errors import bad_request
from tidemill.server.dialects.kserve.schema import KserveInfer, KserveTensor, KserveTensorParameters
from tidemill.server.dialects.kserve.tasks import OPTIONS
from tidemill.server.dialects.kserve.tensors import read_inputs
from tidemill.server.grpc.messages import message

LENGTH_HEADER = "inference-header-content-length"

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype -> the field of its elements. FP16 has none: it comes raw."""


def parameter_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as the members of a JSON object."""
    found = {}
    for name, value in parameters.items():
        kind = value.WhichOneof("choice")
        found[name] = None if kind is None else getattr(value, kind)
    return found


def set_parameters(target: Any, values: Mapping[str, Any]) -> None:
    """Set parameters from the members of a JSON object; what has no type there is JSON text."""
    for name, value in values.items():
        entry = target[name]
        if isinstance(value, bool):
            entry.bool_param = value
        elif isinstance(value, int):
            entry.int64_param = value
        elif isinstance(value, float):
            entry.double_param = value
        else:
            entry.string_param = value if isinstance(value, str) else json.dumps(value)


def binary_inputs(request: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The inputs of a request as a body's, and the bytes behind its JSON text.

    Raises:
        TidemillError: kind BAD_REQUEST naming the input.
    """
    raw, found, parts = list(request.raw_input_contents), [], []
    if raw and len(raw) != len(request.inputs):
        raise bad_request(
            "raw_input_contents",
            f"raw_input_contents has {len(raw)} elements for {len(request.inputs)} inputs; send "
            "one for each, or none",
        )
    for index, tensor in enumerate(request.inputs):
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        more = parameter_values(tensor.parameters)
        if raw:
            more["binary_data_size"] = len(raw[index])
            parts.append(raw[index])
        else:
            field = _CONTENTS.get(tensor.datatype)
            if field is None:
                kind = tensor.datatype[:16]
                raise bad_request(
                    f"inputs[{index}]", f"inputs[{index}]: the datatype {kind!r} comes raw alone"
                )
            values = list(getattr(tensor.contents, field))
            if tensor.datatype == "BYTES":
                data = b"".join(len(text).to_bytes(4, "little") + text for text in values)
                more["binary_data_size"] = len(data)
                parts.append(data)
            else:
                entry["data"] = values
        found.append({**entry, **({"parameters": more} if more else {})})
    return found, parts


def infer_body(request: Any) -> tuple[bytes, int]:
    """The body of an inference over HTTP, and the length of its JSON text.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    inputs, parts = binary_inputs(request)
    outputs = [
        {
            "name": output.name,
            "parameters": {**parameter_values(output.parameters), "binary_data": True},
        }
        for output in request.outputs
    ]
    document = {
        **({"id": request.id} if request.id else {}),
        "parameters": {**parameter_values(request.parameters), "binary_data_output": True},
        "inputs": inputs,
        **({"outputs": outputs} if outputs else {}),
    }
    text = msgspec.json.encode(document)
    return b"".join((text, *parts)), len(text)


def infer_response(body: bytes, length: int) -> Any:
    """The message of an inference's answer over HTTP: all outputs are raw."""
    document, at = json.loads(body[:length]), length
    made = _head(document)
    for output in document["outputs"]:
        size = output["parameters"]["binary_data_size"]
        tensor = made.outputs.add(name=output["name"], datatype=output["datatype"])
        tensor.shape.extend(output["shape"])
        made.raw_output_contents.append(body[at : at + size])
        at += size
    return made


def _head(document: Mapping[str, Any]) -> Any:
    return message("ModelInferResponse")(
        model_name=document["model_name"],
        model_version=document.get("model_version", ""),
        id=document.get("id", ""),
    )


def stream_body(request: Any, most: int) -> bytes:
    """The body of a stream over HTTP, from a request's tensors.

    Args:
        request: of one text; its other inputs are options.
        most: elements that an input may have.

    Raises:
        TidemillError: kind BAD_REQUEST naming the input.
    """
    inputs, parts = binary_inputs(request)
    tensors = [
        KserveTensor(
            name=entry["name"],
            shape=entry["shape"],
            datatype=entry["datatype"],
            data=entry.get("data"),
            parameters=_parameters(entry.get("parameters", {})),
        )
        for entry in inputs
    ]
    values = read_inputs(KserveInfer(inputs=tensors), b"".join(parts), most)
    texts = values.pop("text_input", [])
    if len(texts) != 1:
        raise bad_request("text_input", f"text_input must have one text, got {len(texts)}")
    document: dict[str, Any] = {"text_input": texts[0]}
    single = {slot.name for slot in OPTIONS if slot.shape == (1,)}
    for name, elements in values.items():
        if name in single and len(elements) != 1:
            raise bad_request(name, f"{name} must have one element, got {len(elements)}")
        document[name] = elements[0] if name in single else elements
    wanted = {output.name for output in request.outputs}
    parameters = parameter_values(request.parameters)
    for name in ("finish_reason", "num_input_tokens", "num_output_tokens"):
        if name in wanted:
            parameters[f"return_{name}"] = True
    document.pop("stream", None)
    parameters.pop("stream", None)
    if request.id:
        document["id"] = request.id
    return msgspec.json.encode({**document, "parameters": parameters})


def _parameters(values: Mapping[str, Any]) -> KserveTensorParameters | None:
    return KserveTensorParameters(binary_data_size=values["binary_data_size"]) if values else None


def stream_response(event: bytes) -> Any:
    """The message of one event of a stream."""
    document = json.loads(event)
    made = _head(document)
    for name in ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens"):
        if name not in document:
            continue
        value = document[name]
        if isinstance(value, str):
            text = value.encode()
            kind, data = "BYTES", len(text).to_bytes(4, "little") + text
        else:
            kind, data = "INT32", int(value).to_bytes(4, "little")
        made.outputs.add(name=name, datatype=kind).shape.append(1)
        made.raw_output_contents.append(data)
    return made
