"""`tidemill profile`: where the time of a running model's engine goes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tidemill.base.errors import config_error
from tidemill.cli.declared import option
from tidemill.cli.outputs import check_writable
from tidemill.cli.server_client import API_KEY, SECONDS, URL, ServerClient


def profile(
    model: str | None = option(None, help="Whose engine; default: the server's default model's."),
    target: str | None = option(None, help="At a gateway: whose engine; see `tidemill ps`."),
    seconds: float = option(10.0, help="How long it is watched, at most 300."),
    trace: Path | None = option(
        None, help="Write a trace of the first steps to this file, for ui.perfetto.dev."
    ),
    roofline: bool = option(True, help="Measure what the machine can do first (0.5 s)."),
    as_json: bool = option(False, "--json", help="The server's document."),
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Show where the time of a running model's engine goes: by parts of its steps, by kernels with
    the bandwidth and arithmetic that they reach, and what Python and waiting take."""
    from tidemill.telemetry.profile import text

    if not seconds > 0:
        raise config_error("seconds", "--seconds is more than 0")
    check_writable(trace=trace)
    client = ServerClient(url, api_key, seconds=seconds + SECONDS)
    body: dict[str, object] = {"seconds": seconds, "trace": trace is not None, "roofline": roofline}
    if target is not None:
        body["target"] = target
    if model is not None:
        body["model"] = model
    found = client.post("/admin/profile", body)
    traced = found.pop("trace", None)
    if trace is not None and traced is not None:
        trace.write_text(json.dumps(traced), encoding="utf-8")
        click.echo(f"wrote {trace}", err=True)
    elif trace is not None:
        click.echo("no trace: this backend keeps no records of its steps", err=True)
    click.echo(json.dumps(found, indent=2) if as_json else text(found), nl=as_json)
