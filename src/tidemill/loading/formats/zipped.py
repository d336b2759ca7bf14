"""Locations of a zip archive's entries in a mapped file; they must be stored, not compressed.

Format: PKWARE's application note (end of central directory, its 64-bit form, central and local
headers), as far as PyTorch writes it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tidemill.base.errors import model_file_error
from tidemill.loading.mapped import MappedFile

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_WHOLE = 0xFFFFFFFF  # in 32 bits: the 64-bit number is in an extra field
# Minimum size of an entry in a PyTorch archive: two headers, two names, alignment.
_ENTRY_BYTES = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of an entry's bytes."""

    offset: int
    nbytes: int


def entries(file: MappedFile) -> dict[str, Entry]:
    """Name -> location of every entry.

    Raises:
        TidemillError: MODEL_FILE when it is not an archive, truncated, compressed, or inconsistent.
    """
    count, start = _directory(file)
    if count > 16 + file.size // _ENTRY_BYTES:
        raise model_file_error(f"the archive announces {count} entries in {file.size} bytes")
    found: dict[str, Entry] = {}
    for _ in range(count):
        name, entry, start = _entry(file, start)
        if name in found:
            raise model_file_error(f"archive entry {name[:80]!r} occurs twice", param=name)
        found[name] = entry
    return found


def _unpack(form: struct.Struct, file: MappedFile, at: int, magic: bytes) -> tuple[int, ...]:
    if at < 0 or at + form.size > file.size:
        raise model_file_error(f"truncated: an archive header at byte {at} leaves the file")
    fields = form.unpack_from(file.view, at)
    if fields[0] != magic:
        raise model_file_error(f"corrupt: no archive header at byte {at}; fetch it again")
    return fields[1:]


def _directory(file: MappedFile) -> tuple[int, int]:
    """(entries, offset of the first central header)."""
    tail = bytes(file.view[-min(file.size, _END.size + 65535) :])
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise model_file_error("not a zip archive, or truncated; fetch it again")
    end = file.size - len(tail) + at
    _, _, _, count, _, start, _ = _unpack(_END, file, end, b"PK\5\6")
    if count == 0xFFFF or start == _WHOLE:
        _, where, _ = _unpack(_LOCATOR, file, end - _LOCATOR.size, b"PK\6\7")
        *_, count, _, start = _unpack(_END64, file, where, b"PK\6\6")
    return count, start


def _entry(file: MappedFile, at: int) -> tuple[str, Entry, int]:
    """(name, place, offset of the next central header)."""
    fields = _unpack(_CENTRAL, file, at, b"PK\1\2")
    flags, method, size = fields[2], fields[3], fields[8]
    name_len, extra_len, comment_len, local = fields[9], fields[10], fields[11], fields[15]
    name_at = at + _CENTRAL.size
    after = name_at + name_len + extra_len + comment_len
    if after > file.size:
        raise model_file_error(f"truncated: an archive header at byte {at} leaves the file")
    try:
        name = str(file.view[name_at : name_at + name_len], "utf-8")
    except UnicodeDecodeError as error:
        raise model_file_error(f"an archive name at byte {name_at} is not UTF-8") from error
    if method != 0 or flags & 1:
        raise model_file_error(
            f"archive entry {name[:80]!r} is compressed or encrypted; PyTorch writes neither",
            param=name,
        )
    extra = file.view[name_at + name_len : name_at + name_len + extra_len]
    size, local = _wide(extra, size, fields[7], local)
    local_fields = _unpack(_LOCAL, file, local, b"PK\3\4")
    offset = local + _LOCAL.size + local_fields[8] + local_fields[9]
    if offset + size > file.size:
        raise model_file_error(
            f"truncated: archive entry {name[:80]!r} ends at byte {offset + size} and the file at "
            f"{file.size}; fetch it again",
            param=name,
        )
    return name, Entry(offset, size), after


def _wide(extra: memoryview, size: int, compressed: int, local: int) -> tuple[int, int]:
    """Size and header offset, from the 64-bit extra field when a 32-bit field overflows."""
    wanted = [v == _WHOLE for v in (size, compressed, local)]
    if not any(wanted):
        return size, local
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1 and length >= 8 * sum(wanted) and at + 4 + length <= len(extra):
            numbers = iter(struct.unpack_from(f"<{sum(wanted)}Q", extra, at + 4))
            size, _, local = (
                next(numbers) if wide else v
                for wide, v in zip(wanted, (size, compressed, local), strict=True)
            )
            return size, local
        at += 4 + length
    raise model_file_error("corrupt: an archive entry's 64-bit sizes are missing")
