"""docs/metrics.md lists what the server exports."""

from __future__ import annotations

from helpers import metric_table


def test_the_page_is_current() -> None:
    assert metric_table.PAGE.read_text(encoding="utf-8") == metric_table.page(), (
        "run python tests/helpers/metric_table.py"
    )
