"""docs/metrics.md, from the table of metrics.

python tests/helpers/metric_table.py    # writes the page
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src")]

from tidemill.metrics.aliases import ALIASES  # noqa: E402
from tidemill.metrics.families import FAMILIES, GROUPS, Family, Kind  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
HEAD = """# Metrics

What `GET /metrics` exports; [observability.md](observability.md#metrics) says how to use it. Of a
histogram the names end in `_bucket`, `_sum` and `_count`. An empty unit: a count, or 0 and 1. Some
appear only once there is something to say. `python tests/helpers/metric_table.py` writes this page
from `src/tidemill/metrics/families.py`.
"""
TABLE = "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n"
ALIASED = """
## Names of {server}

`--metrics-aliases {server}` exports these as well, with {labels}. What {server}
counts and this server does not is absent.

| there | here |
|---|---|
"""


def sections() -> Iterator[str]:
    """A table for each group of metrics."""
    for group, families in GROUPS.items():
        yield f"\n## {group}\n\n{TABLE}"
        yield from map(_row, families)


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.full}` | {family.kind} | {family.unit} | {labels} | {family.text} |\n"


def aliases() -> Iterator[str]:
    """A table for each server whose names are offered."""
    for server, names in ALIASES.items():
        changed = [f"`{there}` for `{here}`" for here, there in names.labels.items()]
        added = [f'`{label}="{value}"`' for label, value in names.added.items()]
        yield ALIASED.format(server=server, labels=" and ".join((", ".join(changed), *added)))
        for alias in names.metrics:
            family = FAMILIES[alias.source]
            only = ",".join(f'{label}="{value}"' for label, value in alias.only.items())
            total = "_total" if family.kind is Kind.COUNTER else ""
            shown = f"`{family.full}{{{only}}}`" if only else f"`{family.full}`"
            yield f"| `{alias.name}{total}` | {shown} |\n"


def page() -> str:
    """The whole page."""
    return HEAD + "".join((*sections(), *aliases()))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
