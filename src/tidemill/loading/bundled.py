"""Models shipped inside the package, available by name and offline."""

from __future__ import annotations

from pathlib import Path

_ASSETS = Path(__file__).resolve().parent.parent / "assets"

DEFAULT_MODEL = "brook"


def bundled_models() -> dict[str, Path]:
    """Name -> folder of every model in the package."""
    folders = sorted(_ASSETS.iterdir()) if _ASSETS.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}
