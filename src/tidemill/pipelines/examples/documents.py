"""Answers questions from a folder of text files, and cites them (retrieval-augmented generation).

Options:
    folder: of the files; those below it count.
    embedder: a served model, for vectors.
    model: the model that answers; default: the server's default.
    reranker: a served model that orders what was found; default: none does.
    suffixes: of the files; default: .txt and .md.
    store: file of the vectors; default: in the user's cache folder.
    sources, candidates: passages that the model sees (5), out of so many that are found (20).
    passage_chars: length of a passage, at most about (1000).
    query_prompt, document_prompt: the embedder's own prompts for questions and passages, by name.

Vectors are kept on disk by the digest of their text, so that each passage is embedded once. Before
an answer, files that have changed are read again. A large folder may take longer to read than an
answer may take; what was embedded by then is kept, and the next request goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sqlite3
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.base.errors import ErrorKind
from tidemill.pipelines import BadRequest, Model, ModelError, Models, Request

MAX_FILE_BYTES = 16 * 2**20
"""Larger files are passed over."""

EMBEDDED_AT_ONCE = 32
"""Passages of one call, whose vectors are then stored."""

INSTRUCTIONS = """\
Answer the question from the sources below, and from them alone. Put the number of the source
behind each statement, for instance [1]. If the sources do not have the answer, say so.
"""

_CITED = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Passage:
    """A part of a file.

    Attributes:
        path: below the folder.
        first, last: its lines.
        text: its text.
    """

    path: str
    first: int
    last: int
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        if self.first == self.last:
            return f"{self.path}, line {self.first}"
        return f"{self.path}, lines {self.first}-{self.last}"


def passages_of(path: str, text: str, size: int) -> Iterator[Passage]:
    """A file's passages: paragraphs of at most about `size` characters together.

    A longer paragraph is cut between lines, and a longer line at `size`.
    """
    held: list[tuple[int, str]] = []  # numbers of lines, and their text
    length = 0
    for number, line in enumerate(text.split("\n"), 1):
        for start in range(0, max(1, len(line)), size):
            piece = line[start : start + size]
            paragraph_ends = not piece.strip() and length > size // 2
            if held and (paragraph_ends or length + len(piece) > size):
                yield from _passage(path, held)
                held, length = [], 0
            held.append((number, piece))
            length += len(piece) + 1
    yield from _passage(path, held)


def _passage(path: str, held: Sequence[tuple[int, str]]) -> Iterator[Passage]:
    filled = [number for number, piece in held if piece.strip()]
    if filled:
        text = "\n".join(piece for _, piece in held).strip()
        yield Passage(path, filled[0], filled[-1], text)


class Store:
    """Vectors on disk, by the digest of the embedder's name and the text.

    Args:
        file: an SQLite database, made if it does not exist.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (digest BLOB PRIMARY KEY, vector BLOB)"
            )

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30)

    def get(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors that are known of these."""
        found: dict[bytes, bytes] = {}
        with closing(self._open()) as database:
            for start in range(0, len(digests), 500):
                some = digests[start : start + 500]
                marks = ",".join("?" * len(some))
                query = f"SELECT digest, vector FROM vectors WHERE digest IN ({marks})"
                found.update(database.execute(query, some))
        return found

    def put(self, vectors: Mapping[bytes, bytes]) -> None:
        """Keep vectors."""
        with closing(self._open()) as database, database:
            database.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?)", list(vectors.items())
            )


class Index:
    """The passages of a folder and their vectors.

    Args:
        folder: of the files.
        store: of the vectors.
        suffixes: of the files.
        passage_chars: see `passages_of`.
    """

    def __init__(
        self, folder: Path, store: Store, suffixes: Sequence[str], passage_chars: int
    ) -> None:
        self._folder = folder
        self._store = store
        self._suffixes = tuple(suffixes)
        self._size = passage_chars
        self._files: dict[str, tuple[tuple[int, int], list[Passage]]] = {}
        self._lock = asyncio.Lock()
        self._stale = True
        self._current: tuple[list[Passage], Any] = ([], None)  # passages and their vectors

    async def refresh(self, embedder: Model, prompt: str | None) -> None:
        """Read what has changed, and embed what has no vector yet.

        Raises:
            ModelError: of the embedder.
        """
        async with self._lock:
            changed = await asyncio.to_thread(self._read)
            self._stale = self._stale or changed
            if not self._stale:
                return
            passages = [one for _, found in self._files.values() for one in found]
            digests = [_digest(embedder.name, prompt, one.text) for one in passages]
            known = await asyncio.to_thread(self._store.get, digests)
            missing = {
                digest: one.text
                for digest, one in zip(digests, passages, strict=True)
                if digest not in known
            }
            items = list(missing.items())
            for start in range(0, len(items), EMBEDDED_AT_ONCE):
                some = items[start : start + EMBEDDED_AT_ONCE]
                vectors = await embedder.embed([text for _, text in some], prompt_name=prompt)
                pairs = zip(some, vectors, strict=True)
                new = {digest: vector.tobytes() for (digest, _), vector in pairs}
                await asyncio.to_thread(self._store.put, new)
                known |= new
            matrix = await asyncio.to_thread(_matrix, [known[d] for d in digests])
            self._current, self._stale = (passages, matrix), False

    def _read(self) -> bool:
        """Read new and changed files, and forget those that are gone; True if there are any."""
        seen: dict[str, tuple[int, int]] = {}
        for path in sorted(self._folder.rglob("*")):
            if path.suffix in self._suffixes and path.is_file():
                found = path.stat()
                if found.st_size <= MAX_FILE_BYTES:
                    name = path.relative_to(self._folder).as_posix()
                    seen[name] = (found.st_mtime_ns, found.st_size)
        changed = [n for n, s in seen.items() if n not in self._files or self._files[n][0] != s]
        gone = [name for name in self._files if name not in seen]
        for name in gone:
            del self._files[name]
        for name in changed:
            text = (self._folder / name).read_text(encoding="utf-8", errors="replace")
            self._files[name] = (seen[name], list(passages_of(name, text, self._size)))
        return bool(changed or gone)

    def nearest(self, vector: array[float], count: int) -> list[Passage]:
        """The passages of greatest cosine similarity to a vector, best first."""
        passages, matrix = self._current
        if not passages:
            return []
        [query] = _matrix([vector.tobytes()])
        scores = matrix @ query
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:count]
        return [passages[i] for i in order]


def _matrix(vectors: Sequence[bytes]) -> Any:
    """Vectors of length 1, float32 [vectors, numbers]."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads' buffers count as memory
    import numpy as np

    if not vectors:
        return np.zeros((0, 0), np.float32)
    found = np.frombuffer(b"".join(vectors), np.float32).reshape(len(vectors), -1)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return found / np.maximum(lengths, 1e-12)


def _digest(embedder: str, prompt: str | None, text: str) -> bytes:
    return hashlib.sha256(f"{embedder}\0{prompt or ''}\0{text}".encode()).digest()


indexes: dict[tuple[Any, ...], Index] = {}


def index_of(options: Mapping[str, Any]) -> Index:
    """The index of these options, made once."""
    if "folder" not in options:
        raise BadRequest("the pipeline has no option folder; the deployment file sets it")
    folder = Path(options["folder"]).expanduser().absolute()
    suffixes = tuple(options.get("suffixes", (".txt", ".md")))
    size = int(options.get("passage_chars", 1000))
    file = Path(options.get("store") or _default_store(folder)).expanduser()
    key = (folder, suffixes, size, file)
    if key not in indexes:
        indexes[key] = Index(folder, Store(file), suffixes, size)
    return indexes[key]


def _default_store(folder: Path) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(cache) / "tidemill" / "documents" / f"{name}.sqlite"


async def retrieve(question: str, options: Mapping[str, Any], models: Models) -> list[Passage]:
    """The passages that a question is answered from, best first."""
    if "embedder" not in options:
        raise BadRequest("the pipeline has no option embedder; the deployment file sets it")
    embedder = models[options["embedder"]]
    index = index_of(options)
    await index.refresh(embedder, options.get("document_prompt"))
    [vector] = await embedder.embed(question, prompt_name=options.get("query_prompt"))
    most = int(options.get("sources", 5))
    found = await asyncio.to_thread(
        index.nearest, vector, max(most, int(options.get("candidates", 20)))
    )
    reranker = options.get("reranker")
    if reranker is not None and found:
        ranked = await models[reranker].rerank(question, [one.text for one in found])
        found = [found[one.index] for one in ranked]
    return found[:most]


def with_sources(
    messages: Sequence[Mapping[str, Any]], sources: Sequence[Passage]
) -> list[dict[str, Any]]:
    """The conversation with the sources in its system message."""
    numbered = "\n\n".join(f"[{i}] {one.place}\n{one.text}" for i, one in enumerate(sources, 1))
    text = f"{INSTRUCTIONS}\n{numbered or 'There are no sources.'}"
    head = [dict(message) for message in messages[:1] if message.get("role") == "system"]
    if head and isinstance(head[0].get("content"), str):
        text = f"{head[0]['content']}\n\n{text}"
    return [{"role": "system", "content": text}, *map(dict, messages[len(head) :])]


def citations(text: str, sources: Sequence[Passage]) -> str:
    """The list of sources after an answer: those that it cites, else those that it had."""
    if not sources:
        return ""
    cited = sorted({int(n) for n in _CITED.findall(text)} & set(range(1, len(sources) + 1)))
    title = "Sources" if cited else "Sources consulted"
    shown = cited or range(1, len(sources) + 1)
    lines = "\n".join(f"[{i}] {sources[i - 1].place}" for i in shown)
    return f"\n\n{title}:\n{lines}"


async def answer(request: Request, models: Models) -> AsyncIterator[str]:
    """See the module docstring."""
    question = request.last
    if not question:
        raise BadRequest("the conversation has no question: no text of the user")
    sources = await retrieve(question, request.options, models)
    model = models[request.options.get("model", models.default)]
    said: list[str] = []
    while True:
        stream = model.stream(with_sources(request.messages, sources), **request.sampling)
        try:
            async for text in stream:
                said.append(text)
                yield text
            break
        except ModelError as error:
            too_long = error.kind is ErrorKind.BAD_REQUEST and error.param == "messages"
            if said or not too_long or not sources:
                raise
            sources = sources[: len(sources) // 2]
    yield citations("".join(said), sources)
