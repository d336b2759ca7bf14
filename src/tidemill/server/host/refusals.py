"""Why a model does not answer: errors of the host."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.server.errors import Rejection, reject
from tidemill.server.host.switching import Refuse

_NAMES_SHOWN = 20


def unknown(name: str, names: Sequence[str]) -> Rejection:
    """404: no model has this name."""
    known = ", ".join(map(repr, names[:_NAMES_SHOWN]))
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return reject(
        404,
        f"the model {name[:256]!r} does not exist; this server serves {known}{more}",
        param="model",
        code="model_not_found",
    )


def never_fits(refused: Refuse) -> Rejection:
    """400: the memory budget is too small for this model."""
    return reject(
        400,
        f"the model {refused.name!r} needs {_mib(refused.least)} (weights, the process and a KV "
        f"cache for one request), and {_mib(refused.available)} can be had for it within the "
        "server's memory budget (--memory), beside pinned models: raise it, quantize the model, or "
        "lower its max_model_len",
        param="model",
        code="out_of_resources",
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
