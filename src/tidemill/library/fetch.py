"""Downloads files into the library: in pieces, in parallel, resumable, and verified."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library import http
from tidemill.library.blobs import Blobs, digest_of
from tidemill.library.manifest import StoredFile
from tidemill.library.part import Part
from tidemill.library.progress import Reporter

if TYPE_CHECKING:
    import httpx

_TICK_SECONDS = 0.1
# Free space that a pull leaves on the disk.
_SPARE_BYTES = 16 * 2**20
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to download.

    Attributes:
        url: its address.
        path: its name in the model's folder.
        size: in bytes; None: as the server says.
        sha256: its digest; None: it is not known.
        git_sha1: its digest as a git blob, for files that have no other one.
        headers: for its host alone (authorization).
        remedy: what helps if the server refuses access.
    """

    url: str
    path: str
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""

    @property
    def key(self) -> str:
        """Name of its unfinished download."""
        if self.sha256 is not None:
            return f"sha256-{self.sha256}"
        return "url-" + hashlib.sha256(self.url.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How files are downloaded.

    Attributes:
        piece_bytes: bytes of one request; a killed download loses at most one piece per worker.
        workers: requests at a time.
    """

    piece_bytes: int = 16 * 2**20
    workers: int = 8


@dataclass(slots=True)
class _Job:
    """The download of one file.

    Attributes:
        url: where its bytes are, after redirects.
        ranged: whether the server sends parts of it.
        validator: strong ETag that a range must still have.
        resumed: whether bytes of an earlier download are in it.
    """

    file: RemoteFile
    part: Part
    url: str
    size: int | None
    ranged: bool = False
    validator: str | None = None
    resumed: bool = False


class Fetcher:
    """Downloads files and makes them blobs.

    Args:
        blobs: where they go.
        session: a client of `http.client`.
        reporter: hears of progress, in the calling thread.
        settings: sizes.
    """

    def __init__(
        self,
        blobs: Blobs,
        session: httpx.Client,
        reporter: Reporter,
        settings: FetchSettings = FetchSettings(),
    ) -> None:
        self._blobs = blobs
        self._session = session
        self._reporter = reporter
        self._settings = settings
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._done = 0
        self._lines: list[str] = []

    def fetch(self, files: Sequence[RemoteFile], extra_bytes: int = 0) -> list[StoredFile]:
        """Download files that are not here yet; all of them, complete and verified.

        Args:
            files: in any order; the result is in the same.
            extra_bytes: disk space that is needed besides.

        Raises:
            TidemillError: NOT_FOUND, UNAVAILABLE, RESOURCE (disk space), MODEL_FILE (wrong bytes),
                CANCELLED. What was downloaded is kept for the next try, but never wrong bytes.
        """
        stored: dict[str, StoredFile] = {}
        unique: dict[str, RemoteFile] = {}
        for file in files:
            unique.setdefault(file.key, file)  # a model may hold one content twice
        self._fetch_all([*unique.values()], stored, extra_bytes)
        again = [file for file in unique.values() if file.path not in stored]
        if again:  # resumed bytes were wrong: once more from the beginning
            self._reporter.say("what an earlier pull left was wrong; downloading it again")
            self._fetch_all(again, stored, extra_bytes)
        found = [stored[unique[file.key].path] for file in files]
        return [StoredFile(f.path, s.size, s.sha256) for f, s in zip(files, found, strict=True)]

    def _fetch_all(
        self, files: Sequence[RemoteFile], stored: dict[str, StoredFile], extra_bytes: int
    ) -> None:
        """One try of all files; resumed ones whose bytes are wrong stay out of `stored`."""
        jobs: list[_Job] = []
        with contextlib.ExitStack() as held:
            # In the order of keys, so that two pulls never wait for each other in a circle.
            for file in sorted(files, key=lambda file: file.key):
                part = Part(self._blobs.partial, file.key)
                if not self._has(file, stored):
                    part.acquire(lambda first, file=file: self._waiting(file, first))  # type: ignore[misc]
                    held.callback(part.release)
                if not self._has(file, stored):  # another pull may just have completed it
                    jobs.append(_Job(file, part, file.url, file.size))
            pool = held.enter_context(_pool(self._settings.workers, self._stop))
            self._run(pool, [(self._prepare, job) for job in jobs])
            self._check_space(jobs, extra_bytes)
            known = sum(job.size or 0 for job in jobs)
            self._done = sum(job.part.done for job in jobs if job.ranged)
            self._reporter.stage("downloading", known, self._done)
            self._run(pool, self._transfers(jobs))
            self._done = 0
            self._reporter.stage("verifying", sum(job.part.size for job in jobs))
            verified = self._run(pool, [(self._verify, job) for job in jobs])
        for job, digest in zip(jobs, verified, strict=True):
            if digest is not None:
                stored[job.file.path] = StoredFile(job.file.path, job.part.size, digest)

    def _has(self, file: RemoteFile, stored: dict[str, StoredFile]) -> bool:
        if file.sha256 is not None:
            size = self._blobs.size(file.sha256)
            if size is not None and file.size in (None, size):
                stored[file.path] = StoredFile(file.path, size, file.sha256)
        return file.path in stored

    def _waiting(self, file: RemoteFile, first: bool) -> None:
        if first:
            self._reporter.say(f"another pull is downloading {file.path}; waiting for it")
        self._reporter.check()

    def _run(
        self, pool: ThreadPoolExecutor, tasks: Sequence[tuple[Callable[..., Any], Any]]
    ) -> list[Any]:
        """Run tasks in the pool and report their progress from this thread; the first error ends
        them all."""
        futures: list[Future[Any]] = [pool.submit(function, item) for function, item in tasks]
        waiting: set[Future[Any]] = set(futures)
        try:
            while waiting:
                done, waiting = wait(waiting, _TICK_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                with self._mutex:
                    lines, self._lines = self._lines, []
                for line in lines:
                    self._reporter.say(line)
                self._reporter.check()
                self._reporter.at(self._done)
        except BaseException:
            self._stop.set()
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return [future.result() for future in futures]

    def _count(self, count: int) -> None:
        with self._mutex:
            self._done += count
        if self._stop.is_set():
            raise TidemillError(ErrorKind.CANCELLED, "stopped")

    def _say(self, line: str) -> None:
        with self._mutex:
            self._lines.append(line)

    def _prepare(self, job: _Job) -> None:
        """Find out whether the server sends ranges, and open the part."""
        small = job.size is not None and job.size <= self._settings.piece_bytes
        if not small:
            self._probe(job)
        # A digest names the content; else only a strong ETag says that it is still the same.
        validator = job.file.sha256 or job.validator
        if job.ranged and job.size:
            job.resumed = job.part.open(job.size, self._settings.piece_bytes, validator)
        else:
            job.part.open(job.size or 0, max(job.size or 0, 1), None)

    def _probe(self, job: _Job) -> None:
        def ask() -> None:
            with self._stream(job.file, job.url, {"Range": "bytes=0-0"}) as response:
                size = _total(response)
                job.url = str(response.url)
                job.ranged = response.status_code == 206 and size is not None
                etag = response.headers.get("etag", "")
                job.validator = etag if etag and not etag.startswith("W/") else None
            if size is not None and job.size is not None and size != job.size:
                raise _wrong(job.file, f"{size} bytes instead of {job.size}")
            job.size = size

        self._patiently(job.file, lambda patience: ask())

    def _check_space(self, jobs: Iterable[_Job], extra_bytes: int) -> None:
        """Raise RESOURCE unless the disk has room for what is still to be written."""
        needed = extra_bytes + sum((job.size or 0) - job.part.done for job in jobs if job.ranged)
        needed += sum(job.size or 0 for job in jobs if not job.ranged)
        check_space(self._blobs.partial, needed)

    def _transfers(self, jobs: Iterable[_Job]) -> list[tuple[Callable[..., Any], Any]]:
        tasks: list[tuple[Callable[..., Any], Any]] = []
        for job in jobs:
            if job.ranged and job.size:
                tasks += [(self._piece, (job, *piece)) for piece in job.part.pending()]
            else:
                tasks.append((self._whole, job))
        return tasks

    def _piece(self, task: tuple[_Job, int, int, int]) -> None:
        """Download one piece; after an interruption it goes on where it was."""
        job, number, start, end = task
        at = start

        def transfer(patience: http.Patience, url: str) -> None:
            nonlocal at
            headers = {"Range": f"bytes={at}-{end - 1}"}
            if job.validator is not None and job.file.sha256 is None:
                headers["If-Range"] = job.validator
            with self._stream(job.file, url, headers) as response:
                job.url = str(response.url)
                if response.status_code != 206 or _range_start(response) != at:
                    if job.file.sha256 is None:
                        raise _wrong(job.file, "another file than at the beginning: it changed")
                    # What arrives is compared with the digest: a host of many may lack ranges.
                    raise http.Interrupted(f"{http.host(url)} sent no range")
                for data in response.iter_raw():
                    data = data[: end - at]
                    self._write(job, at, data)
                    at += len(data)
                    patience.progress()
                    self._count(len(data))
            if at < end:
                raise http.Interrupted(f"{http.host(url)} sent too little")

        def resolved(patience: http.Patience) -> None:
            url = job.url  # of all pieces: another thread may change it meanwhile
            try:
                transfer(patience, url)
            except TidemillError as error:
                if error.kind is not ErrorKind.NOT_FOUND or url == job.file.url:
                    raise
                # The address that a redirect led to has expired.
                job.url = job.file.url
                raise http.Interrupted("the address expired", 0.0) from error

        self._patiently(job.file, resolved)
        job.part.finish(number)

    def _whole(self, job: _Job) -> None:
        """Download a small file, or one whose server sends no ranges: from the beginning."""
        counted = 0

        def transfer(patience: http.Patience) -> None:
            nonlocal counted
            at = 0
            with self._stream(job.file, job.url, {}) as response:
                for data in response.iter_raw():
                    at += len(data)
                    if job.size is not None and at > job.size:
                        break
                    self._write(job, at - len(data), data)
                    if at > counted:  # a second try does not count what the first one did
                        counted, more = at, at - counted
                        patience.progress()
                        self._count(more)
            if job.size is not None and at != job.size:
                if at > job.size:
                    raise _wrong(job.file, f"more than {job.size} bytes")
                raise http.Interrupted(f"{http.host(job.url)} sent {at} of {job.size} bytes")
            job.part.truncate(at)

        self._patiently(job.file, transfer)

    def _write(self, job: _Job, offset: int, data: bytes) -> None:
        try:
            job.part.write(offset, data)
        except OSError as error:
            raise disk_error(error, self._blobs.partial) from error

    def _patiently(self, file: RemoteFile, call: Callable[[http.Patience], None]) -> None:
        """Call until it succeeds or patience ends."""
        import httpx

        patience = http.Patience(file.path, self._stop, self._say)
        while True:
            try:
                if self._stop.is_set():
                    raise TidemillError(ErrorKind.CANCELLED, "stopped")
                call(patience)
                return
            except http.Interrupted as error:
                patience.wait(error)
            except httpx.TransportError as error:
                failure = http.as_interrupted(error, file.url)
                if isinstance(failure, TidemillError):
                    raise failure from error
                patience.wait(failure)

    @contextlib.contextmanager
    def _stream(
        self, file: RemoteFile, url: str, headers: Mapping[str, str]
    ) -> Iterator[httpx.Response]:
        same_host = urlsplit(url)[:2] == urlsplit(file.url)[:2]
        sent = {**(file.headers if same_host else {}), **headers}
        with self._session.stream("GET", url, headers=sent) as response:
            http.check_response(response, file.path, file.remedy)
            if response.headers.get("content-encoding", "identity") != "identity":
                raise _wrong(file, "it compressed")
            yield response

    def _verify(self, job: _Job) -> str | None:
        """Make a download a blob; its digest. None: it was resumed, is wrong and has been removed.

        Raises:
            TidemillError: MODEL_FILE; the wrong bytes have been removed.
        """
        file, part = job.file, job.part
        digest = digest_of(part.path, self._count)
        right = file.sha256 is None or digest == file.sha256
        if file.sha256 is None and file.git_sha1 is not None:
            right = _git_sha1(part.path) == file.git_sha1
        if not right:
            part.remove()
            if job.resumed:
                return None
            said = f"its sha256 is {digest}, not {file.sha256}" if file.sha256 else "by its digest"
            raise _wrong(file, f"other bytes than were listed ({said})")
        try:
            self._blobs.keep(part.path, digest)
        except OSError as error:
            raise disk_error(error, self._blobs.folder) from error
        return digest


@contextlib.contextmanager
def _pool(workers: int, stop: threading.Event) -> Iterator[ThreadPoolExecutor]:
    """Threads that are told to end if the block fails."""
    with ThreadPoolExecutor(workers, "pull") as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            raise


def check_space(folder: Path, needed: int) -> None:
    """Raise RESOURCE unless the disk of a folder has room for so many bytes more."""
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + _SPARE_BYTES > free:
        mib = 2**20
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"this needs {needed / mib:,.0f} MiB, and the disk of {folder} has {free / mib:,.0f} "
            "MiB free; free some (`tidemill rm`), or set TIDEMILL_HOME to a folder on another disk",
        )


def disk_error(error: OSError, folder: Path) -> Exception:
    """An error of writing in a folder, as people should read it."""
    if error.errno in _FULL_DISK:
        return TidemillError(
            ErrorKind.RESOURCE,
            f"the disk of {folder} is full; free some space and pull again: what was downloaded is "
            "kept",
        )
    return error


def _wrong(file: RemoteFile, what: str) -> TidemillError:
    return TidemillError(
        ErrorKind.MODEL_FILE,
        f"{file.path}: {http.host(file.url)} sent {what}; nothing of it is kept, try again",
        param="source",
        retryable=True,
    )


def _total(response: httpx.Response) -> int | None:
    """Size of the whole file, in the response to a request for a range of it."""
    if response.status_code == 206:
        text = response.headers.get("content-range", "").rpartition("/")[2]
    else:
        text = response.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


def _range_start(response: httpx.Response) -> int | None:
    unit, _, rest = response.headers.get("content-range", "").partition(" ")
    start = rest.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _git_sha1(path: Path) -> str:
    """The digest by which git names a file's content."""
    content = path.read_bytes()
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()
