"""Machine facts and byte sizes as the command line shows them."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_cpu() -> str:
    """Model name and CPU count as the operating system reports them.

    The family is included because virtual machines may shorten the name.
    """
    facts = cpu_facts()
    name = facts.get("model name") or platform.processor() or platform.machine()
    family = f" (family {facts['cpu family']})" if "cpu family" in facts else ""
    return f"{name}{family}, {os.cpu_count()} CPUs"


def cpu_facts() -> dict[str, str]:
    """``/proc/cpuinfo`` fields of the first processor; empty on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def installed(package: str) -> str | None:
    """Version of an installed distribution, or None; does not import it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def human_bytes(count: float) -> str:
    """Bytes with a binary unit: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable: GiB ends the loop")


def parse_bytes(option: str, text: str | None) -> int | None:
    """``4GiB``, ``512M``, ``1.5g`` or plain bytes to a number; None stays None.

    Raises TidemillError of kind CONFIG naming `option`.
    """
    from tidemill.base.errors import config_error
    from tidemill.base.sizes import parse_size

    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError:
        raise config_error(
            option, f"--{option} takes a size above 0 such as 4GiB or 512MiB, got {text!r}"
        ) from None
