"""A batch from file to file, without a server: the same lines, requests and results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from starlette.types import ASGIApp

from tidemill.base.errors import bad_request
from tidemill.server.access.auth import by_address
from tidemill.server.access.keys import Role
from tidemill.server.batches.lines import LineReader
from tidemill.server.batches.openai.schema import ENDPOINTS
from tidemill.server.batches.output import output_line
from tidemill.server.batches.request import Answer, post
from tidemill.server.batches.run import Run
from tidemill.store.batches import Line, Outcome, Result

_READ = 2**20
_SHOWN_ERRORS = 20


class _Url(msgspec.Struct):
    url: str = ""


class _Done(msgspec.Struct):
    custom_id: str


def read_lines(path: Path) -> tuple[str, list[Line]]:
    """What a file asks: the route of its lines, and the lines.

    Raises:
        TidemillError: kind BAD_REQUEST: what is wrong, with the lines' numbers.
    """
    reader: LineReader | None = None
    lines: list[Line] = []
    with path.open("rb") as file:
        while data := file.read(_READ):
            if reader is None:
                reader = LineReader(_endpoint(path))
            lines += reader.feed(data)
    reader = reader or LineReader(ENDPOINTS[0])
    lines += reader.end()
    if reader.errors:
        shown = reader.errors[:_SHOWN_ERRORS]
        rest = len(reader.errors) - len(shown)
        listed = [f"line {error['line']}: {error['message']}" for error in shown]
        listed += [f"and {rest} more"] if rest else []
        raise bad_request("input", f"{path.name} is not as it should be:\n" + "\n".join(listed))
    return reader.endpoint, lines


def _endpoint(path: Path) -> str:
    """The route of the first line, which all lines must have."""
    with path.open("rb") as file:
        first = next((text for text in file if text.strip()), b"{}")
    try:
        url = msgspec.json.decode(first.removeprefix(b"\xef\xbb\xbf"), type=_Url).url
    except msgspec.DecodeError:
        return ENDPOINTS[0]  # the reader says what is wrong
    if url not in ENDPOINTS:
        raise bad_request(
            "url", f"{path.name}: url must be one of {', '.join(ENDPOINTS)}, got {url[:64]!r}"
        )
    return url


class OutputFile:
    """The file of results: lines are added as they come, and put in order at the end.

    A file that a run left unfinished is continued: lines whose `custom_id` is in it are not asked
    again, and half a line at its end is cut off.

    Args:
        path: the file.
        lines: all lines of the input.
        advance: called with the number of lines that got a result.
    """

    def __init__(
        self, path: Path, lines: Sequence[Line], advance: Callable[[int], None] = lambda count: None
    ) -> None:
        self._path = path
        self._lines = lines
        self._advance = advance
        self.done = self._known()
        self.failed = 0

    def _known(self) -> set[str]:
        if not self._path.exists():
            self._path.touch()
            return set()
        found, end = set(), 0
        with self._path.open("r+b") as file:
            for text in file:
                try:
                    found.add(msgspec.json.decode(text, type=_Done).custom_id)
                except msgspec.DecodeError:
                    break
                if not text.endswith(b"\n"):
                    break
                end += len(text)
            file.truncate(end)
        ours = found & {line.custom_id for line in self._lines}
        if len(ours) < len(found):
            raise bad_request(
                "output",
                f"{self._path.name} has results of lines that the input does not have; give "
                "another name",
            )
        return found

    async def open_lines(self, after: int, limit: int) -> Sequence[Line]:
        """See `LineStore`."""
        left = (
            line for line in self._lines if line.number > after and line.custom_id not in self.done
        )
        return [line for line, _ in zip(left, range(limit), strict=False)]

    async def record(self, results: Sequence[Result]) -> None:
        """See `LineStore`."""
        with self._path.open("ab") as file:
            file.write(b"".join(output_line("run", result) for result in results))
            file.flush()
            os.fsync(file.fileno())
        self.failed += sum(result.outcome is not Outcome.SUCCEEDED for result in results)
        self._advance(len(results))

    def put_in_order(self) -> None:
        """Write the lines in the order of the input, in one step."""
        place = {line.custom_id: line.number for line in self._lines}
        with self._path.open("rb") as file:
            texts = list(file)
        texts.sort(key=lambda text: place[msgspec.json.decode(text, type=_Done).custom_id])
        ordered = self._path.with_name(self._path.name + ".ordered")
        ordered.write_bytes(b"".join(texts))
        ordered.replace(self._path)


async def answer_file(app: ASGIApp, endpoint: str, output: OutputFile, concurrency: int) -> None:
    """Answer every line that has no result yet.

    Args:
        app: the server's application.
        endpoint: the lines' route.
        output: where lines come from and results go.
        concurrency: lines in flight.
    """
    principal = by_address("127.0.0.1", Role.ADMIN)

    async def send(line: Line) -> Answer:
        return await post(app, endpoint, line.body, principal)

    await Run(output, send, partial(int, concurrency)).run()
    output.put_in_order()
