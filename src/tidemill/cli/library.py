"""`tidemill list`: the models that can be served by name without a download."""

from __future__ import annotations

from pathlib import Path

import typer


def list_models(
    folders: list[Path] = typer.Argument(None, help="Also look for models in these folders."),
) -> None:
    """List the bundled models, the Hugging Face cache, and models in given folders."""
    from rich.console import Console
    from rich.table import Table

    from tidemill.base.errors import TidemillError
    from tidemill.cli.machine import human_bytes
    from tidemill.loading import bundled_models, inspect_model

    table = Table("name", "family", "parameters", "weights", "where", box=None, header_style="bold")
    found = [(name, path, "bundled") for name, path in bundled_models().items()]
    found += [(name, path, "hub cache") for name, path in _hub_cache().items()]
    found += [(path.name, path, str(path)) for f in folders or () for path in _models_in(f)]
    for name, path, where in found:
        try:
            summary = inspect_model(path)
        except TidemillError as error:
            table.add_row(name, "[dim]cannot be used[/dim]", "", "", f"{where}: {error.message}")
            continue
        size = f"{human_bytes(summary.weight_bytes)} {summary.spec.weights_dtype}"
        table.add_row(name, summary.spec.family, f"{summary.parameters / 1e6:,.1f} M", size, where)
    console = Console()
    console.print(table if found else "no models; pass a folder to look in")


def _hub_cache() -> dict[str, Path]:
    """Hub id -> newest snapshot folder in the local Hugging Face cache; no network is used."""
    from huggingface_hub.constants import HF_HUB_CACHE

    found = {}
    for repo in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        snapshots = [s for s in repo.glob("snapshots/*") if (s / "config.json").is_file()]
        if snapshots:
            name = repo.name.removeprefix("models--").replace("--", "/")
            found[name] = max(snapshots, key=lambda s: s.stat().st_mtime)
    return found


def _models_in(folder: Path) -> list[Path]:
    from tidemill.base.errors import config_error

    if not folder.is_dir():
        raise config_error("folders", f"{folder}: no such folder")
    candidates = [folder, *sorted(folder.iterdir())]
    return [
        path
        for path in candidates
        if path.suffix == ".gguf" or (path.is_dir() and (path / "config.json").is_file())
    ]
