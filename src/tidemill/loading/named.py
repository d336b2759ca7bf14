"""A model as the user names it: its path and its display name."""

from __future__ import annotations

from pathlib import Path

from tidemill.base.errors import config_error
from tidemill.base.files import shown
from tidemill.loading.bundled import DEFAULT_MODEL, bundled_models
from tidemill.loading.hub import Say, existing, resolve
from tidemill.loading.hub_name import parse


def locate(model: str | Path | None = None, say: Say | None = None) -> tuple[Path, str]:
    """The local path of a model and its display name; None is the bundled model.

    `say` is called with one line about each automatic choice.

    Raises:
        TidemillError: see `hub.resolve`; CONFIG without a bundled model.
    """
    if model is None:
        # Not resolved by name: a local folder of that name must not replace it.
        bundled = bundled_models().get(DEFAULT_MODEL)
        if bundled is None:
            raise config_error(
                "model", "this installation has no bundled model; name a folder or a .gguf file"
            )
        return bundled, DEFAULT_MODEL
    if not isinstance(model, str | Path) or not str(model).strip():
        raise config_error("model", f"a model is a folder, a .gguf file or a name, got {model!r}")
    try:
        str(model).encode()
    except UnicodeEncodeError:
        raise config_error(
            "model",
            f"the path of the model, {model}, is not UTF-8; rename it, or link to it",
        ) from None
    path = resolve(model, say)
    if existing(model) is None:
        return path, str(parse(str(model)) or model)  # a bundled model keeps its name
    full = path.resolve()
    return path, shown(full.stem if full.suffix == ".gguf" else full.name)
