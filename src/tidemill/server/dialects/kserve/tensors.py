"""Tensors of the protocol as lists of elements: in JSON, or as bytes behind the JSON text."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tidemill.base.errors import bad_request
from tidemill.server.dialects.kserve.schema import KserveInfer, KserveTensor

# datatype -> `struct`'s letter; little-endian, as the binary extension says.
_LETTERS = {
    "BOOL": "?",
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
    **{"FP16": "e", "FP32": "f", "FP64": "d"},
}
DATATYPES = ("BYTES", *_LETTERS)


class Output(msgspec.Struct):
    """A tensor of an answer.

    Attributes:
        values: its elements, in row-major order.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    values: Sequence[Any]


def read_inputs(body: KserveInfer, raw: bytes, most: int) -> dict[str, list[Any]]:
    """The elements of each input.

    Args:
        body: the request.
        raw: the bytes behind its JSON text.
        most: elements that an input may have.

    Raises:
        TidemillError: kind BAD_REQUEST naming the input.
    """
    found: dict[str, list[Any]] = {}
    at = 0
    for index, tensor in enumerate(body.inputs):
        place = f"inputs[{index}]"
        if tensor.name in found:
            raise bad_request(f"{place}.name", f"there are two inputs {tensor.name[:64]!r}")
        if tensor.datatype not in DATATYPES:
            kinds = ", ".join(DATATYPES)
            raise bad_request(f"{place}.datatype", f"{place}.datatype must be one of {kinds}")
        count = math.prod(tensor.shape)
        if count > most:
            raise bad_request(f"{place}.shape", f"{place} has {count} elements; at most {most}")
        size = None if tensor.parameters is None else tensor.parameters.binary_data_size
        if (size is None) == (tensor.data is None):
            raise bad_request(place, f"{place} needs either data or parameters.binary_data_size")
        if size is None:
            found[tensor.name] = _from_json(tensor, count, place)
            continue
        if not 0 <= size <= len(raw) - at:
            message = (
                f"{place}.parameters.binary_data_size is {size}; {len(raw) - at} bytes are left"
            )
            raise bad_request(f"{place}.parameters.binary_data_size", message)
        found[tensor.name] = _from_bytes(tensor, raw[at : at + size], count, place)
        at += size
    if at != len(raw):
        raise bad_request("inputs", f"{len(raw) - at} bytes of the body belong to no input")
    return found


def _from_json(tensor: KserveTensor, count: int, place: str) -> list[Any]:
    if not isinstance(tensor.data, list):
        raise bad_request(f"{place}.data", f"{place}.data must be a list")
    values = list(_flat(tensor.data))
    _check_count(len(values), count, place)
    test, what = _TESTS.get(tensor.datatype, (_is_int, "whole numbers"))
    if not all(map(test, values)):
        raise bad_request(f"{place}.data", f"{place}.data must hold {what} ({tensor.datatype})")
    return values


def _flat(data: list[Any]) -> Iterator[Any]:
    left = [iter(data)]
    while left:
        for value in left[-1]:
            if isinstance(value, list):
                left.append(iter(value))
                break
            yield value
        else:
            left.pop()


def _from_bytes(tensor: KserveTensor, data: bytes, count: int, place: str) -> list[Any]:
    letter = _LETTERS.get(tensor.datatype)
    if letter is not None:
        size = struct.calcsize("<" + letter)
        _check_count(len(data) / size, count, place)
        return list(struct.unpack(f"<{count}{letter}", data))
    values: list[str] = []
    at = 0
    while at < len(data) and len(values) <= count:
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data) or at + 4 > len(data):
            raise bad_request(place, f"{place}: an element of its binary data is cut off")
        try:
            values.append(data[at + 4 : end].decode())
        except UnicodeDecodeError:
            raise bad_request(place, f"{place}: element {len(values)} is not UTF-8") from None
        at = end
    _check_count(len(values), count, place)
    return values


def _check_count(got: float, count: int, place: str) -> None:
    if got != count:
        raise bad_request(
            place, f"{place}: the data has {got:g} elements, and the shape says {count}"
        )


def _is_int(value: object) -> bool:
    return type(value) is int


_Test = tuple[Callable[[Any], bool], str]
_NUMBERS: _Test = (lambda value: type(value) in (int, float), "numbers")
_TESTS: dict[str, _Test] = {
    "BYTES": (lambda value: isinstance(value, str), "texts"),
    "BOOL": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("FP16", "FP32", "FP64"), _NUMBERS),
}


def write_outputs(
    head: dict[str, Any], outputs: Sequence[Output], binary: Callable[[str], bool]
) -> tuple[list[bytes], int | None]:
    """An answer, in pieces, and the length of its JSON text where bytes follow it.

    Args:
        head: the members before its outputs.
        outputs: its tensors.
        binary: by an output's name, whether its data are bytes behind the JSON text.
    """
    documents, parts = [], []
    for output in outputs:
        document: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
        }
        if binary(output.name):
            data = _as_bytes(output)
            document["parameters"] = {"binary_data_size": len(data)}
            parts.append(data)
        else:
            document["data"] = list(output.values)
        documents.append(document)
    text = msgspec.json.encode({**head, "outputs": documents})
    return [text, *parts], len(text) if parts else None


def _as_bytes(output: Output) -> bytes:
    if output.datatype == "BYTES":
        texts = [text.encode() for text in output.values]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    letter = _LETTERS[output.datatype]
    return struct.pack(f"<{len(output.values)}{letter}", *output.values)
