"""Reads the pickle inside a PyTorch file as data: no name in it is imported or called.

A pickle is a program for a stack machine. This machine supports only the instructions that a
dictionary of tensors needs. It accepts only the names in `_NAMES`, whose objects are created here.
Format: the opcode documentation in Python's pickletools; PyTorch's serialization notes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import model_file_error, unsupported

MAX_TEXT_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage: entry ``data/<key>`` of the archive, as values of a type (None: bytes)."""

    key: str
    dtype: str | None
    count: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor: a window on a storage, extents and strides in values."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Type:
    """A storage class (of values of a type, or of bytes) or a dtype."""

    dtype: str | None


class _Mark:
    """Start of an argument list on the stack."""


_TYPES = {
    "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Double": "F64", "Char": "I8", "Byte": "U8",
    "Short": "I16", "Int": "I32", "Long": "I64", "Bool": "BOOL",
}  # fmt: skip
_DTYPES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int8": "I8",
    "uint8": "U8", "int16": "I16", "int32": "I32", "int64": "I64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def _natural(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise model_file_error(f"{what} is not a natural number")
    return value


def _naturals(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > 8:
        raise model_file_error(f"{what} is not a short tuple of natural numbers")
    return tuple(_natural(v, what) for v in value)


def _tensor(args: tuple[Any, ...]) -> PickledTensor:
    """torch._utils._rebuild_tensor_v2 (and v3, whose seventh argument is the type)."""
    if len(args) < 4 or not isinstance(args[0], Storage):
        raise model_file_error("a tensor without a storage")
    storage: Storage = args[0]
    dtype = args[6].dtype if len(args) > 6 and isinstance(args[6], _Type) else storage.dtype
    if dtype is None:
        raise model_file_error("a tensor of bytes without a type")
    shape, strides = _naturals(args[2], "a tensor's size"), _naturals(args[3], "a tensor's stride")
    if len(shape) != len(strides):
        raise model_file_error("a tensor's size and stride differ in length")
    return PickledTensor(storage, dtype, _natural(args[1], "a tensor's offset"), shape, strides)


def _parameter(args: tuple[Any, ...]) -> PickledTensor:
    """torch._utils._rebuild_parameter."""
    if not args or not isinstance(args[0], PickledTensor):
        raise model_file_error("a parameter without a tensor")
    return args[0]


def _ordered(args: tuple[Any, ...]) -> dict[Any, Any]:
    """collections.OrderedDict."""
    if args:
        raise model_file_error("an OrderedDict with arguments")
    return {}


_NAMES: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _ordered,
    ("torch.storage", "UntypedStorage"): _Type(None),
    **{("torch", f"{name}Storage"): _Type(dtype) for name, dtype in _TYPES.items()},
    **{("torch", name): _Type(dtype) for name, dtype in _DTYPES.items()},
}


def read_pickle(data: memoryview, objects: int) -> Any:
    """Contents of the pickle: dictionaries, tuples, strings, numbers, tensors.

    Args:
        data: the pickle.
        objects: maximum number of values it may create; bounds memory.

    Raises:
        TidemillError: MODEL_FILE for an invalid pickle, UNSUPPORTED naming a forbidden name or
            instruction.
    """
    machine = _Machine(data, objects)
    try:
        return machine.run()
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        at = machine.position
        raise model_file_error(f"the pickle is truncated or corrupt at byte {at}") from error
    except RecursionError as error:
        raise model_file_error("the pickle nests too deep") from error


class _Machine:
    """The stack machine; `position` is the offset of the next byte."""

    def __init__(self, data: memoryview, objects: int) -> None:
        self._data = data
        self._left = objects
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.position = 0

    def run(self) -> Any:
        while True:
            opcode = self._take(1)[0]
            if opcode == _STOP:
                return self._stack.pop()
            action = _ACTIONS.get(opcode)
            if action is None:
                raise unsupported(
                    None,
                    f"the pickle uses instruction 0x{opcode:02x} at byte {self.position - 1}, "
                    "which a file of tensors does not need; it is not executed",
                )
            action(self)

    def _take(self, count: int) -> memoryview:
        piece = self._data[self.position : self.position + count]
        if len(piece) < count:
            raise model_file_error(f"the pickle is truncated at byte {len(self._data)}")
        self.position += count
        return piece

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))[0]

    def push(self, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise model_file_error("the pickle creates more values than its file can need")
        self._stack.append(value)

    def text(self, form: str) -> None:
        length = self.number(form)
        if length > MAX_TEXT_BYTES:
            raise model_file_error(f"the pickle holds a text of {length} bytes")
        self.push(str(self._take(length), "utf-8"))

    def long(self) -> None:
        length = self.number("B")
        if length > 8:
            raise model_file_error("the pickle holds a number of more than 8 bytes")
        self.push(int.from_bytes(self._take(length), "little", signed=True))

    def line(self) -> str:
        end = self.position
        while self._data[end] != 10:
            end += 1
            if end - self.position > 256:
                raise model_file_error(f"a name of over 256 bytes at byte {self.position}")
        name = str(self._take(end - self.position), "utf-8")
        self.position += 1
        return name

    def name(self, module: str, name: str) -> None:
        if (module, name) not in _NAMES:
            raise unsupported(
                None,
                f"the pickle names {module[:60]}.{name[:60]}, which a file of tensors does not "
                "need; nothing was run. If you trust the file, convert it to safetensors elsewhere",
            )
        self.push(_NAMES[module, name])

    def stack_name(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise model_file_error("a name in the pickle is not a string")
        self.name(module, name)

    def to_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while not isinstance(self._stack[at], _Mark):
            at -= 1  # below the bottom: IndexError
        found = self._stack[at + 1 :]
        del self._stack[at:]
        return found

    def tuple_of(self, count: int) -> None:
        values = self._stack[len(self._stack) - count :]
        if len(values) < count:
            raise IndexError
        del self._stack[len(self._stack) - count :]
        self.push(tuple(values))

    def remember(self, index: int) -> None:
        self._left -= 1
        self._memo[index] = self._stack[-1]

    def set_items(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise model_file_error("the pickle sets items of an object that is not a dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int):
                raise model_file_error("the pickle has a key that is neither text nor number")
            target[key] = value

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self.set_items([key, value])

    def reduce(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        if not isinstance(args, tuple) or function not in (_tensor, _parameter, _ordered):
            raise model_file_error("the pickle calls an object that does not create a tensor")
        self.push(function(args))

    def storage(self) -> None:
        """A persistent id: ('storage', class, key, device, count)."""
        ident = self._stack.pop()
        if not isinstance(ident, tuple) or len(ident) != 5 or ident[0] != "storage":
            raise model_file_error("the pickle refers to an object that is not a storage")
        _, kind, key, _, count = ident
        if not isinstance(kind, _Type) or not isinstance(key, str):
            raise model_file_error("the pickle refers to a storage without a type")
        self.push(Storage(key, kind.dtype, _natural(count, "a storage's size")))

    def build(self) -> None:
        """State of an OrderedDict: its _metadata, which holds nothing about tensors."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict):
            raise model_file_error(
                "the pickle sets the state of an object that is not a dictionary"
            )


_STOP = ord(".")
_ACTIONS: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.number("B"),  # PROTO
    0x95: lambda m: m.number("Q"),  # FRAME
    ord("("): lambda m: m.push(_Mark()),
    ord("}"): lambda m: m.push({}),
    ord(")"): lambda m: m.push(()),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m.number("B")),
    ord("M"): lambda m: m.push(m.number("H")),
    ord("J"): lambda m: m.push(m.number("i")),
    0x8A: lambda m: m.long(),
    ord("G"): lambda m: m.push(struct.unpack(">d", m._take(8))[0]),
    ord("X"): lambda m: m.text("I"),
    0x8C: lambda m: m.text("B"),
    ord("t"): lambda m: m.push(tuple(m.to_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("q"): lambda m: m.remember(m.number("B")),
    ord("r"): lambda m: m.remember(m.number("I")),
    0x94: lambda m: m.remember(len(m._memo)),
    ord("h"): lambda m: m.push(m._memo[m.number("B")]),
    ord("j"): lambda m: m.push(m._memo[m.number("I")]),
    ord("c"): lambda m: m.name(m.line(), m.line()),
    0x93: lambda m: m.stack_name(),
    ord("R"): lambda m: m.reduce(),
    ord("Q"): lambda m: m.storage(),
    ord("s"): lambda m: m.set_item(),
    ord("u"): lambda m: m.set_items(m.to_mark()),
    ord("b"): lambda m: m.build(),
}


def state_dict(value: Any) -> dict[str, PickledTensor]:
    """Name -> tensor of a pickled state dictionary, at top level or under ``state_dict``.

    Raises:
        TidemillError: MODEL_FILE naming a key whose value is not a tensor.
    """
    if not isinstance(value, dict):
        raise model_file_error("the pickle does not hold a dictionary of tensors")
    inner = value.get("state_dict")
    found = inner if isinstance(inner, dict) else value
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, PickledTensor):
            shown = str(name)[:80]
            raise model_file_error(f"the pickle's entry {shown!r} is not a tensor", param=shown)
    return found
