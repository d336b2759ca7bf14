"""The dashboard: a table of panels, and the document that Grafana imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.metrics.monitoring.promql import Scope, ratio

ALL = Scope('instance=~"$instance"', 'model=~"$model"', "$__rate_interval")

_SECONDS, _TOKENS, _PER_SECOND, _SHARE, _COUNT = "s", "tokens", "reqps", "percentunit", "short"
_TOKEN_RATE = "tokens/s"
_BYTES, _BYTE_RATE = "bytes", "Bps"


class Panel(NamedTuple):
    """A plot.

    Attributes:
        title: what it answers.
        unit: Grafana's name.
        queries: PromQL -> the name of its series.
        text: what to know about it.
        stat: one number instead of a plot.
    """

    title: str
    unit: str
    queries: Mapping[str, str]
    text: str = ""
    stat: bool = False


def _quantiles(name: str, title: str, text: str = "") -> Panel:
    queries = {ALL.quantile(q, name): f"p{q * 100:g} {{{{model}}}}" for q in (0.5, 0.9, 0.99)}
    return Panel(title, _SECONDS, queries, text)


_M = "{{model}}"
_TIER = ("model", "tier")
_MT = "{{tier}} {{model}}"
_REFUSED = ALL.rate("requests_refused", ("model", "reason"))

ROWS: Mapping[str, Sequence[Panel]] = {
    "Overview": (
        Panel("Requests a second", _PER_SECOND, {ALL.rate("requests", ()): "requests"}, stat=True),
        Panel(
            "Tokens a second",
            _TOKEN_RATE,
            {ALL.rate("generation_tokens", ()): "generated"},
            stat=True,
        ),
        Panel(
            "First token, p99", _SECONDS, {ALL.quantile(0.99, "ttft_seconds", ()): "p99"}, stat=True
        ),
        Panel(
            "Server errors",
            _SHARE,
            {
                ratio(
                    ALL.rate("http_responses", (), {"status": "5.."}),
                    ALL.rate("http_responses", ()),
                ): "errors"
            },
            stat=True,
        ),
        Panel(
            "Requests by how they ended",
            _PER_SECOND,
            {ALL.rate("requests", ("reason",)): "{{reason}}"},
        ),
        Panel(
            "Tokens",
            _TOKEN_RATE,
            {
                ALL.rate("generation_tokens"): f"generated {_M}",
                ALL.rate("prompt_tokens"): f"prompts {_M}",
                ALL.rate("prompt_tokens_cached"): f"cached {_M}",
            },
        ),
        Panel(
            "Requests now",
            _COUNT,
            {
                ALL.gauge("requests_active"): f"active {_M}",
                ALL.gauge("running_sequences"): f"running {_M}",
                ALL.gauge("queue_sequences"): f"waiting {_M}",
            },
        ),
        Panel(
            "Responses by status",
            _PER_SECOND,
            {ALL.rate("http_responses", ("status",)): "{{status}}"},
        ),
        Panel(
            "Cost",
            "currency",
            {ALL.rate("cost", ("model", "currency")): "{{model}} {{currency}}/s"},
        ),
    ),
    "Latency": (
        _quantiles("ttft_seconds", "Time to first token"),
        _quantiles("itl_seconds", "Between tokens", "Tokens that come together share their gap."),
        _quantiles("tpot_seconds", "Mean time per token"),
        _quantiles("e2e_seconds", "Whole request"),
        Panel(
            "Where the time goes",
            _SECONDS,
            {ALL.rate("phase_seconds", ("phase",), part="sum"): "{{phase}}"},
            "Seconds of ended requests per second, by phase (docs/observability.md).",
        ),
        Panel(
            "Lengths, p90",
            _TOKENS,
            {
                ALL.quantile(0.9, "prompt_length_tokens"): f"prompt {_M}",
                ALL.quantile(0.9, "generation_length_tokens"): f"output {_M}",
            },
        ),
    ),
    "Cache": (
        Panel("KV blocks held", _SHARE, {ALL.gauge("kv_usage_ratio", how="max"): _M}),
        Panel(
            "Prompt tokens found in the prefix cache",
            _SHARE,
            {ratio(ALL.rate("prefix_cache_hit_tokens"), ALL.rate("engine_prompt_tokens")): _M},
        ),
        Panel(
            "Why no more was cached",
            _PER_SECOND,
            {ALL.rate("prefix_cache_misses", ("miss",)): "{{miss}}"},
        ),
        Panel("Preemptions", _PER_SECOND, {ALL.rate("preemptions"): _M}),
    ),
    "KV tiers": (
        Panel(
            "Prompt tokens brought from tiers",
            _TOKEN_RATE,
            {ALL.rate("kv_tier_tokens", _TIER): _MT},
            "They were not computed again (docs/kv-tiers.md).",
        ),
        Panel(
            "KV blocks saved and brought",
            _PER_SECOND,
            {
                ALL.rate("kv_tier_blocks", (*_TIER, "outcome"), {"outcome": "saved|brought"}): (
                    f"{{{{outcome}}}} {_MT}"
                )
            },
        ),
        Panel(
            "KV blocks damaged, not written or lost",
            _PER_SECOND,
            {
                ALL.rate("kv_tier_blocks", (*_TIER, "outcome"), {"outcome": "damaged|unsaved"}): (
                    f"{{{{outcome}}}} {_MT}"
                ),
                ALL.rate("kv_tier_lost_blocks"): f"lost {_M}",
            },
            "Damaged ones are computed again; lost ones were evicted before they were saved.",
        ),
        Panel(
            "Bandwidth of tiers",
            _BYTE_RATE,
            {
                ratio(
                    ALL.rate("kv_tier_brought_bytes", _TIER),
                    ALL.rate("kv_tier_brought_seconds", _TIER),
                ): _MT
            },
            "Of what was brought, while it was.",
        ),
        Panel("Held in tiers", _BYTES, {ALL.gauge("kv_tier_bytes", _TIER, how="max"): _MT}),
    ),
    "Speculation": (
        Panel(
            "Drafts that became tokens",
            _SHARE,
            {ratio(ALL.rate("drafts_accepted"), ALL.rate("drafted_tokens")): _M},
        ),
        Panel(
            "Tokens per step with drafts",
            _COUNT,
            {ratio(ALL.rate("speculation_step_tokens"), ALL.rate("speculation_steps")): _M},
            "Over all streams of the step.",
        ),
        Panel(
            "Acceptance by drafter",
            _SHARE,
            {
                ratio(
                    ALL.rate("drafter_accepted", ("model", "drafter")),
                    ALL.rate("drafter_verified", ("model", "drafter")),
                ): "{{drafter}} {{model}}"
            },
        ),
        Panel(
            "Time saved since the start",
            _SECONDS,
            {ALL.gauge("speculation_saved_seconds", ("model", "how")): "{{how}} {{model}}"},
        ),
    ),
    "Adapters": (
        Panel(
            "Requests by adapter",
            _PER_SECOND,
            {ALL.rate("adapter_requests", ("model", "adapter")): "{{adapter}} {{model}}"},
        ),
        Panel(
            "Tokens by adapter",
            _TOKEN_RATE,
            {ALL.rate("adapter_generation_tokens", ("model", "adapter")): "{{adapter}} {{model}}"},
        ),
    ),
    "Tenants": (
        Panel(
            "Generated tokens by tenant",
            _TOKEN_RATE,
            {ALL.rate("tenant_tokens", ("tenant",), {"of": "generated"}): "{{tenant}}"},
        ),
        Panel(
            "Waiting tokens by tenant",
            _TOKENS,
            {ALL.gauge("tenant_queue_tokens", ("tenant",)): "{{tenant}}"},
        ),
        Panel("Refused (429), by reason", _PER_SECOND, {_REFUSED: "{{reason}} {{model}}"}),
        Panel(
            "Refused (429), by tenant",
            _PER_SECOND,
            {ALL.rate("requests_refused", ("tenant",)): "{{tenant}}"},
        ),
        Panel(
            "Quotas",
            _PER_SECOND,
            {
                ALL.rate("quota_refusals", ("limit", "level")): "refused: {{level}} {{limit}}",
                ALL.rate("quota_warnings", ("limit", "level")): "warned: {{level}} {{limit}}",
            },
        ),
        Panel(
            "Queue",
            _SHARE,
            {ratio(ALL.gauge("queue_tokens"), ALL.gauge("queue_tokens_bound")): _M},
            "Tokens that wait, of those that may.",
        ),
    ),
    "Rollouts": (
        Panel(
            "Traffic by version",
            _SHARE,
            {
                ALL.gauge(
                    "version_traffic_ratio", ("model", "version"), how="max"
                ): "{{model}}@{{version}}"
            },
        ),
        Panel(
            "Evidence",
            _COUNT,
            {
                ALL.gauge(
                    "version_evidence", ("model", "version", "metric", "that"), how="max"
                ): "{{model}}@{{version}} {{metric}} {{that}}"
            },
            "At 1 a metric is known to be beyond its limit, or within.",
        ),
        Panel(
            "Events",
            _COUNT,
            {
                ALL.increase(
                    "rollout_events", "$__interval", ("model", "event")
                ): "{{model}} {{event}}"
            },
        ),
        Panel(
            "Copies for shadows",
            _PER_SECOND,
            {ALL.rate("shadow_copies", ("model", "outcome")): "{{model}} {{outcome}}"},
        ),
    ),
    "Energy": (
        Panel(
            "Power",
            "watt",
            {
                ALL.rate("energy_joules", ("source",)): "machine: {{source}}",
                ALL.rate("request_energy_joules", ("model", "how")): "requests: {{model}} {{how}}",
            },
        ),
        Panel(
            "Energy per generated token",
            "joule",
            {ratio(ALL.rate("request_energy_joules"), ALL.rate("generation_tokens")): _M},
        ),
        Panel(
            "Carbon dioxide",
            "g/s",
            {ALL.rate("request_carbon_grams", ("model", "how")): "{{model}} {{how}}"},
        ),
    ),
    "Engines": (
        Panel("Rows of a step, mean", "rows", {ALL.mean("batch_size_rows"): _M}),
        Panel(
            "Tokens of a step, mean",
            _TOKENS,
            {ratio(ALL.rate("step_tokens"), ALL.rate("steps")): _M},
        ),
        _quantiles("step_time_seconds", "Time of a step"),
        Panel(
            "Share of the time in steps",
            _SHARE,
            {
                ALL.rate("step_seconds", ("model", "instance")): "steps {{model}} {{instance}}",
                ALL.rate(
                    "compute_seconds", ("model", "instance")
                ): "computing {{model}} {{instance}}",
            },
        ),
        Panel(
            "What steps took, of what was predicted",
            _SHARE,
            {
                ratio(
                    ALL.rate("step_predicted_measured_seconds"), ALL.rate("step_predicted_seconds")
                ): _M
            },
        ),
        Panel(
            "Engines replaced",
            _COUNT,
            {
                ALL.increase(
                    "engine_restarts", "$__interval", ("model", "cause")
                ): "{{cause}} {{model}}"
            },
        ),
        Panel(
            "Grammars and masks",
            _SHARE,
            {
                ALL.rate("grammar_seconds"): f"compiling {_M}",
                ALL.rate("mask_seconds"): f"masks {_M}",
            },
            "Seconds per second.",
        ),
        Panel(
            "Database",
            _COUNT,
            {
                ALL.gauge("database_available", ("instance",), how="min"): "available {{instance}}",
                ALL.gauge("usage_records_waiting", ("instance",)): "records waiting {{instance}}",
            },
        ),
    ),
    "Gateway": (
        Panel(
            "Requests by target",
            _PER_SECOND,
            {ALL.rate("gateway_requests", ("target",)): "{{target}}"},
        ),
        Panel(
            "Failures by target",
            _PER_SECOND,
            {
                ALL.rate("gateway_failures", ("target",)): "not answered: {{target}}",
                ALL.rate("gateway_lost", ("target",)): "lost within an answer: {{target}}",
            },
        ),
        Panel(
            "Predicted wait by target",
            _SECONDS,
            {ALL.gauge("gateway_target_wait_seconds", ("target",), how="max"): "{{target}}"},
        ),
    ),
}

_WIDTH, _HEIGHT, _STAT_HEIGHT = 24, 8, 4
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports; it asks for the data source."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": title,
                "id": len(panels) + 1,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
            }
        )
        top = _add_row(panels, row, top + 1)
    return {
        "title": "Tidemill",
        "uid": "tidemill",
        "tags": ["tidemill", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": [_restarts()]},
        "panels": panels,
    }


def _add_row(panels: list[dict[str, Any]], row: Sequence[Panel], top: int) -> int:
    """The row's panels, and where the next begins."""
    left, height = 0, 0
    for panel in row:
        width = _WIDTH // 4 if panel.stat else _WIDTH // 3
        if left + width > _WIDTH:
            left, top, height = 0, top + height, 0
        tall = _STAT_HEIGHT if panel.stat else _HEIGHT
        place = {"x": left, "y": top, "w": width, "h": tall}
        panels.append(_panel(panel, len(panels) + 1, place))
        left, height = left + width, max(height, tall)
    return top + height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend,
            "exemplar": "_bucket" in query and not panel.stat,
        }
        for i, (query, legend) in enumerate(panel.queries.items())
    ]
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.stat:
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "id": number,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def _variables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    for name, query in (("instance", "tidemill_steps_total"), ("model", "tidemill_steps_total")):
        found.append(
            {
                "name": name,
                "type": "query",
                "datasource": _SOURCE,
                "query": {"query": f"label_values({query}, {name})", "refId": name},
                "refresh": 2,
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return found


def _restarts() -> dict[str, Any]:
    return {
        "name": "Engines replaced",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"{ALL.increase('engine_restarts', '1m', ('model', 'cause'))} > 0",
        "titleFormat": "engine replaced",
        "textFormat": "{{model}}: {{cause}}",
        "step": "1m",
    }


def queries() -> list[str]:
    """Every query, as Prometheus would be asked by a dashboard of the last hour."""
    found = [query for row in ROWS.values() for panel in row for query in panel.queries]
    replaced = (
        ("$__rate_interval", "1m"),
        ("$__interval", "1m"),
        ("$instance", ".*"),
        ("$model", ".*"),
    )
    for variable, value in replaced:
        found = [query.replace(variable, value) for query in found]
    return found
