"""Slash commands of `tidemill run` (`/set`, `/show`, `/save`, ...), as a table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.base.errors import TidemillError, bad_request

if TYPE_CHECKING:
    from tidemill.cli.conversation import Conversation

_COMMAND = re.compile(r"/[a-z?]*$", re.IGNORECASE)

# Ollama's names of parameters -> ours.
_NAMES = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}

Command = Callable[["Conversation", str], str]


def is_command(text: str) -> bool:
    """Whether a turn is a command; a path such as ``/usr/lib`` is not."""
    return bool(_COMMAND.match((text.split(maxsplit=1) or [""])[0]))


def run_command(chat: Conversation, text: str) -> bool:
    """Run a command and print its result; returns False on exit."""
    name, _, argument = text.strip().partition(" ")
    name = name.lower()
    if name in ("/exit", "/quit", "/bye"):
        return False
    command = _COMMANDS.get(name)
    try:
        print(help_text(f"no command {name}\n") if command is None else command(chat, argument))
    except TidemillError as error:
        print(f"({error.message})")
    return True


def help_text(first: str = "") -> str:
    """The list of commands."""
    lines = [f"{usage:<28} {what}" for usage, what in _HELP]
    return first + "\n".join([*lines, *_KEYS])


def _clear(chat: Conversation, argument: str) -> str:
    chat.clear()
    return "(forgotten)"


def _stats(chat: Conversation, argument: str) -> str:
    chat.stats = not chat.stats
    return f"(stats {'on' if chat.stats else 'off'})"


def _system(chat: Conversation, argument: str) -> str:
    if not argument:
        return chat.system_text or "(no system message)"
    chat.set_system(argument)
    return "(system message set)"


def _set(chat: Conversation, argument: str) -> str:
    name, _, value = argument.strip().partition(" ")
    if name == "parameter":
        name, _, value = value.strip().partition(" ")
    elif name in _SETTINGS:
        return _SETTINGS[name](chat, value.strip())
    return _set_parameter(chat, _NAMES.get(name, name), value.strip())


def _set_parameter(chat: Conversation, name: str, value: str) -> str:
    from msgspec.structs import asdict

    from tidemill.contract.sampling import SamplingParams

    if name == "num_ctx":
        raise bad_request(name, "the context's length is set at the start, by --max-model-len")
    if name not in SamplingParams.__struct_fields__ or name == "n":
        from difflib import get_close_matches

        known = [*_SETTINGS, *(f for f in SamplingParams.__struct_fields__ if f != "n")]
        close = get_close_matches(name, known, n=1)
        meant = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}"
        raise bad_request(name, f"/set knows no {name!r}; {meant}" if name else f"/set: {meant}")
    if not value:
        raise bad_request(name, f"/set {name} needs a value; /set {name} default takes it back")
    if value == "default":
        wanted = getattr(SamplingParams(), name)
    else:
        wanted = (*chat.params.stop, str(_value(value))) if name == "stop" else _value(value)
    chat.params = SamplingParams(**{**asdict(chat.params), name: wanted})
    return f"({name} {value})"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _think(wanted: bool) -> Command:
    def command(chat: Conversation, argument: str) -> str:
        chat.options["enable_thinking"] = wanted
        return f"(thinking {'on' if wanted else 'off'})"

    return command


def _show_stats(wanted: bool) -> Command:
    def command(chat: Conversation, argument: str) -> str:
        chat.stats = wanted
        return f"(stats {'on' if wanted else 'off'})"

    return command


def _history(wanted: bool) -> Command:
    def command(chat: Conversation, argument: str) -> str:
        chat.history = wanted
        return "(turns are remembered)" if wanted else "(each turn is answered by itself)"

    return command


def _format(chat: Conversation, argument: str) -> str:
    if argument != "json":
        raise bad_request("format", "/set format json is the one there is; a schema is --schema")
    chat.options.pop("json_schema", None)
    chat.options["response_format"] = {"type": "json_object"}
    return "(answers are JSON)"


def _no_format(chat: Conversation, argument: str) -> str:
    for name in ("json_schema", "response_format"):
        chat.options.pop(name, None)
    return "(answers are free)"


def _show(chat: Conversation, argument: str) -> str:
    what = _SHOWN.get(argument.strip() or "info")
    if what is None:
        raise bad_request("show", f"/show takes {', '.join(_SHOWN)}")
    return what(chat)


def _info(chat: Conversation) -> str:
    info = chat.llm.info
    used = sum(len(str(m.get("content") or "")) for m in chat.messages)
    return (
        f"{info.model}: context {info.max_model_len} tokens, {info.backend} {info.isa or ''}, "
        f"computing in {info.dtype}, quantization {info.quantization}\n"
        f"{len(chat.messages)} messages of {used} characters"
    )


def _parameters(chat: Conversation) -> str:
    from msgspec.structs import asdict

    from tidemill.contract.sampling import SamplingParams

    given, neutral = asdict(chat.params), asdict(SamplingParams())
    lines = [f"{name} {value}" for name, value in given.items() if value != neutral[name]]
    left = {k: v for k, v in chat.llm.defaults.items() if given[k] is None}
    lines += [f"{name} {value} (the model's)" for name, value in left.items()]
    return "\n".join(lines) or "(nothing is set)"


def _template(chat: Conversation) -> str:
    return chat.llm.template.source or "(no chat template)"


def _messages(chat: Conversation) -> str:
    lines = [f"{m['role']}: {m.get('content') or ''}" for m in chat.messages]
    return "\n".join(lines) or "(nothing has been said)"


def _save(chat: Conversation, argument: str) -> str:
    from msgspec.structs import asdict

    path = _path(argument, "/save")
    if path.exists():
        _read_saved(path)  # overwrites only files that /save wrote
    given, neutral = asdict(chat.params), asdict(type(chat.params)())
    saved = {
        "model": chat.llm.info.model,
        "system": chat.system,
        "parameters": {k: v for k, v in given.items() if v != neutral[k]},
        "messages": chat.messages,
    }
    text = json.dumps(saved, ensure_ascii=False, indent=1) + "\n"
    try:  # mode 0600: a conversation may be confidential
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise bad_request("save", f"{path}: {error.strerror}") from error
    return f"({len(chat.messages)} messages saved in {path})"


def _load(chat: Conversation, argument: str) -> str:
    path = _path(argument, "/load")
    if path.is_file() and path.suffix != ".gguf":
        from tidemill.contract.sampling import SamplingParams

        saved = _read_saved(path)
        chat.params = SamplingParams(**saved["parameters"])
        chat.system = saved["system"]
        chat.messages = saved["messages"]
        other = saved["model"] != chat.llm.info.model
        was = f"; it was with {saved['model']}" if other else ""
        return f"({len(chat.messages)} messages loaded{was})"
    chat.change_model(argument.strip())
    return f"({chat.llm.info.model} is loaded; the conversation begins anew)"


def _path(argument: str, command: str) -> Path:
    if not argument.strip():
        raise bad_request("path", f"{command} needs a file's name")
    return Path(argument.strip()).expanduser()


def _read_saved(path: Path) -> dict[str, Any]:
    """Read a saved conversation. Raises TidemillError if the file is invalid."""
    try:
        saved = json.loads(path.read_text("utf-8"))
        fits = (
            isinstance(saved["model"], str)
            and isinstance(saved["system"], str | None)
            and isinstance(saved["parameters"], dict)
            and all(isinstance(m["role"], str) for m in saved["messages"])
        )
    except OSError as error:
        raise bad_request("path", f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise bad_request("path", f"{path} holds no conversation that /save wrote")
    if isinstance(biases := saved["parameters"].get("logit_bias"), dict):
        saved["parameters"]["logit_bias"] = {int(k): v for k, v in biases.items()}
    return saved  # type: ignore[no-any-return]


_SETTINGS: dict[str, Command] = {
    "system": _system,
    "think": _think(True),
    "nothink": _think(False),
    "verbose": _show_stats(True),
    "quiet": _show_stats(False),
    "history": _history(True),
    "nohistory": _history(False),
    "format": _format,
    "noformat": _no_format,
}
_SHOWN: dict[str, Callable[[Conversation], str]] = {
    "info": _info,
    "parameters": _parameters,
    "system": lambda chat: chat.system_text or "(no system message)",
    "template": _template,
    "messages": _messages,
}
_COMMANDS: dict[str, Command] = {
    "/set": _set,
    "/show": _show,
    "/system": _system,
    "/clear": _clear,
    "/save": _save,
    "/load": _load,
    "/stats": _stats,
    "/help": lambda chat, argument: help_text(),
    "/?": lambda chat, argument: help_text(),
}
_HELP = (
    ("/set parameter NAME VALUE", "temperature, top_p, seed, stop, ...; VALUE default: as before"),
    ("/set system TEXT", "the system message; /system does the same"),
    ("/set think | nothink", "let the model think first, where its template can"),
    ("/set format json | noformat", "answers are JSON, or free again"),
    ("/set history | nohistory", "remember turns, or answer each by itself"),
    ("/show [WHAT]", "info, parameters, system, template or messages"),
    ("/clear", "forget the conversation"),
    ("/save FILE", "save the conversation and its settings"),
    ("/load FILE | MODEL", "go on with a saved conversation, or load another model"),
    ("/stats", "show or hide tokens per second (/set verbose, /set quiet)"),
    ("/help", "this list (also /?)"),
    ("/exit", "leave (also /bye, Ctrl-D)"),
)
_KEYS = (
    'Ctrl-C stops an answer. A paste may have several lines, and so may a text between """ and',
    '"""; a line that ends with \\ goes on in the next.',
)
