"""Refuses retired words in new identifiers and documents (make lint); docs/glossary.md says why.

Identifiers are split into words (`_hold_inquest`, `KvPrefetch`), so that ordinary English in
comments and strings never counts; documents are searched for whole phrases.
"""

from __future__ import annotations

import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A word of an identifier -> what to say instead.
NAMES = {
    "acquit": "clear",
    "asks": "is_, has_ or needs_",
    "beside": "the relation: kv_prefetch, parallel, concurrent",
    "booking": "reservation",
    "bookings": "reservations",
    "convict": "quarantine",
    "convicted": "quarantined",
    "docket": "suspect tracker",
    "donor": "what is donated: blocks, tokens",
    "eights": "x8",
    "farewell": "fatal message",
    "flying": "in flight",
    "giver": "what it gives: trimmer",
    "greet": "handshake",
    "heed": "run commands",
    "inquest": "analyse crash",
    "lifeline": "owner watch, heartbeat",
    "misfit": "invalid, unsupported",
    "squeeze": "memory pressure",
    "undescribed": "unknown architecture",
    "unfit": "invalid field",
    "untold": "pending, unsent",
    "widen": "dequantize, to_float",
    "widened": "dequantized, converted",
    "wishes": "output options",
}
# A phrase of a document -> what to say instead.
PHRASES = {
    r"brought closer|bring(s|ing)? closer": "prefetched",
    r"asked for beside|asks? beside": "prefetched during",
    r"(what|that) is read once": "streaming (non-temporal) data",
    r"a plain read beside": "a plain read in the same run",
}
CODE = ("src", "csrc")
DOCUMENTS = ("README.md", "docs/*.md")
# Records of how things were called.
RECORDS = {"docs/glossary.md"}


def words_of(name: str) -> list[str]:
    """An identifier's words in lower case."""
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def python_names(text: str) -> Iterator[tuple[int, str]]:
    """Identifiers of Python source with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.start[0], token.string


def cpp_names(text: str) -> Iterator[tuple[int, str]]:
    """Identifiers of C++ source with their lines; comments and literals are left out."""
    plain = re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', "", text)
    for number, line in enumerate(plain.splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]\w*", line):
            yield number, name


def faults_of_code(path: Path) -> Iterator[str]:
    names = python_names if path.suffix in (".py", ".pyi") else cpp_names
    seen = set()
    for number, name in names(path.read_text()):
        if name in seen:
            continue
        seen.add(name)
        for word in words_of(name):
            if word in NAMES:
                where = path.relative_to(ROOT)
                yield f"{where}:{number}: {name}: say {NAMES[word]} instead of {word}"


def faults_of_document(path: Path) -> Iterator[str]:
    text = path.read_text()
    for phrase, better in PHRASES.items():
        for match in re.finditer(rf"\b({phrase})\b", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: say {better}"


def faults() -> Iterator[str]:
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".pyi", ".h", ".cpp", ".inl"):
                yield from faults_of_code(path)
    for pattern in DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            if str(path.relative_to(ROOT)) not in RECORDS:
                yield from faults_of_document(path)


if __name__ == "__main__":
    found = list(faults())
    print("\n".join(found) or "no retired words")
    sys.exit(bool(found))
