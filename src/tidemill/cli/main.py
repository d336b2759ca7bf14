"""`tidemill`: the command line and composition root of all packages."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.files import shown
from tidemill.base.log import get_logger, log_format
from tidemill.base.stderr import open_standard_streams
from tidemill.cli.declared import command
from tidemill.cli.environment import name_variables
from tidemill.cli.other_flags import OTHER_COMMANDS, OTHER_FLAGS

# Command -> its module and function, in the order of the help text.
COMMANDS = {
    "serve": ("serve", "serve"),
    "gateway": ("gateway", "gateway"),
    "rank": ("rank", "rank"),
    "run": ("run", "run"),
    "bench": ("bench", "bench"),
    "batch": ("batch", "batch"),
    "ps": ("ps", "ps"),
    "load": ("ps", "load"),
    "stop": ("ps", "stop"),
    "pull": ("pull", "pull"),
    "list": ("library", "list_models"),
    "show": ("show", "show"),
    "create": ("create", "create"),
    "cp": ("library", "copy"),
    "rm": ("library", "remove"),
    "rollout": ("rollout", "rollout"),
    "engines": ("engines", "engines"),
    "cluster": ("cluster", "cluster"),
    "plan": ("plan", "plan"),
    "calibrate": ("calibrate", "calibrate"),
    "simulate": ("simulate", "simulate"),
    "quantize": ("quantize", "quantize"),
    "convert": ("quantize", "convert"),
    "tokenize": ("text", "tokenize"),
    "render": ("text", "render"),
    "packed": ("packed", "packed"),
    "keys": ("keys", "keys"),
    "teams": ("teams", "teams"),
    "users": ("teams", "users"),
    "quotas": ("quotas", "quotas"),
    "usage": ("usage", "usage"),
    "explain": ("explain", "explain"),
    "dashboards": ("dashboards", "dashboards"),
    "profile": ("profile", "profile"),
    "audit": ("audit", "audit"),
    "db": ("db", "db"),
    "config": ("config", "config"),
    "doctor": ("doctor", "doctor"),
    "install-service": ("install_service", "install_service"),
    "completion": ("completion", "completion"),
    "man": ("man", "man"),
}

# Errors that another argument or file resolves exit with 2, all others with 1.
_USAGE = {ErrorKind.CONFIG, ErrorKind.BAD_REQUEST, ErrorKind.MODEL_FILE, ErrorKind.NOT_FOUND}


class _Commands(click.Group):
    """Commands in table order instead of alphabetical order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The command names."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands' first paragraphs in full; click would truncate them to one line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, (c.help or "").split("\n\n")[0]) for name, c in self.commands.items()]
            )


def app_of(arguments: Sequence[str]) -> click.Group:
    """Build the command line for these arguments.

    If the first one names a command, only that command is built: a server would hold the others in
    memory as long as it runs.
    """
    app = _Commands(
        "tidemill",
        help="LLM inference and serving: one system from a laptop's CPU up.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    click.version_option(package_name="tidemill", message="%(prog)s %(version)s")(app)
    named = arguments[0] if arguments else ""
    for name in [named] if named in COMMANDS else COMMANDS:
        module, function = COMMANDS[name]
        made = getattr(import_module(f"tidemill.cli.{module}"), function)
        one = made if isinstance(made, click.Command) else command(name, made)
        app.add_command(name_variables(one, name))
    return app


def main() -> None:
    """Entry point: expected errors print one line on stderr, never a traceback."""
    open_standard_streams(stderr_to_stdout=sys.argv[1:2] == ["serve"])
    for place, word in enumerate(sys.argv[1:], 1):
        if shown(word) != word:  # not repeated in the message: it may be a key
            _fail(f": argument {place} is not UTF-8; rename the file, or type the text again", 2)
    try:
        app = app_of(sys.argv[1:])
        sys.exit(app.main(prog_name=app.name, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(f": {_usage_message(error)}", error.exit_code)
    except TidemillError as error:
        _fail(f"{_about(error)}: {error.message}", 2 if error.kind in _USAGE else 1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader closed the pipe (`tidemill list | head`), which is not an error.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # System errors that no package translates: a full disk, missing permission.
        named = error.filename is not None and error.strerror is not None
        _fail(f": {error.filename}: {error.strerror}" if named else f": {error}", 1)
    except MemoryError:
        _fail(": out of memory: use a smaller model or cache, or free memory", 1)


def _about(error: TidemillError) -> str:
    """The field that an error is about, where its message does not name it."""
    name = error.param or ""
    words = "|".join(map(re.escape, {name, name.replace("_", "-"), name.replace("-", "_")}))
    named = re.search(rf"(?<!\w)({words})(?!\w)", error.message) is not None
    return f" [{name}]" if name and not named else ""


def _usage_message(error: click.ClickException) -> str:
    """The usage error with its remedy and a pointer to the command's help."""
    text = error.format_message()
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and error.option_name in OTHER_FLAGS:
        text = f"No such option '{error.option_name}': {OTHER_FLAGS[error.option_name]}."
    if isinstance(error, click.exceptions.NoSuchCommand) and error.command_name in OTHER_COMMANDS:
        text = f"No such command '{error.command_name}': {OTHER_COMMANDS[error.command_name]}."
    elif ctx is not None and ctx.command.name == "run" and "extra argument" in text:
        text += ": a prompt of several words stands in quotes."
    return f"{text} See `{ctx.command_path} --help`." if ctx is not None else text


def _fail(text: str, code: int) -> None:
    if log_format() == "json":
        get_logger(__name__).error("error%s", text)
        sys.exit(code)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    red, plain = ("\033[31m", "\033[0m") if coloured else ("", "")
    with contextlib.suppress(OSError):  # the exit code still reports it
        print(f"{red}error{plain}{text}", file=sys.stderr, flush=True)
    sys.exit(code)
