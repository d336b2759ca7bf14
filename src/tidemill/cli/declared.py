"""Click commands from plain functions: a parameter's annotation is its type, and its default is
the return value of `option` or `argument`.

Each option is declared once, next to the code that uses it. (typer does the same, but from 0.29 on
it imports pydantic, which cost every start 75 ms and a server 10 MiB.)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from tidemill.base.errors import config_error
from tidemill.cli.environment import EnvironmentOption, name_variables

F = TypeVar("F", bound=Callable[..., None])

_GLOBAL: set[Callable[..., None]] = set()

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
"""What a shell offers where a word is being typed."""


def complete_files(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the names of files."""
    return [CompletionItem(typed, type="file")]


@dataclass(frozen=True, slots=True)
class _ParameterSpec:
    """The declaration of a command-line parameter.

    Attributes:
        default: the value if the parameter is absent; ``...`` makes it required.
        names: flags as typed, if they differ from the parameter's name.
        argument: whether it is positional.
        more: further keyword arguments for click.
    """

    default: Any
    names: tuple[str, ...]
    argument: bool
    more: dict[str, Any]


class _Choice(click.Choice[str]):
    """`click.Choice` with Tidemill's wording of the error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the matching choice as declared. Raises TidemillError of kind CONFIG."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            name = str(param and param.name).replace("_", "-")
            said = f"--{name}"
            if param and ctx and _is_of_environment(ctx, param):
                said = str(param.envvar)
            known = ", ".join(map(str, self.choices))
            raise config_error(name, f"{said} is one of {known}, not {value!r}") from error


class _Number(click.types.FloatParamType):
    """A number; `float` also reads ``nan`` and ``inf``, with which no bound of an option holds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. Raises click.BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def _is_of_environment(ctx: click.Context, parameter: click.Parameter) -> bool:
    source = ctx.get_parameter_source(parameter.name or "")
    return source is click.core.ParameterSource.ENVIRONMENT


def option(
    default: Any,
    *names: str,
    help: str,
    envvar: str | None = None,
    choices: tuple[str, ...] = (),
    complete: Complete | None = None,
) -> Any:
    """Declare an option: ``--name VALUE``, repeatable for a tuple. A bool without `names` becomes
    ``--name`` and ``--no-name``.

    Args:
        default: the value if the option is absent; of the parameter's type.
        names: flags as typed, if they differ from the parameter's name.
        help: one or two sentences.
        envvar: the environment variable that is read if the option is absent.
        choices: the permitted values, case-insensitive; empty permits any value of the type.
        complete: what a shell offers as its value.
    """
    more: dict[str, Any] = {"help": help, "envvar": envvar, "shell_complete": complete}
    if choices:
        more["type"] = _Choice(choices, case_sensitive=False)
    return _ParameterSpec(default, names, False, more)


def argument(
    default: Any, *, help: str, envvar: str | None = None, complete: Complete | None = None
) -> Any:
    """Declare a positional argument; a tuple takes all that remain, ``...`` makes it required."""
    more = {"help": help, "envvar": envvar, "shell_complete": complete}
    return _ParameterSpec(default, (), True, more)


def command(name: str, function: Callable[..., None], *shared: Callable[..., Any]) -> click.Command:
    """Make a command that calls `function`; its docstring is the help text.

    Args:
        name: of the command.
        function: each of its parameters is an option or an argument.
        shared: declare further parameters, which several commands have; `function` is given their
            results as its first arguments.
    """
    common = {one: _parameters(one) for one in shared}
    own = _parameters(function, skip=len(common))

    def call(**values: Any) -> None:
        made = []
        for make, parameters in common.items():
            given = {one.name: values.pop(one.name) for one in parameters if one.name in values}
            made.append(make(**given))
        function(*made, **values)

    made = click.Command(
        name,
        callback=call if common else function,
        params=[*own, *(one for several in common.values() for one in several)],
        help=inspect.getdoc(function),
        context_settings={
            "show_default": True,
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        },
    )
    return name_variables(made) if function in _GLOBAL else made


def global_variables(function: F) -> F:
    """Let the variables of a command's flags be without its name, wherever these flags are."""
    _GLOBAL.add(function)
    return function


def _parameters(function: Callable[..., Any], skip: int = 0) -> list[click.Parameter]:
    declared = list(inspect.signature(function).parameters.values())[skip:]
    # Alone: the results of shared declarations have types that are imported when they are made.
    annotated = SimpleNamespace(__annotations__={one.name: one.annotation for one in declared})
    hints = get_type_hints(annotated, function.__globals__)
    return [_parameter(one.name, hints[one.name], one.default) for one in declared]


def _parameter(name: str, hint: Any, declared: _ParameterSpec) -> click.Parameter:
    several = get_origin(hint) is tuple
    kind = next(iter(get_args(hint)), hint)  # of X, X | None and tuple[X, ...]: X
    required = declared.default is ...
    default = declared.default
    if type(default) is float and default.is_integer():
        default = int(default)  # help shows 10, not 10.0
    more = {
        "type": _Number() if kind is float else kind,
        **({} if required else {"default": default}),
        **declared.more,
    }
    if kind is Path and more.get("shell_complete") is None:
        more["shell_complete"] = complete_files
    if declared.argument:
        return click.Argument([name], required=required, nargs=-1 if several else 1, **more)
    dashed = name.replace("_", "-")
    plain = f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}"
    return EnvironmentOption(
        [*(declared.names or (plain,)), name],
        required=required,
        multiple=several,
        is_flag=kind is bool,
        show_envvar=True,
        **more,
    )
