"""The model's files under an engine that reads them in place.

Weights are mapped, so a file that is written over while it is served changes answers at once.
Before the results of a step are taken, the files' sizes and times are looked at; a change ends the
engine for good. A file that was replaced (its name leads to another one now) does no harm to what
is mapped; that is said once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.base.files import OpenedFile, open_regular, same_content, stamp_of
from tidemill.base.log import get_logger

_log = get_logger(__name__)


class FileWatch:
    """Looks at mapped files for as long as they are in use.

    Args:
        files: that were opened for the model; those that were only read are left out.

    Raises:
        TidemillError: MODEL_FILE when one has changed since it was opened.
    """

    def __init__(self, files: Iterable[OpenedFile]) -> None:
        self._watched: list[_Watched] = []
        for file in files:
            if file.mapped:
                self._watched.append(_Watched(file))

    def check(self, *, text: bool = False) -> None:
        """Raise MODEL_FILE when mapped weights (or also texts) are not what was opened any more."""
        for watched in self._watched:
            if watched.text and not text:
                continue
            status = watched.status()
            if (status.st_mtime_ns, status.st_ctime_ns, status.st_size) != watched.latest:
                watched.look(status)

    def close(self) -> None:
        """Leave the files alone."""
        for watched in self._watched:
            watched.close()
        self._watched.clear()


class _Watched:
    """One file, with a descriptor of it.

    Attributes:
        latest: times and size by which it is known to be unchanged.
        text: it holds no weights.
    """

    def __init__(self, file: OpenedFile) -> None:
        self._file = file
        self.text = file.mapped == "text"
        self._said = False
        try:
            with open_regular(file.path) as opened:
                self.descriptor = os.dup(opened.fileno())
        except OSError as error:
            raise _changed(file, error.strerror or "it has gone") from error
        os.set_inheritable(self.descriptor, False)
        status = os.fstat(self.descriptor)
        try:
            if stamp_of(status)[:2] != file.stamp[:2]:
                raise _changed(file, "it was replaced while it was loaded")
            self.look(status)
        except BaseException:
            self.close()
            raise

    def status(self) -> os.stat_result:
        """What the system says of it now; MODEL_FILE where it cannot (a share that has gone)."""
        try:
            return os.fstat(self.descriptor)
        except OSError as error:
            raise _changed(self._file, error.strerror or "it cannot be looked at") from error

    def look(self, status: os.stat_result) -> None:
        """Its times are others than they were: is it the same all the same?"""
        before, now = self._file.stamp, stamp_of(status)
        replaced = self._is_replaced()
        # Renaming a file changes one of its times and nothing in it.
        if not same_content(before, now, renamed=replaced):
            raise _changed(self._file, _difference(before, now))
        self.latest = (status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        if replaced and not self._said:
            self._said = True
            _log.warning(
                "%s has been replaced or removed; this server goes on with what it has opened, and "
                "ends if its engine does: start it again for the new file",
                self._file.path,
            )

    def _is_replaced(self) -> bool:
        try:
            return stamp_of(os.stat(self._file.path))[:2] != self._file.stamp[:2]
        except OSError:
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


def _difference(before: tuple[int, ...], now: tuple[int, ...]) -> str:
    if before[2] != now[2]:
        return f"it has {now[2]} bytes instead of {before[2]}"
    return "its time of modification is another" if before[3] != now[3] else "it was written to"


def _changed(file: OpenedFile, what: str) -> TidemillError:
    # Clients are told the error; where files lie is for the log.
    _log.error("%s has changed: %s", file.path, what)
    return model_file_error(
        f"the model's file {os.path.basename(file.path)} was changed while it was in use ({what}), "
        "and no answer could be trusted; start again, and replace files by renaming, "
        "not in place"
    )
