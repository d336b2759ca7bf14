"""Parameters of a model by name: ours, and the names that Ollama gives them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from tidemill.base.errors import TidemillError, config_error
from tidemill.contract.samplers import INTEGERS, NUMBERS
from tidemill.contract.sampling import SamplingParams
from tidemill.library.manifest import Definition

Pair = tuple[str, Any]


def _whole(value: Any) -> int:
    number = float(value)
    if isinstance(value, bool) or number != int(number):
        raise ValueError
    return int(number)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


# Name -> the conversion of its value, and what a value of it is called.
_VALUES: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(
        (
            *("temperature", "top_p", "min_p", "repetition_penalty"),
            *("presence_penalty", "frequency_penalty", *NUMBERS),
        ),
        (_number, "a number"),
    ),
    **dict.fromkeys(
        ("top_k", "seed", "max_tokens", "min_tokens", "max_model_len", *INTEGERS),
        (_whole, "a whole number"),
    ),
    "stop": (str, "a text"),
}
_RENAMED = {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    "num_ctx": "max_model_len",
}
# Values that ask for what happens anyway; any other value of these names is refused.
_NEUTRAL: dict[str, tuple[float, str]] = {
    "mirostat": (0, "mirostat sampling does not exist here; min_p and top_p bound the tail"),
    "tfs_z": (1, "tail-free sampling does not exist here; min_p and top_p bound the tail"),
}
_NO_LIMIT = ("-1", "-2")  # of num_predict
# These change no answer: what each is about is chosen when the model is loaded.
_LOADING = (
    *("num_gpu", "main_gpu", "num_thread", "num_batch", "num_keep", "numa", "low_vram", "f16_kv"),
    *("use_mmap", "use_mlock", "vocab_only", "logits_all", "mirostat_eta", "mirostat_tau"),
    "penalize_newline",
)


def read_parameters(pairs: Iterable[Pair], where: str) -> tuple[Definition, tuple[str, ...]]:
    """The definition that parameters make, and a note on each that has no effect.

    Args:
        pairs: names and values (numbers, or texts of them); `stop` may be repeated or a list.
        where: says in errors where they were read.

    Raises:
        TidemillError: CONFIG, naming the parameter.
    """
    sampling: dict[str, Any] = {}
    notes: list[str] = []
    for given, value in pairs:
        name = _RENAMED.get(given.lower(), given.lower())
        if name in _LOADING:
            notes.append(f"{where}: {given} has no effect: it is chosen when the model is loaded")
        elif name in _NEUTRAL:
            _check_neutral(given, value, where)
        elif given.lower() == "num_predict" and str(value) in _NO_LIMIT:
            continue
        elif name == "stop":
            texts = value if isinstance(value, list | tuple) else [value]
            sampling["stop"] = (*sampling.get("stop", ()), *map(str, texts))
        else:
            sampling[name] = _value(given, name, value, where)
    max_model_len = sampling.pop("max_model_len", None)
    if max_model_len is not None and max_model_len < 1:
        raise config_error("num_ctx", f"{where}: the context is at least one token")
    try:
        SamplingParams(**sampling)
    except TidemillError as error:
        raise config_error(error.param, f"{where}: {error.message}") from error
    return Definition(sampling=sampling, max_model_len=max_model_len), tuple(notes)


def _value(given: str, name: str, value: Any, where: str) -> Any:
    if name not in _VALUES:
        known = (*_VALUES, *_RENAMED)
        near = difflib.get_close_matches(given.lower(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise config_error(given, f"{where}: no parameter is called {given!r}; {hint}")
    convert, kind = _VALUES[name]
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        raise config_error(given, f"{where}: {given} is {kind}, not {value!r}") from None


def _check_neutral(given: str, value: Any, where: str) -> None:
    neutral, why = _NEUTRAL[given.lower()]
    try:
        same = _number(value) == neutral
    except (TypeError, ValueError):
        same = False
    if not same:
        raise config_error(given, f"{where}: {given} {value}: {why}; remove the line")
