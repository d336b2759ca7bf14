"""`tidemill dashboards`: a dashboard for Grafana, and alert rules for Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from tidemill.cli.declared import argument, option
from tidemill.cli.outputs import writing


def dashboards(
    folder: Path = argument(..., help="Where the files are written; it is made."),
    ttft: float = option(5.0, help="Seconds to the first token (p99) that an alert allows."),
    itl: float = option(0.5, help="Seconds between tokens (p99) that an alert allows."),
    runbooks: str = option("", help="URL of the folder that alerts.md will be in, for the links."),
) -> None:
    """Write a Grafana dashboard, alert rules of Prometheus and their runbook.

    DIR gets grafana-tidemill.json, prometheus-alerts.yml, alerts.md and prometheus.yml, an example
    of a scrape. They name only metrics that this version exports (docs/observability.md).
    """
    import json

    from tidemill.metrics.monitoring.alerts import RUNBOOK, Objectives, rules, runbook
    from tidemill.metrics.monitoring.dashboard import dashboard

    objectives = Objectives(ttft=ttft, itl=itl)
    files = {
        "grafana-tidemill.json": json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n",
        "prometheus-alerts.yml": rules(objectives, runbooks),
        RUNBOOK: runbook(objectives),
        "prometheus.yml": SCRAPE,
    }
    with writing("DIR", folder):
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(f"wrote {folder / name}", err=True)


SCRAPE = """\
# Start Prometheus with --enable-feature=exemplar-storage to keep the trace ids of slow requests.
global:
  scrape_interval: 15s
rule_files: [prometheus-alerts.yml]
scrape_configs:
  - job_name: tidemill
    # A key of role metrics (tidemill keys create prometheus --role metrics), where keys exist:
    # authorization: {credentials_file: /etc/prometheus/tidemill.key}
    static_configs:
      - targets: ["127.0.0.1:8000"]
"""
