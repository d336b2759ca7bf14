"""Every metric of the server, from the collectors themselves; docs/metrics.md.

python tests/helpers/metric_table.py    # writes the page
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src")]

from tidemill.contract.wire import EngineStats, SpeculationFigures  # noqa: E402
from tidemill.metrics.admission import AdmissionMetrics  # noqa: E402
from tidemill.metrics.database import DatabaseMetrics  # noqa: E402
from tidemill.metrics.quotas import QuotaMetrics  # noqa: E402
from tidemill.metrics.registry import ServerMetrics  # noqa: E402
from tidemill.metrics.rollouts import RolloutMetrics  # noqa: E402
from tidemill.metrics.usage import UsageMetrics  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
HEAD = """# Metrics

What `GET /metrics` exports ([operations.md](operations.md) says how to use it). Counters end in
`_total`; a histogram has `_bucket`, `_sum` and `_count`. An empty unit: a count, or 0 and 1. Some
appear only once there is something to say. Written by `python tests/helpers/metric_table.py`.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
"""
_UNITS = ("seconds", "tokens", "ratio", "rows", "blocks")


def _registry() -> CollectorRegistry:
    server = ServerMetrics()
    server.set_engine_stats("model", EngineStats(speculation=SpeculationFigures()))
    AdmissionMetrics(server.registry)
    QuotaMetrics(server.registry)
    UsageMetrics(server.registry, lambda: 0)
    RolloutMetrics(server.registry)
    DatabaseMetrics(server.registry).watch(lambda: True, lambda: 0)
    return server.registry


def rows() -> Iterator[str]:
    """A row of the table for each metric, by name."""
    found = {}
    # The library has no public list of collectors, and labels are known to them alone.
    for collector in getattr(_registry(), "_collector_to_names"):  # noqa: B009
        for family in collector.collect():
            labels = getattr(family, "_labelnames", getattr(collector, "_labelnames", ()))
            name = family.name + ("_total" if family.type == "counter" else "")
            words = family.name.split("_")
            unit = next((u for u in _UNITS if u in words), "")
            shown = ", ".join(f"`{label}`" for label in labels)
            text = family.documentation.replace("|", "\\|")
            found[name] = f"| `{name}` | {family.type} | {unit} | {shown} | {text} |"
    return (found[name] for name in sorted(found))


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
