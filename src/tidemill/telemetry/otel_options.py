"""Where OpenTelemetry's spans and metrics go: flags, and the standard environment variables.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/. Flags count before variables. What is
not named here (batches, timeouts, compression, certificates) is read by the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tidemill.base.errors import TidemillError, config_error

SIGNALS = ("traces", "metrics")

GRPC, HTTP = "grpc", "http/protobuf"

_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_SAMPLERS = frozenset(
    (
        *("always_on", "always_off", "traceidratio"),
        *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
    )
)


class Target(NamedTuple):
    """Where one signal goes.

    Attributes:
        endpoint: its URL; empty: the protocol's default on this machine.
        protocol: `GRPC` or `HTTP`.
        headers: of each export.
    """

    endpoint: str
    protocol: str
    headers: tuple[tuple[str, str], ...] = ()


class OtelOptions(NamedTuple):
    """What is exported.

    Attributes:
        traces, metrics: where to; None: nowhere.
        sampler: as in ``OTEL_TRACES_SAMPLER``.
        ratio: of traces that begin here, where the sampler has one.
        steps: each step of an engine is a span, sampled by the ratio.
        incoming: traces of clients are continued.
        required: it was asked for by a flag, and not by variables that are for every program.
    """

    traces: Target | None
    metrics: Target | None
    sampler: str = "parentbased_always_on"
    ratio: float = 1.0
    steps: bool = False
    incoming: bool = True
    required: bool = False


def otel_options(
    choice: str,
    protocol: str | None,
    sample: float | None,
    steps: bool,
    environ: MutableMapping[str, str],
) -> OtelOptions | None:
    """What to export; None: nothing.

    Args:
        choice: ``auto`` (where an endpoint's variable is set), ``on``, ``off`` or a collector's
            URL.
        protocol, sample: of the flags; None: as the variables say.
        steps: see `OtelOptions`.
        environ: of the process. Headers are taken out of it: they may hold secrets, which its
            children must not inherit.

    Raises:
        TidemillError: CONFIG.
    """
    headers = {signal: _take_headers(signal, environ) for signal in SIGNALS}
    environ.pop(_HEADERS, None)
    named = any(environ.get(name) for name in _endpoints())
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if choice == "off" or disabled or (choice == "auto" and not named):
        return None
    url = "" if choice in ("auto", "on") else choice

    def target(signal: str) -> Target | None:
        exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp")
        if exporter not in ("otlp", "none"):
            raise _invalid(f"OTEL_{signal.upper()}_EXPORTER", exporter, "otlp or none")
        if exporter == "none":
            return None
        chosen = protocol or _of(signal, "PROTOCOL", environ) or HTTP
        if chosen not in (GRPC, HTTP):
            raise _invalid("OTEL_EXPORTER_OTLP_PROTOCOL", chosen, f"{GRPC} or {HTTP}")
        return Target(_endpoint(url, signal, chosen, environ), chosen, headers[signal])

    propagators = environ.get("OTEL_PROPAGATORS", "")
    sampler, ratio = _sampler(sample, environ)
    return OtelOptions(
        target("traces"),
        target("metrics"),
        sampler,
        ratio,
        steps,
        not propagators or "tracecontext" in propagators.replace(" ", "").split(","),
        choice != "auto",
    )


def _endpoints() -> tuple[str, ...]:
    prefix = "OTEL_EXPORTER_OTLP_"
    return (f"{prefix}ENDPOINT", *(f"{prefix}{s.upper()}_ENDPOINT" for s in SIGNALS))


def _of(signal: str, name: str, environ: Mapping[str, str]) -> str:
    """A variable of one signal, else that of all."""
    of_signal = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
    return of_signal or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _endpoint(url: str, signal: str, protocol: str, environ: Mapping[str, str]) -> str:
    own = "" if url else environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "")
    base = url or own or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not base:
        return ""
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        name = "otel" if url else "OTEL_EXPORTER_OTLP_ENDPOINT"
        raise _invalid(name, base, "a URL such as http://127.0.0.1:4318")
    # The variable of one signal is its whole address; the others are the collector's.
    return base if own or protocol == GRPC else f"{base.rstrip('/')}/v1/{signal}"


def _take_headers(signal: str, environ: MutableMapping[str, str]) -> tuple[tuple[str, str], ...]:
    own = environ.pop(f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS", "")
    pairs = (member.split("=", 1) for member in (own or environ.get(_HEADERS, "")).split(","))
    return tuple(
        (pair[0].strip().lower(), unquote(pair[1].strip())) for pair in pairs if len(pair) == 2
    )


def _sampler(sample: float | None, environ: Mapping[str, str]) -> tuple[str, float]:
    if sample is not None:
        return "parentbased_traceidratio", sample
    name = environ.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if name not in _SAMPLERS:
        raise _invalid("OTEL_TRACES_SAMPLER", name, ", ".join(sorted(_SAMPLERS)))
    text = environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    if "ratio" not in name or not text:
        return name, 1.0
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise _invalid("OTEL_TRACES_SAMPLER_ARG", text, "a number from 0 to 1")
    return name, ratio


def _invalid(name: str, value: str, wanted: str) -> TidemillError:
    return config_error(name, f"{name}: {value[:80]!r} is not {wanted}")
