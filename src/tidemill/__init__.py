"""Tidemill: LLM inference and serving in Python with a native C++ core.

`LLM` and `SamplingParams` are the offline API; `tidemill serve` is the server. Nothing heavy is
imported before it is used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.base.errors import ErrorKind as ErrorKind
    from tidemill.base.errors import TidemillError as TidemillError
    from tidemill.contract.sampling import SamplingParams as SamplingParams
    from tidemill.llm import LLM as LLM
    from tidemill.llm import Completion as Completion
    from tidemill.llm import RequestOutput as RequestOutput

    __version__: str

_EXPORTS = {
    "LLM": "tidemill.llm",
    "RequestOutput": "tidemill.llm",
    "Completion": "tidemill.llm",
    "SamplingParams": "tidemill.contract.sampling",
    "TidemillError": "tidemill.base.errors",
    "ErrorKind": "tidemill.base.errors",
}

__all__ = ["LLM", "Completion", "ErrorKind", "RequestOutput", "SamplingParams", "TidemillError"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tidemill.base.build import installed_version

        return installed_version() or "0+source"
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *(n for n in globals() if n.startswith("__"))])
