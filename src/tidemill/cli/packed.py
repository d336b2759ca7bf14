"""`tidemill packed`: the cache of packed weights."""

from __future__ import annotations

import time

import click

from tidemill.cli import options
from tidemill.cli.acting import JSON, print_json
from tidemill.cli.declared import option


def packed(
    clear: bool = option(False, "--clear", help="Remove them all."),
    packed_cache: str = options.PACKED_CACHE,
    as_json: bool = JSON,
) -> None:
    """List the packed weights that are kept for quick starts, or remove them."""
    from pathlib import Path

    from tidemill.base.errors import config_error
    from tidemill.cli.machine import human_bytes
    from tidemill.worker.packed_store import PackedStore, default_folder

    setting = options.packed_cache(packed_cache)
    if setting == "off":
        raise config_error("packed-cache", "--packed-cache off keeps nothing: name a folder")
    store = PackedStore(default_folder() if setting == "auto" else Path(setting))
    if clear:
        freed = store.clear() if store.folder.is_dir() else 0
        if as_json:
            print_json({"folder": str(store.folder), "freed": freed})
        else:
            click.echo(f"removed {human_bytes(freed)} from {store.folder}")
        return
    entries = store.entries()
    if as_json:
        listed = [{"model": e.model, "bytes": e.nbytes, "used": e.used} for e in entries]
        print_json({"folder": str(store.folder), "entries": listed})
        return
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        click.echo(f"{human_bytes(entry.nbytes):>10}  last used {when}  {entry.model}")
    total = human_bytes(sum(entry.nbytes for entry in entries))
    click.echo(f"{len(entries)} kept, {total}, in {store.folder}")
