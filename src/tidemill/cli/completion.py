"""`tidemill completion`: the script by which a shell completes commands, flags and models."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tidemill.cli.declared import argument, option

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TIDEMILL_COMPLETE"
"""Set by the scripts when they ask for completions (click's name)."""


def completion(
    shell: str = argument(None, help="bash, zsh or fish; default: as $SHELL says."),
    install: bool = option(
        False, "--install", help="Write it where the shell finds it, and say where that is."
    ),
) -> None:
    """Print the script that completes commands, flags, models and files in a shell.

    For this shell alone: `eval "$(tidemill completion bash)"`, or
    `tidemill completion fish | source`. For all later ones: --install.
    """
    from tidemill.base.errors import config_error

    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise config_error("shell", f"{shell!r} is none of {', '.join(SHELLS)}; name one")
    text = script(shell)
    if not install:
        click.echo(text)
        return
    file = usual_file(shell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    click.echo(f"written: {file}")
    if shell == "zsh":
        click.echo(
            f"if it is not there yet, put `fpath+=({file.parent})` into ~/.zshrc before `compinit`"
        )


def script(shell: str) -> str:
    """The script for a shell of `SHELLS`."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    complete = made(click.Group(), {}, "tidemill", VARIABLE)
    return complete.source_template % complete.source_vars()


def usual_file(shell: str) -> Path:
    """Where a shell of `SHELLS` looks for a user's completions of `tidemill`."""
    home = Path.home()
    if shell == "bash":
        data = os.environ.get("XDG_DATA_HOME") or home / ".local/share"
        return Path(data) / "bash-completion/completions/tidemill"
    if shell == "fish":
        config = os.environ.get("XDG_CONFIG_HOME") or home / ".config"
        return Path(config) / "fish/completions/tidemill.fish"
    return home / ".zfunc/_tidemill"
