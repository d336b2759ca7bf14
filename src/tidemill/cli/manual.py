"""Manual pages in roff (man(7)), from a command line's declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import click

from tidemill.cli.environment import FIXED

EXIT_CODES: Mapping[int, str] = {
    0: "It worked.",
    1: "It failed: a server did not answer, a request ended with an error, a check found something "
    "(`bench compare --fail-if-slower`, `audit verify`), the machine lacks memory or disk space.",
    2: "It was not tried: an argument, a variable, a file or a name is wrong, or is not there.",
    130: "Ctrl-C ended it.",
}
"""What every command's exit code means."""

_NO_DEFAULTS = (None, "", (), False)


def pages(app: click.Group) -> dict[str, str]:
    """Every page by its name: `tidemill`, and `tidemill-COMMAND` for each command."""
    from tidemill import __version__

    found = {"tidemill": "".join(_main_page(app, __version__))}
    for name, command in app.commands.items():
        found[f"tidemill-{name}"] = "".join(_page(name, command, __version__))
    return found


def _main_page(app: click.Group, version: str) -> Iterator[str]:
    yield _head("tidemill", version)
    yield f".SH NAME\ntidemill \\- {_escaped(_lower(app.help or ''))}\n"
    yield ".SH SYNOPSIS\n.B tidemill\n.I COMMAND\n[\\fIARGUMENT\\fR ...]\n"
    yield ".SH COMMANDS\n"
    for name, command in app.commands.items():
        yield f".TP\n.BR tidemill\\-{_escaped(name)} (1)\n{_escaped(_first(command))}\n"
    yield ".SH ENVIRONMENT\n"
    yield from _paragraphs(
        "Every flag has an environment variable, which its description names. A flag that is typed "
        "counts before its variable, that before the deployment file, that before the default. A "
        "variable that is empty counts as not set; values of repeatable flags stand with spaces "
        "between them; switches take 1 and 0."
    )
    others = {
        "NO_COLOR": "if it is set, nothing is printed in colour",
        "HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE": "of the hub, as for huggingface_hub",
    }
    for name, text in {**FIXED, **others}.items():
        yield f".TP\n.B {_escaped(name)}\n{_escaped(text[0].upper() + text[1:])}.\n"
    yield _exit_status()
    yield ".SH FILES\n.TP\n.I ~/.local/share/tidemill\nLibrary of models and database "
    yield "(\\fBTIDEMILL_HOME\\fR).\n.TP\n.I ~/.cache/tidemill\nPacked weights, for quick starts.\n"


def _page(name: str, command: click.Command, version: str) -> Iterator[str]:
    title = f"tidemill-{name}"
    yield _head(title, version)
    yield f".SH NAME\n{_escaped(title)} \\- {_escaped(_lower(_first(command)))}\n"
    yield ".SH SYNOPSIS\n"
    below: dict[str, click.Command] = getattr(command, "commands", {})
    for key, one in below.items() or [("", command)]:
        yield f".B tidemill {_escaped(f'{name} {key}'.strip())}\n"
        yield " ".join(_escaped(word) for word in _usage(one)) + "\n.br\n"
    yield ".SH DESCRIPTION\n"
    yield from _paragraphs(command.help or "")
    if below:
        yield ".SH COMMANDS\n"
        for key, one in below.items():
            yield f'.SS "{_escaped(name)} {_escaped(key)}"\n'
            yield from _paragraphs(one.help or "")
            yield from _parameters(one)
    else:
        yield ".SH OPTIONS\n"
        yield from _parameters(command)
    yield _exit_status()
    yield ".SH SEE ALSO\n.BR tidemill (1)\n"


def _parameters(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.params:
        text = _sentence(str(getattr(parameter, "help", None) or ""))
        if isinstance(parameter, click.Option):
            shown = parameter.get_help_record(context)
            yield f".TP\n.B {_escaped(shown[0] if shown else parameter.opts[0])}\n"
        else:
            yield f".TP\n.I {_escaped(parameter.make_metavar(context))}\n"
        notes = []
        if parameter.envvar:
            notes.append(f"Variable: {parameter.envvar}.")
        default = parameter.to_info_dict()["default"]
        if isinstance(parameter, click.Option) and parameter.required:
            notes.append("Required.")
        elif isinstance(parameter, click.Option) and default not in _NO_DEFAULTS:
            notes.append(f"Default: {_switch(parameter, default)}.")
        yield _escaped(" ".join((text, *notes)).strip()) + "\n"


def _switch(parameter: click.Parameter, default: object) -> object:
    return parameter.opts[0] if default is True else default


def _usage(command: click.Command) -> list[str]:
    return command.collect_usage_pieces(click.Context(command))


def _head(title: str, version: str) -> str:
    # Without a date, so that one version's pages are always the same.
    return f'.TH "{title.upper()}" "1" "" "tidemill {version}" "Tidemill"\n.nh\n.ad l\n'


def _exit_status() -> str:
    return ".SH EXIT STATUS\n" + "".join(
        f".TP\n.B {code}\n{_escaped(text)}\n" for code, text in EXIT_CODES.items()
    )


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield f".PP\n{_escaped(' '.join(paragraph.split()))}\n"


def _first(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def _lower(text: str) -> str:
    """For a NAME line: without the full stop, and small, but for abbreviations."""
    text = text.rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _sentence(text: str) -> str:
    return text if text.endswith((".", ")")) or not text else f"{text}."


def _escaped(text: str) -> str:
    """Text as roff shows it unchanged; `names` in backquotes are bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)
