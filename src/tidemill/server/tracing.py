"""Requests and steps as OpenTelemetry exports them; imported where that is wanted."""

from __future__ import annotations

from tidemill.base.errors import config_error
from tidemill.base.log import get_logger
from tidemill.server.context import ServerContext
from tidemill.telemetry.otel_options import OtelOptions

log = get_logger(__name__)

_MISSING = "OpenTelemetry's SDK is not installed: pip install 'tidemill[otel]'"


def export(context: ServerContext, options: OtelOptions, scheme: str) -> None:
    """Export the requests of a server from now on. Without the extra `otel` nothing is, and the log
    says so, where nobody but variables for every program of this machine asked for it.

    Args:
        context: that keeps explanations, and of which no application is built yet.
        options: what and where to.
        scheme: of the server's URLs.

    Raises:
        TidemillError: CONFIG: the extra is not installed, and a flag asks for it.
    """
    try:
        from tidemill.telemetry.otel import Exporter

        exporter = Exporter(options, context.version, scheme)
    except ImportError as error:
        if options.required:
            raise config_error("otel", f"--otel: {_MISSING} ({error.name})") from None
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s (%s)", _MISSING, error.name)
        return
    assert context.recent is not None
    context.exporter = exporter
    context.recent.on_end.append(exporter.ended)
    if exporter.steps:
        context.on_step.append(exporter.step)
