"""Flags and the standard variables of OpenTelemetry."""

from __future__ import annotations

import pytest

from tidemill.base.errors import TidemillError
from tidemill.telemetry.otel_options import GRPC, HTTP, OtelOptions, Target, otel_options

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def read(choice: str = "auto", sample: float | None = None, **environ: str) -> OtelOptions | None:
    return otel_options(choice, None, sample, False, environ)


def test_nothing_is_exported_unless_somebody_says_where() -> None:
    assert read() is None
    assert read("off", **{ENDPOINT: "http://c:4318"}) is None
    assert read("on", OTEL_SDK_DISABLED="true") is None
    found = read("on")
    assert found is not None and found.traces == Target("", HTTP) and found.required


def test_one_address_is_the_collector_s_and_of_a_signal_the_whole() -> None:
    found = read(
        **{ENDPOINT: "http://c:4318/", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m/x"}
    )
    assert found is not None and not found.required
    assert found.traces == Target("http://c:4318/v1/traces", HTTP)
    assert found.metrics == Target("http://m/x", HTTP)


def test_a_flag_counts_before_variables() -> None:
    found = otel_options(
        "http://flag:4317", GRPC, 0.5, True,
        {ENDPOINT: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": HTTP, "OTEL_TRACES_SAMPLER": "a"},
    )  # fmt: skip
    assert found is not None
    assert found.traces == Target("http://flag:4317", GRPC)
    assert (found.sampler, found.ratio, found.steps) == ("parentbased_traceidratio", 0.5, True)


def test_headers_are_taken_out_of_the_environment() -> None:
    environ = {
        ENDPOINT: "http://c",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20x, b=2",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "m=1",
    }
    found = otel_options("auto", None, None, False, environ)
    assert found is not None and found.traces is not None and found.metrics is not None
    assert found.traces.headers == (("authorization", "Bearer x"), ("b", "2"))
    assert found.metrics.headers == (("m", "1"),)
    assert environ == {ENDPOINT: "http://c"}


@pytest.mark.parametrize(
    ("variables", "sampler", "ratio"),
    [
        ({}, "parentbased_always_on", 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "always_off", 1.0),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            "traceidratio",
            0.25,
        ),
    ],
)
def test_samplers(variables: dict[str, str], sampler: str, ratio: float) -> None:
    found = read("on", **variables)
    assert found is not None and (found.sampler, found.ratio) == (sampler, ratio)


def test_signals_and_propagators() -> None:
    found = read("on", OTEL_METRICS_EXPORTER="none", OTEL_PROPAGATORS="b3")
    assert found is not None and found.metrics is None and not found.incoming
    found = read("on", OTEL_PROPAGATORS="tracecontext, baggage")
    assert found is not None and found.incoming


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_TRACES_SAMPLER": "sometimes"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {ENDPOINT: "collector:4318"},
    ],
)
def test_what_cannot_be_honoured_is_said(variables: dict[str, str]) -> None:
    with pytest.raises(TidemillError) as caught:
        read("on", **variables)
    assert any(name in caught.value.message for name in variables)
