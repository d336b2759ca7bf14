"""The page of docs/fuzz.md: one section for each kind of run, which writes its own anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol


class Outcome(Protocol):
    """See `fuzz.run.Tally`."""

    inputs: Counter[str]
    accepted: Counter[str]
    slowest: Mapping[str, float]
    failures: list[tuple[str, str, str]]
    peak: int
    growth: int


_FILES = """## Files

Sound files are changed (bytes, and the values of JSON documents) and read as a start would. Each
must end in a model, an adapter or an error of ours within {hang} s; the Python and numpy
allocations of a quarter of the headers and pickles may take {factor} times the file and 1 MiB. A
model computes five tokens in the native core (but for GGUF files whose allocations are measured);
an adapter is loaded beside its base and computes five there, and then the base computes the same
bits as before.

{summary}
Beyond {factor} times its file an input took at most {peak:.0f} KiB; the
process grew by {growth:.0f} MiB after the first 2,000 inputs.

{table}
What this does not do: a tokenizer.json that is no byte-level BPE goes to the `tokenizers` library,
whose memory is not measured but for the growth above, and whose regular expressions may take any
time on long texts. Ours are bounded by the text's length.
"""

_CLIENTS = """## Requests

`make fuzz` also draws what clients send: schemas, expressions and grammars with numbers at the
edges of 8 to 64 bits, huge counts, deep nesting and long runs, whole chat bodies with them, and
texts as a model might be led to write them. Grammars go through the sandbox
([structured.md](structured.md)), which they may end; what it lets pass is compiled over brook's
vocabulary and followed for 24 tokens, and may not end the process that does. Texts are rendered,
encoded and read by every format's parser. Each
input must end well or in an error of ours, within {hang} s.

{summary}

{table}"""

_SANITIZED = """## Under sanitizers

`make sanitizers ARGS=fuzz` reads files of the kinds that reach C++ with native modules that were
built with the address and undefined-behaviour sanitizers (portable kernels, memory of Python's own
allocated by malloc): what is read as sound is packed and computes five tokens. The first word of a
sanitizer ends the process, which is a failure with its input.

{summary}

{table}"""

_SECTIONS = {"files": _FILES, "clients": _CLIENTS, "native": _SANITIZED}


def updated(
    page: str, which: str, tally: Outcome, seed: int, seconds: float, hang: int, factor: int
) -> str:
    """The page with a run in its section; the other sections stay as they are.

    Args:
        page: as it was, or empty.
        which: kind of run, see `fuzz.run`.
        tally: what it saw.
        seed, seconds: of the run.
        hang: seconds an input may take.
        factor: of its size that a file's allocations may take.
    """
    total = sum(tally.inputs.values())
    written = _SECTIONS[which].format(
        summary=f"Last run: seed {seed}, **{total:,} inputs in {seconds:.0f} s, "
        f"{len(tally.failures)} failures**.",
        table=_table(tally),
        peak=max(tally.peak, 0) / 2**10,
        growth=tally.growth / 2**20,
        hang=hang,
        factor=factor,
    )
    parts = {name: _section(page, name) for name in _SECTIONS} | {which: written}
    head = page[: page.index("<!--")] if "<!--" in page else ""
    return head + "\n".join(
        f"<!-- {name} -->\n{text.strip()}\n<!-- end of {name} -->\n" for name, text in parts.items()
    )


def _section(page: str, name: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    return page[page.index(begin) + len(begin) : page.index(end)] if begin in page else ""


def _table(tally: Outcome) -> str:
    rows = "\n".join(
        f"| {name} | {count:,} | {tally.accepted[name]:,} | {tally.slowest[name]:.2f} |"
        for name, count in tally.inputs.most_common()
    )
    return f"| inputs of | count | accepted | slowest (s) |\n|---|---|---|---|\n{rows}\n"
