"""Names of other servers for the same metrics, so that dashboards written for them show this one.

An alias is offered where the meaning is the same; what such a server counts and this one does not
is absent, rather than 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import Metric

from tidemill.metrics.families import FAMILIES, PREFIX


class Alias(NamedTuple):
    """Another name of a metric.

    Attributes:
        name: as that server has it; of a counter without ``_total``.
        source: name of the family.
        only: labels whose samples must have this value; they are left out.
        values: label -> value here -> value there; samples with others are left out, those that
            become the same are added up.
    """

    name: str
    source: str
    only: Mapping[str, str] = {}
    values: Mapping[str, Mapping[str, str]] = {}


class Names(NamedTuple):
    """What one server calls things.

    Attributes:
        labels: label here -> label there; others keep their names.
        added: labels that all of its metrics have.
        metrics: its metrics.
    """

    labels: Mapping[str, str]
    added: Mapping[str, str]
    metrics: tuple[Alias, ...]


_FINISHED = {"stop": "stop", "tool_calls": "stop", "length": "length", "cancelled": "abort"}

ALIASES: Mapping[str, Names] = {
    "vllm": Names(
        labels={"model": "model_name", "reason": "finished_reason"},
        added={"engine": "0"},
        metrics=(
            Alias("vllm:num_requests_running", "running_sequences"),
            Alias("vllm:num_requests_waiting", "queue_sequences"),
            Alias("vllm:kv_cache_usage_perc", "kv_usage_ratio"),
            Alias("vllm:gpu_cache_usage_perc", "kv_usage_ratio"),  # before 0.10
            Alias("vllm:prefix_cache_queries", "engine_prompt_tokens"),
            Alias("vllm:prefix_cache_hits", "prefix_cache_hit_tokens"),
            Alias("vllm:num_preemptions", "preemptions"),
            Alias("vllm:prompt_tokens", "prompt_tokens"),
            Alias("vllm:prompt_tokens_cached", "prompt_tokens_cached"),
            Alias("vllm:generation_tokens", "generation_tokens"),
            Alias("vllm:request_success", "requests", values={"reason": _FINISHED}),
            Alias("vllm:iteration_tokens_total", "batch_size_tokens"),
            Alias("vllm:request_prompt_tokens", "prompt_length_tokens"),
            Alias("vllm:request_generation_tokens", "generation_length_tokens"),
            Alias("vllm:time_to_first_token_seconds", "ttft_seconds"),
            Alias("vllm:inter_token_latency_seconds", "itl_seconds"),
            Alias("vllm:time_per_output_token_seconds", "itl_seconds"),  # before 0.11
            Alias("vllm:request_time_per_output_token_seconds", "tpot_seconds"),
            Alias("vllm:e2e_request_latency_seconds", "e2e_seconds"),
            Alias("vllm:request_queue_time_seconds", "phase_seconds", {"phase": "queue"}),
            Alias("vllm:request_prefill_time_seconds", "phase_seconds", {"phase": "prefill"}),
            Alias("vllm:request_decode_time_seconds", "phase_seconds", {"phase": "decode"}),
            Alias("vllm:spec_decode_num_drafts", "speculation_steps"),
            Alias("vllm:spec_decode_num_draft_tokens", "drafted_tokens"),
            Alias("vllm:spec_decode_num_accepted_tokens", "drafts_accepted"),
        ),
    ),
}
"""By the name of the server; a value of --metrics-aliases."""


def aliased(metrics: Iterable[Metric], names: Names) -> Iterator[Metric]:
    """The metrics that another server would have in place of these."""
    by_name = {metric.name: metric for metric in metrics}
    for alias in names.metrics:
        source = by_name.get(PREFIX + alias.source)
        if source is None:  # nothing has happened yet
            continue
        made = Metric(alias.name, FAMILIES[alias.source].text, source.type)
        values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for sample in source.samples:
            suffix = sample.name.removeprefix(source.name)
            labels = _labels(sample.labels, alias, names)
            if labels is not None and suffix != "_created":
                at = suffix, frozenset(labels.items())
                values[at] = values.get(at, 0.0) + sample.value
        for (suffix, pairs), value in values.items():
            made.add_sample(alias.name + suffix, dict(pairs), value)
        yield made


def _labels(labels: Mapping[str, str], alias: Alias, names: Names) -> dict[str, str] | None:
    found = dict(names.added)
    for label, value in labels.items():
        if label in alias.only:
            if alias.only[label] != value:
                return None
            continue
        mapped = alias.values.get(label)
        if mapped is not None:
            if value not in mapped:
                return None
            value = mapped[value]
        found[names.labels.get(label, label)] = value
    return found
