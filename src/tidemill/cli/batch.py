"""`tidemill batch`: many requests from a file, answered on this machine without a server."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import click

from tidemill.cli.declared import command
from tidemill.cli.serve import serve

_OWN = (
    click.Argument(["input_file"], metavar="IN", type=Path),
    click.Argument(["output_file"], metavar="OUT", type=Path),
    click.Option(["--model"], help="The model, by name, folder or file. Default: the bundled one."),
    click.Option(
        ["--concurrency"],
        type=click.IntRange(1, 4096),
        default=64,
        show_default=True,
        help="Lines in flight.",
    ),
)

# Flags of `serve` that make no sense without one.
_OF_A_SERVER = frozenset(
    (
        *("host", "port", "config", "pin", "served_name", "memory", "keep_alive"),
        *(
            "drain_timeout",
            "database",
            "database_outage",
            "content",
            "recent_requests",
            "keep_explanations",
            "metrics_aliases",
            "otel",
            "otel_protocol",
            "otel_sample",
            "otel_steps",
            "energy",
            "carbon_intensity",
            "page",
            "api_key",
            "api_keys",
            "require_keys",
        ),
        *("share_prefix_cache", "tls_cert", "tls_key", "tls_client_ca", "cors_origin"),
        *("allowed_host", "trusted_proxy", "insecure", "max_queue_tokens", "max_queue_time"),
        *("ttft_objective_ms", "max_itl_ms", "stall_timeout"),
    )
)


def run(input_file: Path, output_file: Path, model: str | None, concurrency: int, **_: Any) -> None:
    """Answer every line of IN, and write the results to OUT.

    IN has a JSON object a line, as OpenAI's batches have: custom_id, method (POST), url
    (/v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings) and body. OUT has the
    results in the same order. A run that was interrupted is continued by the same command.
    """
    import dataclasses

    import uvloop

    from tidemill.base.errors import config_error
    from tidemill.base.log import set_up_logging
    from tidemill.cli.deployments import deployment_inputs
    from tidemill.cli.progress import bar
    from tidemill.cli.serving import named_models, say_line, serve_options
    from tidemill.server.app import build_app
    from tidemill.server.batches.local import OutputFile, answer_file, read_lines
    from tidemill.server.run import assembled

    if input_file.resolve() == output_file.resolve():
        raise config_error("output", f"IN and OUT are the same file, {input_file}")
    set_up_logging("api", "warning", "text")
    endpoint, lines = read_lines(input_file)
    context = click.get_current_context()
    models = named_models((model,) if model else (), None, alone=True, say=say_line)
    deployment = deployment_inputs(context, None, models).resolve()
    options = dataclasses.replace(
        serve_options(deployment, lambda line: None),
        database=None,
        state_folder=None,
        log_level="warning",
    )

    async def work() -> int:
        with bar("answered", len(lines)) as advance:
            output = OutputFile(output_file, lines, advance)
            advance(len(output.done))
            async with assembled(options) as served:
                await answer_file(build_app(served), endpoint, output, concurrency)
            return output.failed

    failed = uvloop.run(work())
    what = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    click.echo(f"{what} answered in {output_file}" + (f", {failed} with errors" if failed else ""))
    if failed:
        sys.exit(1)


batch = click.Group(
    "batch",
    help="Answer a file of requests on this machine (docs/batches.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
batch.add_command(
    click.Command(
        "run",
        callback=run,
        params=[
            *_OWN,
            *(
                parameter
                for parameter in command("serve", serve).params
                if isinstance(parameter, click.Option) and parameter.name not in _OF_A_SERVER
            ),
        ],
        help=inspect.getdoc(run),
    )
)
