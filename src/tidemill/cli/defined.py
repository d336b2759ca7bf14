"""Names of the library where a command takes files alone."""

from __future__ import annotations


def files_of(model: str | None) -> str | None:
    """The path of a model of the library; any other name, or None, unchanged."""
    from tidemill.library.home import default_home, has_models

    if model is None or not has_models(default_home()):
        return model
    from tidemill.library.catalog import Library
    from tidemill.library.locate import locate

    return str(locate(model).path) if Library.open().find(model) is not None else model
