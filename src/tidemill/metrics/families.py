"""Every metric of the server: its name, kind, unit, labels and meaning, in one table.

What exports a metric makes it here; docs/metrics.md, the names of other servers (`aliases`), the
dashboards and the alerts are made of the same table. Names follow Prometheus' conventions: base
units in the name, `_total` on counters, which the library adds. The values of a label are bounded:
names of models, limits and levels that are configured, words of the program, and `Bounded` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PREFIX = "tidemill_"

OTHERS = "(others)"


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """A metric with all its labels.

    Attributes:
        name: without `PREFIX`, and of a counter without ``_total``.
        kind: a `Kind`.
        unit: of its values; empty: a count, or 0 and 1.
        labels: names.
        text: what it means.
        buckets: of a histogram.
        field: of `EngineStats` that it exports, ``speculation.`` and a field of
            `SpeculationFigures`; empty: none.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()
    field: str = ""

    @property
    def full(self) -> str:
        """The name in an exposition and in PromQL; of a histogram without its suffixes."""
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def exported_unit(self) -> str:
        """The unit where the name ends in it, as OpenMetrics wants it; else empty."""
        return self.unit if self.name.endswith(f"_{self.unit}") else ""


class Bounded:
    """Names from outside as values of a label: the first ones, and `OTHERS` for the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        """The label's value for a name."""
        if name in self._names or len(self._names) < self._limit:
            self._names.add(name)
            return name
        return OTHERS


_LATENCIES = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0),
)
_COUNTS = tuple(
    float(n)
    for n in (
        *(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
        *(4096, 8192, 16384, 32768, 131072),
    )
)
_RETRIES = tuple(float(n) for n in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600))

_MODEL, _TARGET = ("model",), ("target",)


def _counter(
    name: str, text: str, labels: tuple[str, ...] = _MODEL, unit: str = "", field: str = ""
) -> Family:
    return Family(name, Kind.COUNTER, unit, labels, text, (), field)


def _gauge(
    name: str, text: str, labels: tuple[str, ...] = _MODEL, unit: str = "", field: str = ""
) -> Family:
    return Family(name, Kind.GAUGE, unit, labels, text, (), field)


def _histogram(
    name: str,
    text: str,
    unit: str = "seconds",
    buckets: tuple[float, ...] = _LATENCIES,
    labels: tuple[str, ...] = _MODEL,
) -> Family:
    return Family(name, Kind.HISTOGRAM, unit, labels, text, buckets)


GROUPS: Mapping[str, tuple[Family, ...]] = {
    "Requests": (
        _gauge("requests_active", "Requests being answered"),
        _counter(
            "requests",
            "Requests ended, by finish reason or the code of their error; without a model those "
            "that were refused before one had them",
            ("model", "reason"),
        ),
        _histogram("ttft_seconds", "Time to first token"),
        _histogram("itl_seconds", "Time between tokens of one stream"),
        _histogram("tpot_seconds", "Mean time per output token after the first"),
        _histogram("e2e_seconds", "Time from request to its end"),
        _histogram(
            "phase_seconds",
            "Time of ended requests by phase; a request has those that it spent time in",
            labels=("model", "phase"),
        ),
        _counter("prompt_tokens", "Prompt tokens of ended requests", unit="tokens"),
        _counter(
            "prompt_tokens_cached",
            "Prompt tokens of ended requests found in the prefix cache",
            unit="tokens",
        ),
        _counter("generation_tokens", "Tokens sent to clients", unit="tokens"),
        _histogram("prompt_length_tokens", "Prompt length", "tokens", _COUNTS),
        _histogram("generation_length_tokens", "Output length", "tokens", _COUNTS),
        _counter("malformed_tool_calls", "Outputs that began like a tool call and were none"),
        _counter("slow_readers", "Connections cut because the client did not read its answer", ()),
        _counter("http_responses", "HTTP responses, by status", ("status",)),
    ),
    "Admission and quotas": (
        _gauge("queue_tokens", "Tokens of admitted requests without a first token", unit="tokens"),
        _gauge("queue_tokens_bound", "Tokens that may wait before 429", unit="tokens"),
        _gauge(
            "tenant_queue_tokens",
            "Tokens of admitted requests without a first token, by tenant",
            ("model", "tenant"),
            "tokens",
        ),
        _counter(
            "tenant_tokens",
            "Tokens of ended requests by tenant: of prompts, those of them that were cached, and "
            "generated ones",
            ("model", "tenant", "of"),
            "tokens",
        ),
        _counter(
            "requests_refused",
            "Requests answered 429, by reason and tenant",
            ("model", "reason", "tenant"),
        ),
        _histogram("retry_after_seconds", "What Retry-After said", buckets=_RETRIES),
        _counter(
            "quota_refusals",
            "Requests answered 429 for a quota or budget, by limit and level",
            ("limit", "level"),
        ),
        _counter(
            "quota_warnings",
            "Requests answered beyond a soft limit, by limit and level",
            ("limit", "level"),
        ),
        _gauge("quota_reservations", "Reservations that have not ended", ()),
        _counter(
            "cost",
            "Price of ended requests by the price list; models without a price have none",
            ("model", "currency"),
            "currency",
        ),
    ),
    "Engine": (
        _gauge("queue_sequences", "Sequences waiting for their first or next step", field="queued"),
        _gauge("running_sequences", "Sequences that hold KV blocks", field="running"),
        _gauge(
            "engine_queue_tokens",
            "Known tokens of sequences that wait in the engine",
            unit="tokens",
            field="waiting_tokens",
        ),
        _gauge("tenants", "Tenants with a request in the engine", field="tenants"),
        _gauge(
            "loading",
            "1 while weights are being packed, which steps then wait for",
            field="loading",
        ),
        _counter("steps", "Steps run", field="steps"),
        _counter(
            "step_rows",
            "Rows over all steps; divided by steps: the mean batch size",
            unit="rows",
            field="step_rows",
        ),
        _counter(
            "step_tokens", "Tokens computed over all steps", unit="tokens", field="step_tokens"
        ),
        _counter("step_seconds", "Wall time of all steps", unit="seconds", field="step_seconds"),
        _counter(
            "compute_seconds",
            "Time of all steps inside the backend",
            unit="seconds",
            field="compute_seconds",
        ),
        _counter(
            "step_predicted_seconds",
            "Predicted compute time of steps",
            unit="seconds",
            field="predicted_seconds",
        ),
        _counter(
            "step_predicted_measured_seconds",
            "What the predicted steps took",
            unit="seconds",
            field="measured_seconds",
        ),
        _gauge(
            "step_rows_last",
            "Rows of the latest step (its batch size)",
            unit="rows",
            field="last_step_rows",
        ),
        _gauge(
            "step_tokens_last",
            "Tokens of the latest step",
            unit="tokens",
            field="last_step_tokens",
        ),
        _gauge(
            "step_seconds_last",
            "Wall time of the latest step",
            unit="seconds",
            field="last_step_seconds",
        ),
        _gauge(
            "step_predicted_seconds_last",
            "What the latest step was predicted to compute",
            unit="seconds",
            field="last_predicted_seconds",
        ),
        _histogram("step_time_seconds", "Wall time of a step"),
        _histogram("batch_size_rows", "Rows of a step", "rows", _COUNTS),
        _histogram("batch_size_tokens", "Tokens of a step", "tokens", _COUNTS),
        _counter(
            "engine_generated_tokens", "Tokens sampled", unit="tokens", field="generated_tokens"
        ),
        _counter(
            "forced_tokens",
            "Tokens a constraint forced, appended without sampling",
            unit="tokens",
            field="forced_tokens",
        ),
        _counter(
            "grammars_compiled",
            "Languages compiled for constrained output",
            field="grammars_compiled",
        ),
        _counter("grammars_reused", "Languages found compiled", field="grammars_reused"),
        _counter("grammars_refused", "Languages that cannot be honoured", field="grammars_refused"),
        _counter(
            "grammar_seconds",
            "Time spent compiling languages",
            _MODEL,
            "seconds",
            "grammar_seconds",
        ),
        _counter("mask_seconds", "Time spent on token masks", _MODEL, "seconds", "mask_seconds"),
        _counter("deadlines_expired", "Requests ended by their own deadline", field="expired"),
        _counter("queue_time_expired", "Requests ended by --max-queue-time", field="queue_expired"),
        _counter(
            "engine_restarts",
            "Engines replaced: after a crash, or after a stall",
            ("model", "cause"),
        ),
        _counter("requests_replayed", "Requests that went on on another engine"),
        _gauge(
            "plan_error_ratio",
            "How much longer steps of the last hour took than costs measured by `tidemill "
            "calibrate` predict (measured by predicted, less 1), by what takes their time; once an "
            "hour, where there are such costs",
            ("model", "term"),
        ),
        _histogram("engine_recovery_seconds", "From an engine's end to the replay of its work"),
        _histogram("model_load_seconds", "Time to load a model"),
    ),
    "KV cache": (
        _gauge("kv_blocks", "KV blocks there are", unit="blocks", field="blocks_total"),
        _gauge("kv_blocks_used", "KV blocks held by sequences", unit="blocks", field="blocks_used"),
        _gauge("kv_usage_ratio", "Share of KV blocks held", unit="ratio"),
        _counter(
            "engine_prompt_tokens",
            "Prompt tokens of admitted sequences",
            unit="tokens",
            field="prompt_tokens",
        ),
        _counter(
            "prefix_cache_hit_tokens",
            "Prompt tokens found in the prefix cache",
            unit="tokens",
            field="cached_tokens",
        ),
        _counter(
            "prefix_cache_misses",
            "Prompts of ended requests by why no more of them was cached (docs/observability.md)",
            ("model", "miss"),
        ),
        _counter("preemptions", "Sequences preempted for lack of KV blocks", field="preemptions"),
        _counter(
            "resumed_cached_tokens",
            "Tokens of preempted sequences that were still in the KV cache",
            unit="tokens",
            field="resumed_cached_tokens",
        ),
        _counter(
            "resumed_brought_tokens",
            "Tokens of preempted sequences that came back from a tier below the KV cache (swapped)",
            unit="tokens",
            field="resumed_brought_tokens",
        ),
        _counter(
            "resumed_computed_tokens",
            "Tokens of preempted sequences that were computed again",
            unit="tokens",
            field="resumed_computed_tokens",
        ),
    ),
    "Speculation": (
        _counter(
            "drafted_tokens",
            "Draft tokens verified by speculation",
            unit="tokens",
            field="drafted_tokens",
        ),
        _counter(
            "drafts_accepted",
            "Draft tokens that became tokens of an answer",
            unit="tokens",
            field="drafts_accepted",
        ),
        _counter("speculation_steps", "Steps that verified drafts", field="speculation.steps"),
        _counter(
            "speculation_step_tokens",
            "Tokens that steps with drafts gave",
            unit="tokens",
            field="speculation.tokens",
        ),
        _counter(
            "speculation_held_out_predicted_seconds",
            "Predicted time of steps held out: they were to have drafts and had none",
            unit="seconds",
            field="speculation.held_out_predicted_seconds",
        ),
        _counter(
            "speculation_held_out_seconds",
            "What the steps held out took",
            unit="seconds",
            field="speculation.held_out_seconds",
        ),
        # No counter: a step that took longer than one without drafts takes some away.
        _gauge(
            "speculation_saved_seconds",
            "Time saved since the start by steps with drafts, by how: against the predicted time "
            "of steps without (estimated), and that time corrected by the held out steps "
            "(measured)",
            ("model", "how"),
            "seconds",
        ),
        _counter("drafter_seconds", "Time spent drafting", ("model", "drafter"), "seconds"),
        _counter(
            "drafter_verified",
            "Drafts verified, by position in their proposal (from 1)",
            ("model", "drafter", "position"),
            "tokens",
        ),
        _counter(
            "drafter_accepted",
            "Drafts that became tokens, by position in their proposal",
            ("model", "drafter", "position"),
            "tokens",
        ),
    ),
    "KV tiers": (
        _counter(
            "kv_tier_tokens",
            "Prompt tokens brought back from a tier below the KV cache instead of being computed",
            ("model", "tier"),
            "tokens",
        ),
        _counter(
            "kv_tier_blocks",
            "KV blocks by what became of them: saved in the tier, brought back, found damaged and "
            "computed again, or not written (unsaved)",
            ("model", "tier", "outcome"),
        ),
        _counter("kv_tier_brought_bytes", "KV blocks brought back", ("model", "tier"), "bytes"),
        _counter(
            "kv_tier_brought_seconds",
            "Time that bringing blocks back took, beside the steps",
            ("model", "tier"),
            "seconds",
        ),
        _gauge(
            "kv_tier_bytes",
            "Bytes of all blocks in the tier; on disk also those of engines that share it",
            ("model", "tier"),
            "bytes",
        ),
        _counter("kv_tier_lost_blocks", "KV blocks evicted before they were saved in any tier"),
        _counter(
            "remote_prefills",
            "Prompts that another engine was given to compute, by outcome: their blocks came "
            "(whole), or the rest was computed here (lost)",
            ("model", "outcome"),
        ),
    ),
    "Adapters": (
        _counter(
            "adapter_requests",
            "Ended requests by adapter and outcome",
            ("model", "adapter", "outcome"),
        ),
        _counter(
            "adapter_generation_tokens",
            "Generated tokens by adapter",
            ("model", "adapter"),
            "tokens",
        ),
    ),
    "Rollouts": (
        _gauge(
            "version_traffic_ratio",
            "Share of a name's requests that a version answers; of a shadow: of its copies",
            ("model", "version"),
            "ratio",
        ),
        _gauge("rollout_running", "1 while a rollout is under way"),
        _gauge(
            "version_effect",
            "Difference from the baseline: relative, of errors absolute; estimate and interval",
            ("model", "version", "metric", "bound"),
        ),
        _gauge(
            "version_evidence",
            "Evidence that a metric is beyond or within its limit; 1 decides",
            ("model", "version", "metric", "that"),
        ),
        _counter("rollout_events", "What happened to rollouts", ("model", "event")),
        _counter(
            "shadow_copies",
            "Copies of requests for a shadow version, by what became of them",
            ("model", "outcome"),
        ),
    ),
    "Gateway": (
        _counter("gateway_requests", "Requests given to a target", _TARGET),
        _counter("gateway_failures", "Requests that a target did not answer", _TARGET),
        _counter("gateway_lost", "Answers during which a target was lost", _TARGET),
        _counter("gateway_continued", "Answers that another target went on with", ()),
        _counter("gateway_fallbacks", "Answers of another model than was asked for", ()),
        _counter("gateway_private", "Requests that were private, by why", ("because",)),
        _gauge("gateway_target_active", "Requests that a target is answering", _TARGET),
        _gauge(
            "gateway_target_wait_seconds",
            "Predicted wait of a further request at a target",
            _TARGET,
            "seconds",
        ),
        _gauge(
            "gateway_target_rate",
            "Prompt tokens per second that a target was measured to compute",
            _TARGET,
            "tokens",
        ),
        _gauge("gateway_target_up", "1 while a target's breaker is closed", _TARGET),
        _gauge("gateway_held", "Requests that wait for an engine of a scaled model"),
    ),
    "Energy": (
        _counter(
            "energy_joules",
            "Energy of this machine by its own counters (RAPL, NVML), other programs included",
            ("source",),
            "joules",
        ),
        _counter(
            "request_energy_joules",
            "Energy of ended requests by their share of the steps: measured, or estimated by the "
            "number of --energy",
            ("model", "how"),
            "joules",
        ),
        _counter(
            "request_carbon_grams",
            "Carbon dioxide of that energy, by --carbon-intensity",
            ("model", "how"),
            "grams",
        ),
    ),
    "Database": (
        _gauge("database_available", "1 while the database answers", ()),
        _counter("database_outages", "How often the database ceased to answer", ()),
        _counter(
            "usage_records_lost",
            "Requests that were answered and neither counted nor audited, for want of room",
            (),
        ),
        _gauge(
            "usage_records_waiting",
            "Records of requests that are in the spool and not yet in the database",
            (),
        ),
    ),
}
"""The metrics by what they are about."""

FAMILIES: Mapping[str, Family] = {one.name: one for group in GROUPS.values() for one in group}
"""The metrics by name."""


SPECULATION = "speculation."

ENGINE_FAMILIES = tuple(
    one for one in FAMILIES.values() if one.field and not one.field.startswith(SPECULATION)
)
"""Those that export a field of `EngineStats`."""

SPECULATION_FAMILIES = tuple(one for one in FAMILIES.values() if one.field.startswith(SPECULATION))
"""Those that export a field of `SpeculationFigures`."""


def counter(name: str, registry: CollectorRegistry | None) -> Counter:
    """The counter of this name, registered."""
    one = _of_kind(name, Kind.COUNTER)
    return Counter(PREFIX + name, one.text, one.labels, unit=one.exported_unit, registry=registry)


def gauge(name: str, registry: CollectorRegistry | None) -> Gauge:
    """The gauge of this name, registered."""
    one = _of_kind(name, Kind.GAUGE)
    return Gauge(PREFIX + name, one.text, one.labels, unit=one.exported_unit, registry=registry)


def histogram(name: str, registry: CollectorRegistry | None) -> Histogram:
    """The histogram of this name, registered."""
    one = _of_kind(name, Kind.HISTOGRAM)
    return Histogram(
        PREFIX + name,
        one.text,
        one.labels,
        unit=one.exported_unit,
        buckets=one.buckets,
        registry=registry,
    )


def samples(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    """The counter or gauge of this name for a collector, which adds samples when it is scraped."""
    one = FAMILIES[name]
    made = CounterMetricFamily if one.kind is Kind.COUNTER else GaugeMetricFamily
    return made(PREFIX + name, one.text, labels=one.labels, unit=one.exported_unit)


def _of_kind(name: str, kind: Kind) -> Family:
    found = FAMILIES[name]
    assert found.kind is kind, f"{name} is a {found.kind}"
    return found
