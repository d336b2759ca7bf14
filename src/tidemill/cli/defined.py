"""Models by name, with what the library's definition adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemill.library.locate import Located


def located(model: str | Path | None, say: Callable[[str], None] | None = None) -> Located:
    """A model that a command is to run: `library.locate.locate`, if all of it can be applied."""
    from tidemill.library.locate import check_runnable, locate

    return check_runnable(locate(model, say))


def files_of(model: str | None) -> str | None:
    """The path of a model of the library; any other name, or None, unchanged."""
    from tidemill.library.home import default_home, has_models

    if model is None or not has_models(default_home()):
        return model
    from tidemill.library.catalog import Library
    from tidemill.library.locate import locate

    return str(locate(model).path) if Library.open().find(model) is not None else model


def check_servable(located: Located) -> Located:
    """The model, if a server applies all that its definition says.

    Raises:
        TidemillError: UNSUPPORTED, naming what a server does not apply yet.
    """
    from tidemill.base.errors import unsupported
    from tidemill.contract.sampling import NEUTRAL

    defined = located.definition
    others = [name for name in defined.sampling if name not in NEUTRAL]
    for name, there in (
        ("system", defined.system),
        ("messages", defined.messages),
        *((other, True) for other in others),
    ):
        if there:
            raise unsupported(
                name,
                f"{located.name} was created with a value of {name!r}, which `tidemill run` "
                f"applies and a server does not yet; serve {located.path}, and send it with each "
                "request",
            )
    return located
