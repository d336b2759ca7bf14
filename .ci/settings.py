"""The tables of docs/deployment.md from the table of settings; `--write` writes them anew."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tidemill.deployment.request_settings import limit_settings, sampling_settings
from tidemill.deployment.settings import (
    ADMISSION,
    MODEL,
    PIPELINE,
    PRICES,
    QUOTAS,
    SECURITY,
    SERVER,
    TRAFFIC,
    UPSTREAM,
    VERSION,
    Setting,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "deployment.md"
TABLES = {
    "server": SERVER,
    "admission": ADMISSION,
    "security": SECURITY,
    "limits": limit_settings(),
    "prices": PRICES,
    "quotas": QUOTAS,
    "upstream": UPSTREAM,
    "models": (*MODEL, TRAFFIC),
    "sampling": sampling_settings(),
    "versions": VERSION,
    "pipelines": PIPELINE,
}
_HEAD = "| key | value | default | flag | a reload | |\n|---|---|---|---|---|---|\n"
_MARKS = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(settings: Iterable[Setting]) -> str:
    """A Markdown table of settings."""
    lines = []
    for setting in settings:
        default = (
            setting.unset if setting.default is None else f"`{setting.kind.show(_used(setting))}`"
        )
        flag = f"`{setting.flag_name}`" if setting.flag else ""
        help = (
            setting.help.partition(" default: ")[0].rstrip(";")
            if setting.default is None
            else setting.help
        )
        help = help if help.endswith(".") else f"{help}."
        cells = (f"`{setting.key}`", setting.kind.what, default, flag, setting.apply, help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def _used(setting: Setting) -> object:
    return setting.kind.read(setting.default, Path("/"))


def main() -> int:
    """Check or write the page; returns the exit code."""
    page = PAGE.read_text()
    new = _MARKS.sub(lambda match: match[1] + table(TABLES[match[2]]) + match[3], page)
    missing = TABLES.keys() - {match[2] for match in _MARKS.finditer(page)}
    if missing:
        print(f"docs/deployment.md has no table of {', '.join(sorted(missing))}")
        return 1
    if "--write" in sys.argv[1:]:
        PAGE.write_text(new)
    elif new != page:
        print("the tables of docs/deployment.md are not up to date: run .ci/settings.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
