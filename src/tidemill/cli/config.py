"""`tidemill config`: checks a deployment file, and shows what is in force and why."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.declared import command
from tidemill.cli.serve import serve

if TYPE_CHECKING:
    from tidemill.deployment.problems import Problem

# Flags that only `config show` has.
_CHANGED = click.Option(
    ["--changed"],
    is_flag=True,
    help="Leave out what nobody set.",
)
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="A list of JSON objects.")


def check(**flags: Any) -> None:
    """Check a deployment file as a whole; every problem is a line with its place. A file of
    `tidemill gateway` is checked as well.

    Takes the flags of `tidemill serve`, for they count as well.
    """
    from tidemill.cli.deployments import deployment_inputs
    from tidemill.deployment.problems import DeploymentError

    file = flags["deployment_file"]
    if _is_gateways(file):
        _check_gateways(file, as_json=flags["as_json"])
        return
    try:
        found = deployment_inputs(click.get_current_context(), file, open_models=True).resolve()
    except DeploymentError as error:
        if flags["as_json"]:
            problems = [_problem(one) for one in error.problems]
            click.echo(json.dumps({"valid": False, "problems": problems}, ensure_ascii=False))
            sys.exit(2)
        for line in error.lines():
            click.echo(line, err=True)
        count = len(error.problems)
        click.echo(f"{file}: {count} problem{'s' if count > 1 else ''}", err=True)
        sys.exit(2)
    if flags["as_json"]:
        names = [*found.served_names]
        click.echo(json.dumps({"valid": True, "problems": [], "names": names}, ensure_ascii=False))
        return
    what = [f"{len(found.models)} models" if len(found.models) != 1 else "1 model"]
    if found.pipelines:
        count = len(found.pipelines)
        what.append(f"{count} pipelines" if count > 1 else "1 pipeline")
    click.echo(f"{file} is valid: {', '.join(what)}")
    if found.served_names:
        click.echo(f"names: {', '.join(found.served_names)}")


def _is_gateways(file: Path) -> bool:
    """Whether it is a file of `tidemill gateway`: targets at its top, which a server has in
    `[upstream]`."""
    import tomllib

    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # what is wrong with it is said of a deployment file
    return "targets" in table


def _check_gateways(file: Path, *, as_json: bool) -> None:
    from tidemill.base.errors import TidemillError
    from tidemill.gateway.config import read

    try:
        targets = [target.name for target in read(file).targets]
    except TidemillError as error:
        if not as_json:
            click.echo(error.message, err=True)
        else:
            problem = {
                **{"key": error.param, "message": error.message, "source": "file"},
                **{"origin": str(file), "line": None, "column": None},
            }
            click.echo(json.dumps({"valid": False, "problems": [problem]}, ensure_ascii=False))
        sys.exit(2)
    if as_json:
        click.echo(json.dumps({"valid": True, "problems": [], "targets": targets}))
    else:
        click.echo(f"{file} is a valid file of a gateway; targets: {', '.join(targets)}")


def _problem(problem: Problem) -> dict[str, Any]:
    position = problem.origin.position
    return {
        "key": problem.key,
        "message": problem.message,
        "source": problem.origin.source,
        "origin": problem.origin.name,
        "line": position.line if position else None,
        "column": position.column if position else None,
    }


def show(**flags: Any) -> None:
    """Show the settings in force and where each came from.

    Takes the flags of `tidemill serve`. What is printed is a deployment file itself.
    """
    from tidemill.cli.deployments import deployment_inputs, own_settings
    from tidemill.deployment.show import as_toml, rows

    found = deployment_inputs(click.get_current_context(), flags["deployment_file"]).resolve()
    settings = rows(found, own_settings)
    if flags["as_json"]:
        listed = [
            {
                **{"table": row.table, "name": row.name, "key": row.key},
                **{"value": row.value, "source": row.origin.source, "origin": str(row.origin)},
            }
            for row in settings
        ]
        click.echo(json.dumps(listed, ensure_ascii=False, indent=1))
    else:
        click.echo(as_toml(settings, found, changed=flags["changed"]), nl=False)


def _with_flags(
    name: str, callback: Callable[..., None], *own: click.Parameter, required: bool
) -> click.Command:
    """A command for a file and the flags of `serve`."""
    file = click.Argument(["deployment_file"], metavar="FILE", required=required, type=Path)
    flags = [
        parameter
        for parameter in command("serve", serve).params
        if isinstance(parameter, click.Option) and parameter.name != "config"
    ]
    return click.Command(
        name, callback=callback, params=[file, *own, *flags], help=inspect.getdoc(callback)
    )


config = click.Group(
    "config",
    help="Check a deployment file, or show what is in force (docs/deployment.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
config.add_command(
    _with_flags(
        "check",
        check,
        click.Option(["--json", "as_json"], is_flag=True, help="A JSON document."),
        required=True,
    )
)
config.add_command(_with_flags("show", show, _CHANGED, _JSON, required=False))
