"""Commands of click from plain functions: a parameter's annotation is its type, its default what
`option` or `argument` returned.

So that each is written once, beside the code that uses it. (typer reads functions in this way too;
from 0.29 on it imports pydantic for it, which cost every start 75 ms and a server 10 MiB.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

import click

from tidemill.base.errors import config_error


@dataclass(frozen=True, slots=True)
class _Declared:
    """What a parameter's default says of it.

    Attributes:
        default: its value when nothing is given; ``...``: something must be.
        names: as typed, when they do not follow from the parameter's name.
        argument: it is found by its place.
        more: of click's own attributes.
    """

    default: Any
    names: tuple[str, ...]
    argument: bool
    more: dict[str, Any]


class _Choice(click.Choice[str]):
    """click's, whose refusal reads as those of all other values do."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """One of the choices, as it is declared. Raises TidemillError of kind CONFIG."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            name = str(param and param.name).replace("_", "-")
            known = ", ".join(map(str, self.choices))
            raise config_error(name, f"--{name} is one of {known}, not {value!r}") from error


def option(
    default: Any,
    *names: str,
    help: str,
    envvar: str | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """An option: ``--name VALUE``, for a tuple any number of times, or ``--name`` and ``--no-name``
    for a bool whose `names` say nothing else.

    Args:
        default: without it; must be of the parameter's type.
        names: as typed, when they do not follow from the parameter's name.
        help: one or two sentences.
        envvar: the environment variable that is read when the option is not there.
        choices: what it may be, in any case; none for anything of its type.
    """
    more: dict[str, Any] = {"help": help, "envvar": envvar}
    if choices:
        more["type"] = _Choice(choices, case_sensitive=False)
    return _Declared(default, names, False, more)


def argument(default: Any, *, help: str) -> Any:
    """An argument found by its place, all that are left for a tuple; ``...``: it must be there."""
    return _Declared(default, (), True, {"help": help})


def command(name: str, function: Callable[..., None]) -> click.Command:
    """The command that calls `function`, whose docstring is its help."""
    hints = get_type_hints(function)
    parameters = [
        _parameter(parameter.name, hints[parameter.name], parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]
    return click.Command(
        name,
        callback=function,
        params=parameters,
        help=inspect.getdoc(function),
        context_settings={
            "show_default": True,
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        },
    )


def _parameter(name: str, hint: Any, declared: _Declared) -> click.Parameter:
    several = get_origin(hint) is tuple
    kind = next(iter(get_args(hint)), hint)  # of X, X | None and tuple[X, ...]: X
    needed = declared.default is ...
    more = {"type": kind, **({} if needed else {"default": declared.default}), **declared.more}
    if declared.argument:
        return click.Argument([name], required=needed, nargs=-1 if several else 1, **more)
    dashed = name.replace("_", "-")
    plain = f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}"
    return click.Option(
        [*(declared.names or (plain,)), name],
        required=needed,
        multiple=several,
        is_flag=kind is bool,
        show_envvar=True,
        **more,
    )
