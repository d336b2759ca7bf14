"""Why a model does not answer: errors of the host."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.errors import Problem, Rejection, reject
from tidemill.server.host.switching import Refuse

_NAMES_SHOWN = 20
_OPERATORS = (
    *(ErrorKind.BAD_REQUEST, ErrorKind.CONFIG, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED),
)


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
    """503: the memory budget is too small for this model."""
    problem = Problem(
        503,
        "server_error",
        f"the model {refused.name!r} needs {_mib(refused.least)} (weights, the process and a KV "
        f"cache for one request), and {_mib(refused.available)} can be had for it within the "
        "server's memory budget (--memory), beside pinned models: raise it, quantize the model, or "
        "lower its max_model_len",
        param="model",
        code="out_of_resources",
    )
    return Rejection(problem)


def unusable(name: str, error: TidemillError) -> TidemillError:
    """Why a model was not loaded, for a request that names it: what is wrong with the server's
    configuration or files is no fault of the request (500)."""
    if error.kind not in _OPERATORS:
        return error
    return TidemillError(
        ErrorKind.MODEL_FILE,
        f"the model {name!r} cannot be loaded until the server's operator mends this: "
        f"{error.message}",
        param="model",
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
