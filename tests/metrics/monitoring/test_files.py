"""The dashboard, the alerts and the runbook, as `tidemill dashboards` writes them.

`make monitoring` has a real Prometheus take them.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tidemill.cli.dashboards import dashboards
from tidemill.metrics.families import FAMILIES, Kind

SUFFIXES = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
SERIES = {f.full + suffix for f in FAMILIES.values() for suffix in SUFFIXES.get(f.kind, ("",))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dashboards")
    dashboards(made, ttft=2.5, itl=0.25, runbooks="https://docs.example/x/")
    return made


@pytest.fixture(scope="module")
def grafana(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "grafana-tidemill.json").read_text())
    return found


def test_they_name_only_what_exists(folder: Path) -> None:
    for name in ("grafana-tidemill.json", "prometheus-alerts.yml", "alerts.md"):
        found = set(re.findall(r"\btidemill_\w+", (folder / name).read_text()))
        assert found and found <= SERIES, found - SERIES


def test_the_dashboard_has_a_row_for_each_subject(grafana: dict[str, Any]) -> None:
    rows = [panel["title"] for panel in grafana["panels"] if panel["type"] == "row"]
    wanted = ["Overview", "Latency", "Cache", "KV tiers", "Speculation"]
    assert rows == [*wanted, "Adapters", "Tenants", "Rollouts", "Energy", "Engines", "Gateway"]
    assert all(panel["targets"] for panel in grafana["panels"] if panel["type"] != "row")


def test_no_panel_covers_another(grafana: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in grafana["panels"]:
        at = panel["gridPos"]
        across = range(at["x"], at["x"] + at["w"])
        cells = set(itertools.product(across, range(at["y"], at["y"] + at["h"])))
        assert not cells & taken and max(across) < 24
        taken |= cells
    assert len({panel["id"] for panel in grafana["panels"]}) == len(grafana["panels"])


def test_latencies_show_exemplars(grafana: dict[str, Any]) -> None:
    targets = [target for panel in grafana["panels"] for target in panel.get("targets", ())]
    plotted = [t for t in targets if "_bucket" in t["expr"] and t["exemplar"]]
    assert any("ttft" in target["expr"] for target in plotted)


def test_every_alert_links_to_its_part_of_the_runbook(folder: Path) -> None:
    rules = (folder / "prometheus-alerts.yml").read_text()
    names = re.findall(r"- alert: (\w+)", rules)
    links = re.findall(r'runbook_url: "(.*)"', rules)
    headings = re.findall(r"^## (\w+)$", (folder / "alerts.md").read_text(), re.MULTILINE)
    assert names == headings and len(set(names)) == len(names) > 10
    assert links == [f"https://docs.example/x/alerts.md#{name.lower()}" for name in names]


def test_thresholds_are_the_operator_s(folder: Path) -> None:
    rules = (folder / "prometheus-alerts.yml").read_text()
    assert re.search(r"ttft_seconds_bucket.* > 2\.5\"", rules)
    assert re.search(r"itl_seconds_bucket.* > 0\.25\"", rules)
