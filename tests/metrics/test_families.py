"""The table of metrics is what the server exports, and the only place that makes them."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.core import Metric

import tidemill
from tidemill.contract.moves import Tier, TierFigures, TierStats
from tidemill.contract.wire import EngineStats, SpeculationFigures
from tidemill.gateway.holding import Holding
from tidemill.gateway.metrics import GatewayMetrics
from tidemill.metrics.admission import AdmissionMetrics
from tidemill.metrics.database import DatabaseMetrics
from tidemill.metrics.ended import EndedMetrics
from tidemill.metrics.energy import EnergyMetrics
from tidemill.metrics.families import FAMILIES, GROUPS, OTHERS, PREFIX, Bounded, Kind, gauge
from tidemill.metrics.quotas import QuotaMetrics
from tidemill.metrics.registry import ServerMetrics
from tidemill.metrics.rollouts import RolloutMetrics
from tidemill.metrics.usage import UsageMetrics

SOURCE = Path(tidemill.__file__).parent


def everything() -> ServerMetrics:
    """A server that has all of them."""
    server = ServerMetrics()
    tiers = tuple(TierStats(tier=tier, figures=TierFigures()) for tier in (Tier.DISK, Tier.PEER))
    stats = EngineStats(speculation=SpeculationFigures(), tiers=tiers)
    server.set_engine_stats("model", stats)
    AdmissionMetrics(server.registry)
    QuotaMetrics(server.registry)
    UsageMetrics(server.registry, lambda: 0)
    RolloutMetrics(server.registry)
    EndedMetrics(server.registry)
    GatewayMetrics(server.registry, (), Holding())
    EnergyMetrics(server.registry, lambda: {"rapl:package-0": 1.0})
    DatabaseMetrics(server.registry).watch(lambda: True, lambda: 0)
    gauge("plan_error_ratio", server.registry)
    return server


def test_the_server_exports_the_table() -> None:
    exported: dict[str, Metric] = {one.name: one for one in everything().collect()}
    assert set(exported) == {PREFIX + name for name in FAMILIES}
    for family in FAMILIES.values():
        found = exported[PREFIX + family.name]
        assert (found.type, found.documentation) == (family.kind.value, family.text)


def test_every_metric_has_a_meaning_and_is_named_once() -> None:
    rows = [family for group in GROUPS.values() for family in group]
    assert len(rows) == len(FAMILIES)
    for family in rows:
        assert (family.text and family.text[0].isupper()) or family.text[0].isdigit(), family.name
        assert bool(family.buckets) == (family.kind is Kind.HISTOGRAM)


def test_metrics_are_made_of_the_table_alone() -> None:
    made = re.compile(r"\b(Counter|Gauge|Histogram|Summary|Info|\w+MetricFamily)\(\s*f?\"")
    for path in SOURCE.rglob("*.py"):
        if path.name != "families.py":
            text = path.read_text(encoding="utf-8")
            assert "prometheus_client" not in text or not made.search(text), (
                f"{path.name}: a metric is a row of metrics/families.py"
            )


def test_names_from_outside_are_bounded() -> None:
    tenants = Bounded(2)
    assert [tenants.label(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHERS, "a"]


def test_both_formats() -> None:
    server = everything()
    server.of("model").start().finish("stop")
    text, kind = server.render("")
    assert kind.startswith("text/plain") and b"\ntidemill_requests_total{" in text
    text, kind = server.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n") and b"\n# UNIT tidemill_ttft_seconds seconds\n" in text
