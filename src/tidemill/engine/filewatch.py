"""FileWatch: detects changes of model files that the engine has mapped into memory.

Overwriting a mapped weight file changes the output at once. So the engine checks the files' sizes
and times before it commits a step; a change ends the engine permanently. Replacing a file by
renaming another over it leaves the mapped content intact; it is logged once.
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
    """Watches mapped files while they are in use.

    Args:
        files: the files opened for the model; those not mapped are ignored.

    Raises:
        TidemillError: MODEL_FILE if one has changed since it was opened.
    """

    def __init__(self, files: Iterable[OpenedFile]) -> None:
        self._watched: list[_Watched] = []
        for file in files:
            if file.mapped:
                self._watched.append(_Watched(file))

    def check(self, *, text: bool = False) -> None:
        """Raise MODEL_FILE if mapped weights (with `text` also text files) have changed."""
        for watched in self._watched:
            if watched.text and not text:
                continue
            status = watched.status()
            if (status.st_mtime_ns, status.st_ctime_ns, status.st_size) != watched.latest:
                watched.look(status)

    def close(self) -> None:
        """Stop watching and close the descriptors."""
        for watched in self._watched:
            watched.close()
        self._watched.clear()


class _Watched:
    """One file, with an open descriptor.

    Attributes:
        latest: times and size at the latest check that found it unchanged.
        text: it contains text (tokenizer data), not weights.
    """

    def __init__(self, file: OpenedFile) -> None:
        self._file = file
        self.text = file.mapped == "text"
        self._said = False
        try:
            with open_regular(file.path) as opened:
                self.descriptor = os.dup(opened.fileno())
        except OSError as error:
            raise _changed(file, error.strerror or "it was removed") from error
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
        """Its current stat. Raises MODEL_FILE if that fails (an unmounted network share)."""
        try:
            return os.fstat(self.descriptor)
        except OSError as error:
            raise _changed(self._file, error.strerror or "stat failed") from error

    def look(self, status: os.stat_result) -> None:
        """Its times have changed: raise MODEL_FILE unless its content is the same."""
        before, now = self._file.stamp, stamp_of(status)
        replaced = self._is_replaced()
        # Renaming a file changes its ctime, not its content.
        if not same_content(before, now, renamed=replaced):
            raise _changed(self._file, _difference(before, now))
        self.latest = (status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        if replaced and not self._said:
            self._said = True
            _log.warning(
                "%s has been replaced or removed; this server continues with the file it opened, "
                "and stops if its engine ends: restart it to use the new file",
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
    return "its modification time changed" if before[3] != now[3] else "it was written to"


def _changed(file: OpenedFile, what: str) -> TidemillError:
    # Clients receive the error. Only the log has the path.
    _log.error("%s has changed: %s", file.path, what)
    return model_file_error(
        f"the model's file {os.path.basename(file.path)} was changed while it was in use ({what}), "
        "so results would be invalid; restart the server, and replace model files by renaming, "
        "not in place"
    )
