"""How long prompts and answers are: fixed, drawn from a distribution, or read from a file."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

from tidemill.base.errors import config_error

# Name -> (names of its numbers, draw). All are rounded, and at least 1.
_DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], Callable[..., float]]] = {
    "uniform": (("LOW", "HIGH"), lambda rng, low, high: rng.randint(int(low), int(high))),
    "normal": (("MEAN", "DEVIATION"), lambda rng, mean, deviation: rng.gauss(mean, deviation)),
    "lognormal": (
        ("MEDIAN", "SIGMA"),
        lambda rng, median, sigma: rng.lognormvariate(math.log(median), sigma),
    ),
    "exponential": (("MEAN",), lambda rng, mean: rng.expovariate(1 / mean)),
}
FORMS = ", ".join(":".join((name, *names)) for name, (names, _) in _DISTRIBUTIONS.items())

Draw = Callable[[random.Random], int]


def length_draw(param: str, text: str) -> Draw:
    """A draw of lengths from ``200``, ``uniform:100:400``, ``normal:200:50``,
    ``lognormal:200:0.8`` or ``exponential:200``; a further number is the maximum.

    Raises:
        TidemillError: CONFIG, `param` named.
    """
    name, *rest = text.split(":")
    try:
        numbers = [float(n) for n in rest]
        fixed = int(name) if name.strip().isdigit() else None
    except ValueError:
        numbers, fixed = [], None
    if fixed is not None and not rest and fixed >= 1:
        return lambda rng: fixed
    names, draw = _DISTRIBUTIONS.get(name, ((), None))
    bounded = len(numbers) == len(names) + 1
    if draw is None or len(numbers) not in (len(names), len(names) + 1) or min(numbers) <= 0:
        raise config_error(
            param, f"{param} is a number of at least 1, or one of {FORMS} (and :MAX), not {text!r}"
        )
    if name == "uniform" and numbers[0] > numbers[1]:
        raise config_error(param, f"{param}: uniform:LOW:HIGH needs LOW <= HIGH, got {text!r}")
    most = numbers.pop() if bounded else math.inf
    return lambda rng: int(min(most, max(1, round(draw(rng, *numbers)))))


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(input, output) token counts from JSONL or CSV.

    Raises TidemillError of kind CONFIG naming the line that cannot be read.
    """
    pairs: list[tuple[int, int]] = []
    try:
        text = path.read_text()
    except OSError as error:
        raise config_error("lengths_file", f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or (number == 1 and line.lower().startswith("input")):
            continue
        try:
            if line.lstrip()[0] in "[{":
                row = json.loads(line)
                values = [row["input"], row["output"]] if isinstance(row, dict) else row
            else:
                values = next(csv.reader([line]))
            given, wanted = (int(v) for v in values[:2])
        except (ValueError, KeyError, TypeError) as error:
            raise config_error(
                "lengths_file", f"{path}, line {number}: expected two lengths, got {line[:60]!r}"
            ) from error
        if given < 1 or wanted < 1:
            raise config_error("lengths_file", f"{path}, line {number}: lengths must be at least 1")
        pairs.append((given, wanted))
    if not pairs:
        raise config_error("lengths_file", f"{path} holds no lengths")
    return pairs


def length_pairs(
    given: str | int, wanted: str | int, file: Path | None, rng: random.Random
) -> Iterator[tuple[int, int]]:
    """Endless (input, output) lengths: the file's rows cyclically, else drawn."""
    if file is not None:
        yield from cycle(read_lengths(file))
    inputs = length_draw("input_tokens", str(given))
    outputs = length_draw("output_tokens", str(wanted))
    while True:
        yield inputs(rng), outputs(rng)
