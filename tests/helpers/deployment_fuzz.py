"""Random deployment files by key and type, and mutations of good ones; `make fuzz-config`.

Every file must give a deployment that is whole, or problems that each name their place in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from helpers.deployment_files import GOOD, VERSIONS, write_files

from tidemill.deployment.deployment import Deployment
from tidemill.deployment.difference import difference
from tidemill.deployment.document import parse_document
from tidemill.deployment.kinds import Kind
from tidemill.deployment.problems import DeploymentError
from tidemill.deployment.request_settings import limit_settings, sampling_settings
from tidemill.deployment.resolve import resolve
from tidemill.deployment.settings import (
    ADMISSION,
    MODEL,
    PIPELINE,
    PRICES,
    QUOTAS,
    SECURITY,
    SERVER,
    VERSION,
    Setting,
)
from tidemill.deployment.show import as_toml, rows
from tidemill.deployment.toml_text import literal, path_text

_PLAIN = {
    "server": SERVER,
    "admission": ADMISSION,
    "security": SECURITY,
    "limits": limit_settings(),
    "prices": PRICES,
    "quotas": QUOTAS,
    "defaults": MODEL,
}
_TRAFFIC = (
    *('"1"', '"2"', '{kind = "single", version = "1"}', '{kind = "weights", weights = {1 = 2}}'),
    '{kind = "canary", stable = "1", canary = "2", steps = [1, 5]}',
    *('{kind = "shadow", version = "1", shadow = "2", fraction = 7}', "{kind = 3}", "{}"),
)
# Texts of every type, right for some keys and wrong for others.
_VALUES = (
    *(
        "0",
        "1",
        "-1",
        "2",
        "16",
        "500",
        "8000",
        "70000",
        "2_000_000",
        "0xff",
        "-9223372036854775809",
    ),
    *("1" + "0" * 50, "0x" + "f" * 2000, "0.5", "-0.0", "1e300", "inf", "-inf", "nan", "1.5"),
    *(
        "true",
        "false",
        '""',
        '" "',
        '"a"',
        '"auto"',
        '"off"',
        '"none"',
        '"b c"',
        "'\\'",
        '"\\u0000"',
    ),
    *('"4GiB"', '"0"', '"1XB"', '"5m"', '"1h30m"', '"forever"', '"-1"', '"1e9"', '"nan"'),
    *('"./model.gguf"', '"model.gguf"', '"template.jinja"', '"keys.toml"', '"answers.py"', '"."'),
    *('"./absent"', '"/"', '"~"', '"~nobody-there/x"', '"owner/name"', '"owner/name:Q4_K_M"'),
    *(
        '"https://app.example"',
        '"10.0.0.0/8"',
        '"127.0.0.1"',
        '"0.0.0.0"',
        '"::1"',
        '"é\\n\\u202e"',
    ),
    *("1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[]", "[1]", '["a", "b"]', '["a", "a"]'),
    *(
        '["a", 1]',
        "[[]]",
        "{}",
        "{a = 1}",
        '{a = {b = [1, {c = "d"}]}}',
        "[{}]",
        "[" * 40 + "]" * 40,
    ),
    *('"""\nlong\n"""', "'''it's'''", '"' + "x" * 5000 + '"'),
)


class Drawn:
    """Draws deployment files.

    Args:
        seed: equal seeds draw equal files.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def data(self) -> bytes:
        """A file: half of them drawn by key and type, half mutated from a good one."""
        text = self._document() if self._random.random() < 0.5 else self._mutated(GOOD + VERSIONS)
        data = text.encode()
        if self._random.random() < 0.2:
            data = self._bytes_mutated(data)
        return data

    def _document(self) -> str:
        parts = []
        for table, settings in _PLAIN.items():
            if self._random.random() < 0.4:
                parts.append(f"[{table}]\n{self._pairs(settings)}")
        models = range(self._random.randrange(4))
        parts += [f"[[models]]\n{self._model()}" for _ in models]
        if self._random.random() < 0.5:
            parts.append(f"[[pipelines]]\nfile = 'answers.py'\n{self._pairs(PIPELINE)}")
        if self._random.random() < 0.2:
            self._random.shuffle(parts)
        return "".join(parts)

    def _model(self) -> str:
        name = self._random.choice(("a", "b", "c@1", "d/e"))
        text = f"name = '{name}'\n" if self._random.random() < 0.8 else ""
        text += self._pairs(MODEL, skip="name" if text else "")
        sampling = self._pairs(sampling_settings())
        versions = self._random.choice((0, 0, 0, 1, 2, 3))
        if versions or self._random.random() < 0.05:
            text += f"traffic = {self._random.choice((*_TRAFFIC, self._any()))}\n"
        text += f"[models.sampling]\n{sampling}" if self._random.random() < 0.3 else ""
        for number in range(versions):
            text += f"[[models.versions]]\nversion = '{number + 1}'\n"
            text += self._pairs((*MODEL, *VERSION), skip="version")
        return text

    def _pairs(self, settings: tuple[Setting, ...], skip: str = "") -> str:
        count = min(len(settings), self._random.choice((0, 1, 1, 2, 3, 6)))
        lines = []
        for setting in self._random.sample(settings, count):
            if setting.key == skip:
                continue
            key = setting.key
            if self._random.random() < 0.03:
                key = self._typo(key)
            elif self._random.random() < 0.1:
                key = key.replace("_", "-")
            lines.append(f"{key} = {self._value(setting)}\n")
            if self._random.random() < 0.02:
                lines.append(lines[-1])
        return "".join(lines)

    def _typo(self, key: str) -> str:
        at = self._random.randrange(len(key))
        return path_text(
            (key[:at] + self._random.choice(("", "x", "é", " ", '"')) + key[at + 1 :],)
        )

    def _value(self, setting: Setting) -> str:
        """A value: nearly always one that the kind takes."""
        chance = self._random.random()
        if chance < 0.1:
            return self._any()
        if setting.kind.choices:
            return f'"{self._random.choice(setting.kind.choices)}"'
        return self._random.choice(_right(setting.kind, literal(setting.default)) or ["0"])

    def _any(self) -> str:
        return self._random.choice(_VALUES)

    def _mutated(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        for _ in range(self._random.choice((1, 1, 2, 4))):
            at = self._random.randrange(len(lines))
            key, equals, _ = lines[at].partition(" = ")
            change = self._random.randrange(6)
            if change == 0:
                del lines[at]
            elif change == 1:
                lines.insert(at, self._random.choice(lines))
            elif change == 2 and equals:
                lines[at] = f"{self._typo(key)}{equals}{self._any()}\n"
            elif equals:
                lines[at] = f"{key}{equals}{self._any()}\n"
            if not lines:
                break
        return "".join(lines)

    def _bytes_mutated(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 3))):
            at = self._random.randrange(len(changed) + 1)
            piece = self._random.choice(
                (b"", b'"', b"[", b"]", b"{", b"=", b"\n", b".", b"#", b"'")
            )
            piece = self._random.choice(
                (piece, bytes([self._random.randrange(256)]), b'"""', b"\0")
            )
            changed[at : at + self._random.choice((0, 1, 1, 30))] = piece
        return bytes(changed)


@cache
def _parsed() -> list[tuple[str, Any]]:
    return [(text, tomllib.loads(f"v = {text}")["v"]) for text in _VALUES]


@cache
def _right(kind: Kind, default: str) -> list[str]:
    """The values of `_VALUES` that a kind takes without its files, and the default."""
    found = []
    for text, value in _parsed():
        with contextlib.suppress(ValueError):
            kind.read(value, Path("/"))
            found.append(text)
    return found if default == literal(None) else [*found, default]


def check(data: bytes, folder: Path, before: Deployment) -> bool:
    """Whether a file is accepted; raises AssertionError, or whatever escapes, if it is not as said.

    Args:
        data: the file's content.
        folder: with the files that it may name.
        before: a deployment that a reload would replace.
    """
    try:
        found = resolve(parse_document(data, "t.toml", folder))
    except DeploymentError as error:
        lines = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
        for problem in error.problems:
            position = problem.origin.position
            assert position is not None and problem.origin.name == "t.toml", problem
            assert 1 <= position.line <= len(lines), problem
            assert 1 <= position.column <= len(lines[position.line - 1]) + 1, problem
            assert problem.message and "\n" not in str(problem).partition(problem.message)[0]
        return False
    for model in found.models:
        model.engine_config("/model")
    assert len(found.served_names) == len(set(found.served_names))
    difference(before, found).lines()
    assert not difference(found, found)
    shown = as_toml(rows(found), found)
    if "(hidden)" not in shown and "***" not in shown:
        again = resolve(parse_document(shown.encode(), "shown.toml", folder))
        assert not difference(found, again), shown
    return True


@contextlib.contextmanager
def without_lookups() -> Iterator[None]:
    """Names of hosts are not looked up: a fuzzer reaches no network."""
    real = socket.getaddrinfo

    def numeric(host: Any, *rest: Any, **more: Any) -> Any:
        if host != "localhost":
            more["flags"] = more.get("flags", 0) | socket.AI_NUMERICHOST
        return real(host, *rest, **more)

    with mock.patch.object(socket, "getaddrinfo", numeric):
        yield


def run(inputs: int, seed: int, folder: Path) -> Counter[bool]:
    """Check so many files; the counts of accepted and rejected ones."""
    write_files(folder)
    counts: Counter[bool] = Counter()
    with without_lookups():
        before = resolve(parse_document((GOOD + VERSIONS).encode(), "good.toml", folder))
        for number in range(seed, seed + inputs):
            data = Drawn(number).data()
            try:
                counts[check(data, folder, before)] += 1
            except Exception as error:
                raise AssertionError(f"seed {number}: {error!r} for\n{data!r}") from error
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(given.inputs, given.seed, Path(folder))
    seconds = time.monotonic() - started
    print(
        f"{counts.total()} deployment files in {seconds:.0f} s: {counts[True]} accepted, "
        f"{counts[False]} rejected with the place of every problem"
    )


if __name__ == "__main__":
    sys.exit(main())
