"""The alerts: a table of what is wrong, how it shows, and what to do; rules of Prometheus and the
runbook that they link to are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.metrics.monitoring.promql import Scope, ratio

ALL = Scope("", "", "5m")

RUNBOOK = "alerts.md"


class Alert(NamedTuple):
    """An alert.

    Attributes:
        name: without ``Tidemill``.
        expression: PromQL; it holds while there is something wrong.
        hold: how long it must hold.
        severity: ``critical`` (users notice; wake somebody), ``warning`` (look today).
        summary: one line; ``{{ $labels.x }}`` is what it is about.
        meaning: what has happened.
        remedy: what to do.
    """

    name: str
    expression: str
    hold: str
    severity: str
    summary: str
    meaning: str
    remedy: str

    @property
    def full(self) -> str:
        """Its name in Prometheus."""
        return f"Tidemill{self.name}"


class Objectives(NamedTuple):
    """What the alerts of latencies hold against.

    Attributes:
        ttft: seconds to the first token, at the 99th percentile.
        itl: seconds between tokens, at the 99th percentile.
        errors: share of responses that may be errors of the server.
        refused: share of requests that may be answered 429.
    """

    ttft: float = 5.0
    itl: float = 0.5
    errors: float = 0.01
    refused: float = 0.05


def alerts(of: Objectives) -> Sequence[Alert]:
    """All alerts."""
    return (*_of_requests(of), *_of_engines(), *_of_the_database(), *_of_the_rest())


def _of_requests(of: Objectives) -> Iterator[Alert]:
    errors = ratio(
        ALL.rate("http_responses", ("instance",), {"status": "5.."}),
        ALL.rate("http_responses", ("instance",)),
    )
    yield Alert(
        *("Errors", f"{errors} > {of.errors:g}", "5m", "critical"),
        "{{ $value | humanizePercentage }} of the responses of {{ $labels.instance }} are errors",
        "The server answers requests with 5xx.",
        "`/readyz` says why an engine does not answer; `tidemill explain` and the log say which "
        "requests failed. 503 while draining or loading is no fault: see EnginesReplaced.",
    )
    ended = ALL.rate("requests", ("instance",))
    refused = ALL.rate("requests_refused", ("instance",))
    yield Alert(
        *("Refusing", f"{ratio(refused, ended)} > {of.refused:g}", "10m", "warning"),
        "{{ $labels.instance }} refuses {{ $value | humanizePercentage }} of its requests",
        "The queue, a bound on open answers or an objective is full: clients get 429.",
        "The panel `Refused (429), by reason` says which bound. `queue`: more machines, or a "
        "larger `--max-queue-tokens` if clients rather wait; one tenant alone: a quota for it.",
    )
    first = ALL.quantile(0.99, "ttft_seconds")
    yield Alert(
        *("SlowFirstToken", f"{first} > {of.ttft:g}", "10m", "warning"),
        "{{ $labels.model }}: a first token takes {{ $value | humanizeDuration }} (p99)",
        "Requests wait too long for their first token.",
        "`Where the time goes` says whether they queue (load: add machines, or bound the queue), "
        "are computed (long prompts: see the share that is cached) or wait for a model to load "
        "(`pin` it). `tidemill explain --slower 5` lists them.",
    )
    between = ALL.quantile(0.99, "itl_seconds")
    yield Alert(
        *("SlowTokens", f"{between} > {of.itl:g}", "10m", "warning"),
        "{{ $labels.model }}: {{ $value | humanizeDuration }} between tokens (p99)",
        "Streams pause.",
        "Compare `Time of a step` and `Rows of a step`; `--max-itl-ms` bounds what prompts may add "
        "to a step. Steps that take far longer than predicted: another program computes here.",
    )
    queue = ratio(ALL.gauge("queue_tokens"), ALL.gauge("queue_tokens_bound"))
    yield Alert(
        *("QueueFull", f"{queue} > 0.9", "5m", "warning"),
        "{{ $labels.model }}: the queue holds {{ $value | humanizePercentage }} of its bound",
        "More comes than is computed; soon it is answered 429.",
        "Add machines, or send background work as batches, which give way to other requests.",
    )


def _of_engines() -> Iterator[Alert]:
    replaced = ALL.increase("engine_restarts", "15m", ("instance", "model", "cause"))
    about = "{{ $labels.model }} at {{ $labels.instance }}: engine replaced ({{ $labels.cause }})"
    yield Alert(
        *("EnginesReplaced", f"{replaced} > 0", "0m", "warning"),
        about,
        "An engine process ended or made no progress, and was replaced; its streams went on.",
        "The log has the last step and why. Killed by the kernel: too little memory, see "
        "`tidemill plan`. A `stall` on a busy machine: `--stall-timeout`.",
    )
    yield Alert(
        *("EnginesKeepEnding", f"{replaced} > 3", "0m", "critical"),
        f"{about}, again and again",
        "Something ends every engine: a request that is replayed, the machine, or the files.",
        "The log names requests that are suspected and in quarantine. Otherwise look at memory "
        "and at the machine's own log.",
    )
    full = f"{ALL.gauge('kv_usage_ratio', how='max')} > 0.95"
    yield Alert(
        *("KvCacheFull", f"({full}) and ({ALL.rate('preemptions')} > 0.1)", "10m", "warning"),
        "{{ $labels.model }}: the KV cache is full, and running requests are preempted",
        "Requests are computed again because their blocks were needed.",
        "A larger `--kv-memory`, `--kv-dtype int8`, a smaller `--max-num-seqs`, or more machines.",
    )
    by = ("instance", "model", "tier")
    unsaved = ALL.increase("kv_tier_blocks", "15m", by, {"outcome": "unsaved"})
    where = "{{ $labels.model }} at {{ $labels.instance }}"
    yield Alert(
        *("KvTierNotWritten", f"{unsaved} > 0", "15m", "warning"),
        f"{where}: KV blocks cannot be written to the tier {{{{ $labels.tier }}}}",
        "The disk of `--kv-disk` is full or fails; what leaves the cache is computed again.",
        "The log has the error. Make room, or give the folder a smaller size (`PATH:SIZE`).",
    )
    damaged = ALL.increase("kv_tier_blocks", "1h", by, {"outcome": "damaged"})
    yield Alert(
        *("KvTierDamaged", f"{damaged} > 10", "0m", "warning"),
        f"{where}: damaged KV blocks in the tier {{{{ $labels.tier }}}}",
        "Blocks differ from what was saved; they were found and computed again.",
        "A few follow a crash of the machine. If they go on: check the disk, and its memory.",
    )
    off = ratio(ALL.rate("step_predicted_measured_seconds"), ALL.rate("step_predicted_seconds"))
    yield Alert(
        *("StepsSlowerThanPredicted", f"{off} > 1.5", "30m", "warning"),
        "{{ $labels.model }}: steps take {{ $value | humanize }} times what is predicted",
        "The machine is slower than it was: admission and chunks of prompts go by wrong times.",
        "Look for other programs, a lower clock (heat) and memory that is being swapped.",
    )


def _of_the_database() -> Iterator[Alert]:
    down = ALL.gauge("database_available", ("instance",), how="min")
    yield Alert(
        *("DatabaseDown", f"{down} == 0", "2m", "critical"),
        "{{ $labels.instance }}: the database does not answer",
        "Keys and limits count as last known, for `--database-outage`; then keys of the database "
        "are refused. Usage waits on disk.",
        "Bring the database back; the server finds it by itself.",
    )
    lost = ALL.increase("usage_records_lost", "15m", ("instance",))
    yield Alert(
        *("UsageLost", f"{lost} > 0", "0m", "critical"),
        "{{ $labels.instance }}: {{ $value | humanize }} requests were not recorded",
        "The spool or its disk is full: requests were answered and neither counted nor audited.",
        "Make room in `TIDEMILL_HOME`, and look why the database takes none.",
    )
    waiting = ALL.gauge("usage_records_waiting", ("instance",))
    yield Alert(
        *("UsageWaits", f"{waiting} > 10000", "15m", "warning"),
        "{{ $labels.instance }}: {{ $value | humanize }} records wait for the database",
        "Usage, budgets and audit lag behind.",
        "The database is slow or gone; nothing is lost before the spool is full (docs/usage.md).",
    )


def _of_the_rest() -> Iterator[Alert]:
    back = ALL.increase("rollout_events", "1h", ("model", "event"), {"event": "rolled back"})
    yield Alert(
        *("RolloutRolledBack", f"{back} > 0", "0m", "warning"),
        "{{ $labels.model }}: a version was rolled back",
        "The evidence was against it, or there was no time left.",
        "`tidemill rollout` shows which metric decided (docs/rollouts.md).",
    )
    saved = ALL.gauge("speculation_saved_seconds", ("model",), {"how": "measured"})
    yield Alert(
        *("SpeculationLoses", f"{saved} < -10", "30m", "warning"),
        "{{ $labels.model }}: drafts cost more time than they save",
        "Steps with drafts take longer than those without would.",
        "`--speculate off` for this model, or another drafter (docs/speculation.md).",
    )
    target = ALL.gauge("gateway_target_up", ("instance", "target"), how="min")
    yield Alert(
        *("TargetDown", f"{target} == 0", "5m", "warning"),
        "{{ $labels.target }} does not answer the gateway {{ $labels.instance }}",
        "Its breaker is open: requests go to other targets, as long as there are any.",
        "Look at that server; the gateway tries it again by itself (docs/gateway.md).",
    )
    readers = ALL.rate("slow_readers", ("instance",))
    yield Alert(
        *("SlowReaders", f"{readers} > 0.1", "15m", "warning"),
        "{{ $labels.instance }}: clients do not read their answers",
        "Connections are cut because what was written to them is not read.",
        "A proxy that buffers, or clients that stop without closing.",
    )


def rules(of: Objectives, base: str = "") -> str:
    """A file of rules for Prometheus, in YAML.

    Args:
        of: what latencies are held against.
        base: URL of the folder that has the runbook; empty: beside the rules.
    """
    lines = ["groups:", "  - name: tidemill", "    rules:"]
    for alert in alerts(of):
        link = f"{base.rstrip('/')}/{RUNBOOK}" if base else RUNBOOK
        lines += [
            f"      - alert: {alert.full}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.hold}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          description: {_quoted(alert.meaning)}",
            f"          runbook_url: {_quoted(f'{link}#{alert.full.lower()}')}",
        ]
    return "\n".join(lines) + "\n"


def runbook(of: Objectives) -> str:
    """What each alert means and what to do, in Markdown; the rules link to its headings."""
    parts = ["# Alerts\n\nWritten by `tidemill dashboards`, with the rules that link here.\n"]
    parts += [
        f"\n## {alert.full}\n\n**{alert.severity}**, after {alert.hold}. {alert.meaning}\n\n"
        f"{alert.remedy}\n\n```promql\n{alert.expression}\n```\n"
        for alert in alerts(of)
    ]
    return "".join(parts)


def _quoted(text: str) -> str:
    # A string of JSON is one of YAML.
    return json.dumps(text, ensure_ascii=False)
