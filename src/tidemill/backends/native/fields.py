"""Fields that a spec and the core's description of it state under one name.

`models/layers.py` and `models/spec.py` describe a model, `csrc/model/config_fields.inl` describes
it to the core. What both call the same and hold as the same type is copied here, so that a new
number or switch needs no line between the two; ids of weights and codes are in `weights.py`.
"""

from __future__ import annotations

from typing import Any

_KINDS = (bool, int, float)

_FOUND: dict[tuple[type, type], tuple[tuple[str, type], ...]] = {}


def shared_fields(source: type, config: type) -> tuple[tuple[str, type], ...]:
    """Names that instances of both types have, with the core's type of the value."""
    if (found := _FOUND.get((source, config))) is not None:
        return found
    empty = config()
    kinds = {
        name: type(getattr(empty, name))
        for name in dir(config)
        if isinstance(getattr(config, name), property) and hasattr(source, name)
    }
    _FOUND[source, config] = tuple((n, kind) for n, kind in kinds.items() if kind in _KINDS)
    return _FOUND[source, config]


def copy_fields(source: object, config: Any) -> None:
    """Copy every shared field whose value has the core's type.

    None leaves the core's default, which then means the same.
    """
    for name, kind in shared_fields(type(source), type(config)):
        value = getattr(source, name)
        if type(value) is kind or (kind is float and type(value) is int):
            setattr(config, name, value)
